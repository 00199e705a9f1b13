"""The scenario of each seed of the long run, so that many seeds cover every combination.

Strategies, APIs, stores and fault profiles cycle with the seed, so that 1,000 seeds cover every
combination of them. Sizes, timing and duration are drawn. Every tenth seed lasts for days. A fifth
of the seeds have concurrency.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pumphouse.processor.handling.key_order import ORDERED, UNORDERED, Concurrency
from pumphouse.processor.options import STOP, STOP_KEY, CheckpointPolicy, ProcessorOptions
from pumphouse.simulation import PROFILES, Result, Scenario, simulate
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SEMANTICS

# In an order of their own: a seed must keep its scenario when the registries change.
FACES = ("pull", "push", "functions", "fixed")
PULL_FACES = ("pull", "partitions", "handler")  # they take turns in the place of `pull`,
TURN = 72  # after this number of rounds
STRATEGIES = ("steady", "greedy", "balanced", "eph", "eph_js", "steady:rates")
FAULT_PROFILES = ("harsh", "default", "harsh", "hosts", "store")
TIMINGS = {  # interval, lease and renewal in seconds
    "default": (10.0, 30.0, 10.0),
    "relaxed": (30.0, 120.0, 30.0),  # as today's official processors
    "slow": (120.0, 480.0, 120.0),  # for stores that charge by the call
}
LONG_EVERY = 10
LONG_HOURS = 88.0
MANUAL, STOPS, CONCURRENT = 0.25, 0.25, 0.2  # the share of seeds
SHORT_HOURS = (0.2, 0.4, 0.9)


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed, without its options: they cannot be sent between processes."""
    rng = Random(f"mix {seed}")
    rounds = seed // LONG_EVERY if seed % LONG_EVERY == 0 else seed
    concurrency = concurrency_of(seed)
    short = Scenario(
        hosts=rng.choice((1, 2, 2, 3, 3, 4, 5, 6)),
        partitions=rng.choice((1, 2, 3, 4, 5, 6, 8, 12)),
        hours=rng.choice(SHORT_HOURS),
        seed=seed,
        faults=PROFILES[FAULT_PROFILES[rounds % len(FAULT_PROFILES)]],
        strategy=STRATEGIES[rounds % len(STRATEGIES)],
        face=face_of(rounds, concurrency),
        store=SEMANTICS[rounds // 24 % len(SEMANTICS)],
        burst_s=rng.choice((10.0, 40.0, 40.0, 200.0)),
        concurrency=concurrency,
    )
    if seed % LONG_EVERY:
        return short
    return replace(
        short,
        hosts=rng.choice((1, 1, 1, 2)),
        partitions=rng.choice((1, 1, 2, 3)),
        hours=LONG_HOURS,
        face=long_face(short),
        faults=PROFILES[rng.choice(("quiet", "quiet", "default"))],
        burst_s=rng.choice((300.0, 1800.0)),
    )


def long_face(short: Scenario) -> str:
    """Not fixed: its hosts list every second."""
    if short.face != "fixed":
        return short.face
    return "pull" if short.concurrency == 1 else "handler"


def concurrency_of(seed: int) -> int | Concurrency:
    """Drawn apart from everything else, so that all other seeds keep their histories."""
    rng = Random(f"concurrency {seed}")
    if rng.random() >= CONCURRENT:
        return 1
    keyless, ahead = rng.choice((UNORDERED, ORDERED)), rng.choice((16, 40, 1000))
    return Concurrency(rng.choice((2, 4, 16)), keyless, ahead)


def face_of(rounds: int, concurrency: int | Concurrency) -> str:
    face = FACES[rounds // 6 % len(FACES)]
    if face == "pull" and concurrency != 1:
        return "handler"  # the only one of the pull API that has concurrency
    return PULL_FACES[rounds // TURN % len(PULL_FACES)] if face == "pull" else face


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
        then = STOP if options.key_order is None or seed % 2 else STOP_KEY
        options = replace(options, poison=replace(options.poison, then=then))
    return options


def run(seed: int) -> Result:
    scenario = scenario_of(seed)
    options = replace(options_of(timing_of(seed)), concurrency=scenario.concurrency)
    options = with_user_code(seed, options)
    result = simulate(replace(scenario, options=options))
    return replace(result, scenario=scenario)
