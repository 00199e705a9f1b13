"""Which scenario a seed stands for, so that many seeds cover every combination.

Strategies, faces, stores and weather go round with the seed, so that 360 seeds have met every
combination of them; sizes, timing and how long it lasts are drawn. Every tenth seed lasts for days.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pumphouse.processor.options import ProcessorOptions
from pumphouse.simulation import PROFILES, Result, Scenario, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SEMANTICS

STRATEGIES = ("steady", "greedy", "balanced", "eph", "eph_js", "steady:rates")
WEATHER = ("harsh", "default", "harsh", "hosts", "store")
TIMINGS = {  # interval, lease and renewal in seconds
    "default": (10.0, 30.0, 10.0),
    "relaxed": (30.0, 120.0, 30.0),  # as today's official processors
    "slow": (120.0, 480.0, 120.0),  # for stores that cost by the call
}
LONG_EVERY = 10
LONG_HOURS = 88.0
SHORT_HOURS = (0.2, 0.4, 0.9)


def scenario(seed: int) -> Scenario:
    """The scenario of a seed, without its timing: options do not travel between processes."""
    rng = Random(f"mix {seed}")
    rounds = seed // LONG_EVERY if seed % LONG_EVERY == 0 else seed
    plain = Scenario(
        hosts=rng.choice((1, 2, 2, 3, 3, 4, 5, 6)),
        partitions=rng.choice((1, 2, 3, 4, 5, 6, 8, 12)),
        hours=rng.choice(SHORT_HOURS),
        seed=seed,
        faults=PROFILES[WEATHER[rounds % len(WEATHER)]],
        strategy=STRATEGIES[rounds % len(STRATEGIES)],
        face=FACES[rounds // 6 % len(FACES)],
        store=SEMANTICS[rounds // 24 % len(SEMANTICS)],
        burst_s=rng.choice((10.0, 40.0, 40.0, 200.0)),
    )
    if seed % LONG_EVERY:
        return plain
    return replace(
        plain,
        hosts=rng.choice((1, 1, 1, 2)),
        partitions=rng.choice((1, 1, 2, 3)),
        hours=LONG_HOURS,
        face="pull" if plain.face == "fixed" else plain.face,  # that one looks every second
        faults=PROFILES[rng.choice(("quiet", "quiet", "default"))],
        burst_s=rng.choice((300.0, 1800.0)),
    )


def timing(seed: int) -> str:
    """Which timing the hosts of a seed have."""
    rng = Random(f"timing {seed}")
    if seed % LONG_EVERY == 0:
        return rng.choice(("relaxed", "slow", "slow"))
    return rng.choice(("default", "default", "relaxed"))


def options(name: str) -> ProcessorOptions:
    interval_s, lease_s, renew_s = TIMINGS[name]
    return replace(OPTIONS, interval_s=interval_s, lease_s=lease_s, renew_s=renew_s)


def run(seed: int) -> Result:
    chosen = scenario(seed)
    result = simulate(replace(chosen, options=options(timing(seed))))
    return replace(result, scenario=chosen)
