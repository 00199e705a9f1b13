"""How many homes does this machine hold?

100,000 homes with five sensors each send 8,333 readings a second into a hub with 16 partitions.
`sift`, `watch` and `record` run in one Spark application on local[2], into files and SQLite; hub,
senders and pipeline are processes of one machine, started as users start them.

- **held**: the most homes, of those tried, with which no stage falls behind. What waits before a
  stage is what its hub has taken in less what it has behind it; over 100 seconds its mean may not
  grow by more than 2 seconds of intake, and never be 20. The goal is 100,000.
- **cores**, **CPU per reading**, **share of**: CPU time by process: hub, senders, Spark's JVM, its
  Python workers, and the pipeline's own process, which stores. Other work on the machine is told:
  with it, less is held.
- **sent to alert**, **sent to stored row**: from the moment at which a sensor's reading is sent
  until its alert is in the hub (break-ins and fires, which one reading raises), and until another
  program sees its row in the database.
- **alone**: what a stage takes in when all is there already, minutes of 100,000 homes: rows per
  second of its batches. A goal of 16,667 readings is twice what 100,000 homes send. `watch` and
  `record` take in what sift has kept, a sixth to a tenth of the readings.
- **on local-cluster**, **on a standalone cluster**: the same pipeline with fewer homes where two
  executors of one core each are processes of their own, beside local[2].
- **a day**: every reading of some homes in a simulated day, with readings that are late, repeated
  and malformed; the sums and alerts of the stream against those of judging each raw reading anew,
  in one batch. No difference is allowed.
- **recall**, **precision**: alerts of a simulated day against the truth that the town tells.
- **make**, **send**: CPU time of the readings of a minute, and the share of a core that the senders
  of 100,000 homes take in real time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import _homes_score
from benchmarks._figures import Figure, progress, run_parts, shorten
from benchmarks._homes_day import differences
from benchmarks._homes_places import standalone
from benchmarks._homes_plant import WHO, observe, plant, sending
from benchmarks._homes_span import READINGS_PER_HOME, Span, complaints, percentile
from benchmarks._homes_stages import Alone, bench
from benchmarks._processes import run_child, start_child
from pumphouse.homes.simulator.sensors import HomeSimulator

GOAL = 100_000
STAGES = "sift,watch,record"
STEPS = (100_000, 150_000, 200_000, 300_000)
SETTLE_S, WATCH_S = 20.0, 100.0
EVENING = 29_866_560 + 18 * 60  # a Tuesday
DAY = 1440
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


def least(name: str, value: float, unit: str, goal: float | None = None) -> Figure:
    return Figure(name, shorten(value), unit, goal=goal, lower_is_better=True)


# -- the whole pipeline ---------------------------------------------------------------------------


def whole(quick: bool) -> Iterator[Figure]:
    """More and more homes, until it falls behind."""
    steps, settle_s, seconds = ((2_000,), 1.0, 4.0) if quick else (STEPS, SETTLE_S, WATCH_S)
    seen, fine = list[Span](), True
    with plant("sift,record" if quick else STAGES) as running:  # each takes a while to start
        for homes in steps:
            progress(f"{homes:,} homes in real time")
            with sending(running, homes):
                seen.append(observe(running, homes, settle_s, seconds))
            if not (fine := kept_up(seen[-1])):
                break
    held = seen if fine else seen[:-1]
    most = held[-1].homes if held else 0
    yield Figure("homes held in real time", most, "homes", goal=None if quick else GOAL)
    shown = seen if quick else held
    for span in (*shown[:1], *shown[1:][-1:]):
        yield from of_the_whole(span)


def kept_up(span: Span) -> bool:
    wrong = complaints(span)
    for line in wrong:
        progress(f"{span.homes:,} homes: {line}")
    return not wrong


def of_the_whole(span: Span) -> Iterator[Figure]:
    name = f"{span.homes:,} homes"
    yield Figure(f"{name}: readings", shorten(span.readings / span.seconds), "1/s")
    yield Figure(f"{name}: kept by sift", shorten(span.kept * 100), "%")
    for stage in span.waits:
        yield least(f"{name}: behind, {stage}, at most", max(span.waits_s(stage)), "s")
    yield least(f"{name}: cores in use", span.cores, "cores")
    yield Figure(f"{name}: used by other work on this machine", shorten(span.others), "cores")
    yield least(f"{name}: CPU per reading", span.cpu_us(), "cpu-us")
    for who in WHO:
        share = span.cpu_s.get(who, 0.0) / sum(span.cpu_s.values()) * 100
        yield Figure(f"{name}: share of {who}", shorten(share), "cpu-%")
    yield from delays(name, span)


def delays(name: str, span: Span) -> Iterator[Figure]:
    for what, found in (("alert", span.alert_ms), ("stored row", span.stored_ms)):
        for share in (0.5, 0.99) if found else ():
            label = f"{name}: sent to {what}, p{share * 100:.0f} of {len(found):,}"
            yield least(label, percentile(found, share) / 1000, "s")


# -- elsewhere ------------------------------------------------------------------------------------


def places(quick: bool) -> Iterator[Figure]:
    homes, settle_s, seconds = (1_000, 3.0, 6.0) if quick else (50_000, 30.0, 60.0)
    seen = partial(there, homes=homes, settle_s=settle_s, seconds=seconds)
    beside = seen("local[2]")
    found = {LOCAL_CLUSTER: seen(LOCAL_CLUSTER)}
    with standalone() as (address, daemons):
        found["a standalone cluster"] = seen(address, daemons)
    for where, span in found.items():
        yield from side_by_side(where, span, beside)


def there(
    master: str, daemons: Sequence[int] = (), *, homes: int, settle_s: float, seconds: float
) -> Span:
    without_page = ("--conf", "spark.ui.enabled=false")
    with (
        plant(STAGES, master, *without_page, beside=daemons) as running,
        sending(running, homes),
    ):
        return observe(running, homes, settle_s, seconds)


def side_by_side(where: str, span: Span, local: Span) -> Iterator[Figure]:
    name = f"{span.homes:,} homes on {where}"
    held = span.homes if kept_up(span) else 0
    yield Figure(f"{name}: held", held, "homes", goal=span.homes)
    pairs = (
        ("behind, sift, at most", "s", max(span.waits_s("sift")), max(local.waits_s("sift"))),
        ("CPU per reading", "cpu-us", span.cpu_us(), local.cpu_us()),
        ("sent to stored row, p50", "s", half_s(span.stored_ms), half_s(local.stored_ms)),
    )
    for what, unit, ours, peer in pairs:
        yield replace(least(f"{name} vs local[2]: {what}", ours, unit), peer=shorten(peer))


def half_s(delays_ms: Sequence[int]) -> float:
    return percentile(delays_ms, 0.5) / 1000


# -- stages ---------------------------------------------------------------------------------------


def stages(quick: bool) -> Iterator[Figure]:
    homes, minutes = (5_000, 2) if quick else (GOAL, 6)
    sizes = {"events_max": 2_000} if quick else {"events_max": 100_000}
    with bench(HomeSimulator(homes), EVENING, minutes) as ready:
        found: Mapping[str, Alone] = {
            "sift": ready.sift(events_max=5_000 if quick else 200_000),
            "watch": ready.watch(**sizes),
            "record": ready.record(**sizes),
        }
    goal = None if quick else shorten(2 * GOAL * READINGS_PER_HOME)
    for name, one in found.items():
        what = "readings" if name == "sift" else "activities"
        limit = goal if name == "sift" else None
        yield Figure(f"{name} alone takes in", shorten(one.rate), f"{what}/s", goal=limit)
        yield least(f"{name} alone: CPU per row", one.cpu_us(), "cpu-us")
        for who in one.cpu_s:
            yield least(f"{name} alone: CPU per row, {who}", one.cpu_us(who), "cpu-us")


# -- right at the end -----------------------------------------------------------------------------


def day(quick: bool) -> Iterator[Figure]:
    homes, minutes = (50, 30) if quick else (300, DAY)
    for name, (total, wrong) in differences(homes, minutes).items():
        label = f"{minutes / 60:g} h of {homes:,} homes: {total:,} {name}, of which differ"
        yield least(label, wrong, "rows", goal=0)


def score(quick: bool) -> Iterator[Figure]:
    yield from _homes_score.figures(*((50, 120) if quick else (300, DAY)))


# -- senders --------------------------------------------------------------------------------------


def producer(quick: bool) -> Iterator[Figure]:
    homes, minutes, seconds = (5_000, 1, 2) if quick else (GOAL, 3, 60)
    with start_child("_homes_hub") as hub:
        place = f"{hub.result['connection']};EntityPath=sensors"
        told = run_child("_homes_producer", "costs", place, hub.pid, homes, minutes)
        live = run_child("_homes_producer", "realtime", place, hub.pid, homes, seconds)
    made, sent, taken = (
        told[f"{what}_cpu_s"] / told["events"] * 1e6 for what in ("make", "send", "hub")
    )
    plain = told["plain_cpu_s"] / told["plain_events"] * 1e6
    yield beside("make a reading vs send it, sender and hub", made, sent + taken, goal=1)
    yield beside("make a reading vs send it, the sender alone", made, sent)
    yield beside("send a reading vs one event at a time", sent, plain)
    name = f"{homes:,} homes in real time"
    goal = None if quick else shorten(0.99 * GOAL * READINGS_PER_HOME)
    yield Figure(f"{name}: sent", shorten(live["events"] / live["wall_s"]), "readings/s", goal=goal)
    yield least(f"{name}: senders", live["core_share"] * 100, "% of a core", goal=50)
    yield least(f"{name}: hub", live["hub_core_share"] * 100, "% of a core")
    yield least(f"{name}: late at most", live["behind_s_max"], "s")


def beside(name: str, ours: float, peer: float, goal: float | None = None) -> Figure:
    """Costs, in microseconds of CPU time."""
    return replace(least(name, ours, "cpu-us", goal), peer=shorten(peer))


PARTS = {
    "whole": whole,
    "stages": stages,
    "places": places,
    "day": day,
    "score": score,
    "producer": producer,
}

if __name__ == "__main__":
    sys.exit(run_parts(PARTS, ("producer", "whole")))
