"""A simulated fleet in virtual time with injected faults, running the real processor."""

from pumphouse.simulation.faults.profiles import PROFILES, Faults, parse_faults
from pumphouse.simulation.invariants.records import INVARIANTS, Violation
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
