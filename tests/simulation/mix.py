"""Which scenario a seed stands for, so that many seeds cover every combination."""

from __future__ import annotations

from dataclasses import replace

from pumphouse.simulation import PROFILES, Result, Scenario, simulate
from pumphouse.simulation.faces import FACES
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SEMANTICS

STRATEGIES = ("steady", "greedy", "balanced", "eph", "eph_js", "steady:rates")
LONG_EVERY, LONG_HOURS, SHORT_HOURS = 10, 80.0, 0.9


def scenario(seed: int) -> Scenario:
    """The scenario of a seed: what changes slowly has the larger divisor."""
    plain = Scenario(
        hosts=2 + seed % 4,
        partitions=3 + seed % 6,
        hours=SHORT_HOURS,
        seed=seed,
        faults=PROFILES["harsh" if seed % 2 else "default"],
        strategy=STRATEGIES[seed // 2 % len(STRATEGIES)],
        face=FACES[seed // 12 % len(FACES)],
        store=SEMANTICS[seed // 48 % len(SEMANTICS)],
    )
    if seed % LONG_EVERY:
        return plain
    return replace(plain, hosts=2, partitions=4, hours=LONG_HOURS, burst_s=300.0, face="pull")


def run(seed: int) -> Result:
    chosen = scenario(seed)
    if seed % LONG_EVERY:
        return simulate(chosen)
    relaxed = replace(OPTIONS, interval_s=30.0, lease_s=120.0, renew_s=30.0)
    # Options do not travel between processes; the seed says what they were.
    return replace(simulate(replace(chosen, options=relaxed)), scenario=chosen)
