"""How many homes does this machine hold in real time?

100,000 homes with five sensors each send 8,333 readings a second into a hub with 16 partitions;
`sift`, `watch` and `record` run in one Spark application on local[2], with files and SQLite.

- **homes held**: the whole pipeline in real time while its lag stays bounded; the goal is 100,000.
- **share of the CPU** by part, and CPU time per reading.
- **delay**: from the reading to the alert in the hub, and from the hub's intake to the stored row.
- **alone**: what a stage takes in when everything is there already; for `sift` the goal is twice
  what 100,000 homes send.
- **elsewhere**: the same on `local-cluster[2,1,1024]`.
- **a day**: all readings of 300 homes in a simulated day; the sums that the stream kept against
  those of counting every raw reading anew. The goal is no difference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks._figures import Figure, run, say, shorten
from benchmarks._homes_day import differences
from benchmarks._homes_run import EVENTS_PER_HOME, PARTS, Plant, Span, plant, sending

HOMES = 100_000
STEPS = (100_000, 150_000, 200_000)
ALL = "sift,watch,record"
LAG_S = 10.0  # of readings: more than this at the end, and it grows
BACKLOG_MINUTES = 3


def settle(what: Plant, seconds: float) -> Span:
    """A while to warm up, which nobody counts, and one that counts."""
    what.until(lambda look: all((one["batch"] or 0) >= 3 for one in look.values()))
    return what.watch(seconds)


def whole(seconds: float, homes: int, master: str = "local[2]") -> Span:
    with plant(ALL, master) as (running, connection), sending(running, connection, homes):
        return settle(running, seconds)


def held(span: Span, homes: int) -> bool:
    return span.lag_end <= homes * EVENTS_PER_HOME * LAG_S


def real_time(seconds: float, steps: tuple[int, ...]) -> Iterator[Figure]:
    """More and more homes, until it falls behind."""
    best, seen = 0, None
    for homes in steps:
        say(f"{homes:,} homes in real time")
        span = whole(seconds, homes)
        if not held(span, homes):
            break
        best, seen = homes, span if seen is None else seen
    yield Figure("homes held by the whole pipeline", best, "homes", goal=HOMES)
    if seen is not None:
        yield from details(seen, steps[0])


def details(span: Span, homes: int) -> Iterator[Figure]:
    total = sum(span.cpu_s.values())
    yield Figure(f"readings taken in, {homes:,} homes", shorten(span.events / span.seconds), "1/s")
    yield Figure("lag at its most", span.lag_events, "readings", lower_is_better=True)
    yield Figure("CPU per reading", shorten(span.cpu_us_per_event), "cpu-us", lower_is_better=True)
    for part in PARTS:
        share = span.cpu_s[part] / total * 100
        yield Figure(f"CPU share of {part}", shorten(share), "%")
    cores = total / span.seconds
    yield Figure("cores in use", shorten(cores), "cores", lower_is_better=True)
    for name, delay in (("alert", span.alert_ms), ("stored row", span.stored_ms)):
        if delay is not None:
            yield Figure(f"delay to the {name}, p50", shorten(delay[0]), "ms", lower_is_better=True)
            yield Figure(f"delay to the {name}, p99", shorten(delay[1]), "ms", lower_is_better=True)


def sift_alone(minutes: float) -> Iterator[Figure]:
    """What is there already, as fast as it goes."""
    with plant("sift", "local[2]", "--accelerated") as (running, connection):
        with sending(running, connection, HOMES, "--rate", "max", "--minutes", minutes):
            span = settle(running, 10)
        took = span.able["sift"]
    goal = 2 * HOMES * EVENTS_PER_HOME
    yield Figure("sift alone takes in", shorten(took), "readings/s", goal=shorten(goal))


def measure(quick: bool) -> Iterator[Figure]:
    if quick:
        yield from real_time(8, STEPS[:1])
        return
    yield from real_time(90, STEPS)
    yield from sift_alone(BACKLOG_MINUTES)
    span = whole(60, HOMES // 2, "local-cluster[2,1,1024]")
    kept = HOMES // 2 if held(span, HOMES // 2) else 0
    yield Figure("homes on local-cluster[2,1,1024]", kept, "homes", goal=HOMES // 2)
    yield Figure("a day of 300 homes: sums that differ", differences(300, 1440), "sums",
                 goal=0, lower_is_better=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(measure))
