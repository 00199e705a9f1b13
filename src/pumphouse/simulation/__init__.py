"""A fleet in virtual time with faults, running the real processor; your own handlers too."""

from pumphouse.simulation.faults.profiles import PROFILES, Faults, parse_faults
from pumphouse.simulation.invariants.tracking import INVARIANTS, Violation
from pumphouse.simulation.run import Result, Scenario, simulate

__all__ = [
    "INVARIANTS",
    "PROFILES",
    "Faults",
    "Result",
    "Scenario",
    "Violation",
    "parse_faults",
    "simulate",
]
