"""What does it cost to keep events on disk?

- **intake**: events per second (wall time: the disk is waited for, not computed) into a hub that
  syncs before it acknowledges, beside the same hub in memory. One producer sends batches of 100
  events of 1 KiB with 20 of them under way. The goal is a ratio of 0.6.
- **restart**: how long a hub takes to be ready on a directory that holds ten million events of
  100 B in 16 partitions, and the memory it then uses, before and after all of them were read.
- **long run**: memory after many appends under retention by size, over the memory half-way.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks._figures import Figure, alternate, compare, run, say
from benchmarks._processes import answer, memory_bytes, waiting

BATCH_EVENTS, BODY_BYTES, OUTSTANDING = 100, 1024, 20
SMALL_BYTES = 100
INTAKE_GOAL = 0.6
RESTART_GOAL_S = 5
MEMORY_GOAL_MIB = 300
FLAT_GOAL = 1.1
EVENTS_PER_S = "events/s"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int
    batches: int
    kept_events: int
    run_batches: int  # of the long run, each half
    answer_s: float


FULL = Plan(rounds=5, batches=3_000, kept_events=10_000_000, run_batches=15_000, answer_s=300.0)
QUICK = Plan(rounds=2, batches=300, kept_events=200_000, run_batches=600, answer_s=120.0)


@contextmanager
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pumphouse-bench-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def intake(sync: str, plan: Plan) -> float:
    """Events per second into one partition; `sync` is "memory" or a sync mode."""
    with directory() as data, waiting("_hub", 1, 1, data, sync) as hub:
        connection, batches = hub.said["connection"], plan.batches
        said = flood(connection, hub.pid, batches, plan)
    return said["events"] / said["wall_s"]


def flood(connection: str, pid: int, batches: int, plan: Plan) -> dict[str, float]:
    return answer(
        "_flood", connection, pid, batches, BATCH_EVENTS, BODY_BYTES, OUTSTANDING,
        timeout_s=plan.answer_s,
    )  # fmt: skip


def restart_figures(plan: Plan) -> Iterator[Figure]:
    with directory() as data:
        say(f"filling a directory with {plan.kept_events:,} events")
        answer("_fill", data, plan.kept_events, SMALL_BYTES, timeout_s=plan.answer_s)
        say("restarting")
        with waiting("_hub", 1, 16, data, "always") as hub:
            fresh = memory_bytes(hub.pid) / 2**20
            first = plan.kept_events // 16 // 1000 * 1000
            answer("_raw", hub.said["connection"], hub.pid, first, 1, timeout_s=plan.answer_s)
            read = memory_bytes(hub.pid) / 2**20
            ready_s = hub.said["start_s"]
    events = f"{plan.kept_events:,} events on disk"
    yield Figure(f"{events}: ready after", round(ready_s, 2), "s", goal=RESTART_GOAL_S,
                 lower_is_better=True)  # fmt: skip
    yield Figure(f"{events}: memory", round(fresh), "MiB", goal=MEMORY_GOAL_MIB,
                 lower_is_better=True)  # fmt: skip
    yield Figure(f"{events}: memory after a partition was read", round(read), "MiB",
                 goal=MEMORY_GOAL_MIB, lower_is_better=True)  # fmt: skip


def long_run_figure(plan: Plan) -> Figure:
    with directory() as data, waiting("_hub", 1, 1, data, "interval", 64 << 20) as hub:
        sizes = []
        for half in ("first", "second"):
            say(f"long run, {half} half")
            flood(hub.said["connection"], hub.pid, plan.run_batches, plan)
            sizes.append(memory_bytes(hub.pid))
    growth = sizes[1] / sizes[0]
    return Figure("memory at the end of a long run over half-way", round(growth, 3), "times",
                  goal=FLAT_GOAL, lower_is_better=True)  # fmt: skip


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    modes = ("always", "interval", "never", "memory")
    found = alternate(plan.rounds, {mode: partial(intake, mode, plan) for mode in modes})
    for mode in modes[:-1]:
        yield compare(
            f"intake with sync={mode} vs in memory",
            EVENTS_PER_S,
            found[mode],
            found["memory"],
            goal=INTAKE_GOAL if mode == "always" else None,
        )
    yield from restart_figures(plan)
    yield long_run_figure(plan)


if __name__ == "__main__":
    sys.exit(run(measure))
