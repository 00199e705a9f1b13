"""The scenario of each seed of the long run, so that many seeds cover every combination.

Strategies, APIs, stores and fault profiles cycle with the seed, so that 360 seeds cover every
combination of them. Sizes, timing and duration are drawn. Every tenth seed lasts for days.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pumphouse.processor.options import STOP, CheckpointPolicy, ProcessorOptions
from pumphouse.simulation import PROFILES, Result, Scenario, simulate
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SEMANTICS

# In an order of their own: a seed must keep its scenario when the registries change.
FACES = ("pull", "push", "functions", "fixed")
PARTITIONS_EVERY = 72  # rounds: every other 72 of them have `partitions` in place of `pull`
STRATEGIES = ("steady", "greedy", "balanced", "eph", "eph_js", "steady:rates")
FAULT_PROFILES = ("harsh", "default", "harsh", "hosts", "store")
TIMINGS = {  # interval, lease and renewal in seconds
    "default": (10.0, 30.0, 10.0),
    "relaxed": (30.0, 120.0, 30.0),  # as today's official processors
    "slow": (120.0, 480.0, 120.0),  # for stores that charge by the call
}
LONG_EVERY = 10
LONG_HOURS = 88.0
MANUAL, STOPS = 0.25, 0.25  # the share of seeds
SHORT_HOURS = (0.2, 0.4, 0.9)


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed, without its options: they cannot be sent between processes."""
    rng = Random(f"mix {seed}")
    rounds = seed // LONG_EVERY if seed % LONG_EVERY == 0 else seed
    short = Scenario(
        hosts=rng.choice((1, 2, 2, 3, 3, 4, 5, 6)),
        partitions=rng.choice((1, 2, 3, 4, 5, 6, 8, 12)),
        hours=rng.choice(SHORT_HOURS),
        seed=seed,
        faults=PROFILES[FAULT_PROFILES[rounds % len(FAULT_PROFILES)]],
        strategy=STRATEGIES[rounds % len(STRATEGIES)],
        face=face_of(rounds),
        store=SEMANTICS[rounds // 24 % len(SEMANTICS)],
        burst_s=rng.choice((10.0, 40.0, 40.0, 200.0)),
    )
    if seed % LONG_EVERY:
        return short
    return replace(
        short,
        hosts=rng.choice((1, 1, 1, 2)),
        partitions=rng.choice((1, 1, 2, 3)),
        hours=LONG_HOURS,
        face="pull" if short.face == "fixed" else short.face,  # fixed hosts list every second
        faults=PROFILES[rng.choice(("quiet", "quiet", "default"))],
        burst_s=rng.choice((300.0, 1800.0)),
    )


def face_of(rounds: int) -> str:
    face = FACES[rounds // 6 % len(FACES)]
    return "partitions" if face == "pull" and rounds // PARTITIONS_EVERY % 2 else face


def timing_of(seed: int) -> str:
    """The name of the timing of a seed's hosts."""
    rng = Random(f"timing {seed}")
    if seed % LONG_EVERY == 0:
        return rng.choice(("relaxed", "slow", "slow"))
    return rng.choice(("default", "default", "relaxed"))


def options_of(timing: str) -> ProcessorOptions:
    interval_s, lease_s, renew_s = TIMINGS[timing]
    return replace(OPTIONS, interval_s=interval_s, lease_s=lease_s, renew_s=renew_s)


def with_user_code(seed: int, options: ProcessorOptions) -> ProcessorOptions:
    """Some seeds have only manual checkpoints, and some stop at poison until an operator comes."""
    rng = Random(f"user code {seed}")
    if rng.random() < MANUAL:
        options = replace(options, checkpoints=CheckpointPolicy())
    if rng.random() < STOPS:
        options = replace(options, poison=replace(options.poison, then=STOP))
    return options


def run(seed: int) -> Result:
    scenario = scenario_of(seed)
    options = with_user_code(seed, options_of(timing_of(seed)))
    result = simulate(replace(scenario, options=options))
    return replace(result, scenario=scenario)
