"""The number of homes that this machine can process in real time

100,000 homes with five sensors each send 8,333 readings a second into a hub with 16 partitions.
`sift`, `watch` and `record` run in one Spark application on local[2] and store into files and
SQLite. Hub, senders and pipeline are processes of one machine, started by the usual commands.

- **held**: the largest tested number of homes without growing lag. The lag of a stage is the number
  of events that its hub has received minus the number that it has processed. Over 100 seconds its
  mean may grow by at most 2 seconds of intake, and it must stay below 20 seconds. The goal is
  100,000.
- **cores**, **CPU per reading**, **share of**: CPU time by process: hub, senders, Spark's JVM, its
  Python workers, and the pipeline's own process, which stores. Other work on the machine is shown,
  because it lowers the number of homes held.
- **sent to alert**, **sent to stored row**: the time from sending a reading until its alert is in
  the hub (break-ins and fires, which one reading raises), and until another program can read its
  row in the database.
- **alone**: the rows per second of a single stage; its hub has some minutes of readings of 100,000
  homes.
  The goal of 16,667 readings is twice what 100,000 homes send. `watch` and `record` read what sift
  has kept, a sixth to a tenth of the readings.
- **on local-cluster**, **on a standalone cluster**: the same pipeline with fewer homes on two
  executors of one core each, compared with local[2].
- **a day**: every reading of some homes in a simulated day, with late, duplicate and malformed
  readings. The sums and alerts of the stream are compared with those of processing each raw reading
  in one batch. No difference is allowed.
- **recall**, **precision**: alerts of a simulated day against the ground truth of the simulator.
- **make**, **send**: CPU time of one minute of readings, and the share of a core that the senders
  of 100,000 homes use in real time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import _homes_score
from benchmarks._figures import Figure, progress, run_parts, shorten
from benchmarks._homes_cluster import standalone
from benchmarks._homes_day import differences
from benchmarks._homes_observation import READINGS_PER_HOME, Observation, percentile, problems
from benchmarks._homes_pipeline import PROCESS_KINDS, observe, sending, start_pipeline
from benchmarks._homes_stages import StageCost, bench
from benchmarks._processes import run_child, start_child
from pumphouse.homes.simulator.sensors import HomeSimulator

GOAL = 100_000
STAGES = "sift,watch,record"
STEPS = (100_000, 150_000, 200_000, 300_000)
SETTLE_S, WATCH_S = 20.0, 100.0
EVENING = 29_866_560 + 18 * 60  # a Tuesday
DAY = 1440
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


def lower_is_better(name: str, value: float, unit: str, goal: float | None = None) -> Figure:
    return Figure(name, shorten(value), unit, goal=goal, lower_is_better=True)


# -- the whole pipeline ---------------------------------------------------------------------------


def whole(quick: bool) -> Iterator[Figure]:
    """Measure more and more homes, until a stage falls behind."""
    steps, settle_s, seconds = ((2_000,), 1.0, 4.0) if quick else (STEPS, SETTLE_S, WATCH_S)
    observed, keeps_up = list[Observation](), True
    with start_pipeline("sift,record" if quick else STAGES) as running:  # fewer stages start faster
        for homes in steps:
            progress(f"{homes:,} homes in real time")
            with sending(running, homes):
                observed.append(observe(running, homes, settle_s, seconds))
            if not (keeps_up := kept_up(observed[-1])):
                break
    held = observed if keeps_up else observed[:-1]
    most = held[-1].homes if held else 0
    yield Figure("homes held in real time", most, "homes", goal=None if quick else GOAL)
    shown = observed if quick else held
    for each in (*shown[:1], *shown[1:][-1:]):
        yield from pipeline_figures(each)


def kept_up(observed: Observation) -> bool:
    reasons = problems(observed)
    for reason in reasons:
        progress(f"{observed.homes:,} homes: {reason}")
    return not reasons


def pipeline_figures(observed: Observation) -> Iterator[Figure]:
    name = f"{observed.homes:,} homes"
    yield Figure(f"{name}: readings", shorten(observed.readings / observed.seconds), "1/s")
    yield Figure(f"{name}: kept by sift", shorten(observed.kept * 100), "%")
    for stage in observed.waits:
        yield lower_is_better(
            f"{name}: behind, {stage}, at most", max(observed.waits_s(stage)), "s"
        )
    yield lower_is_better(f"{name}: cores in use", observed.cores, "cores")
    yield Figure(f"{name}: used by other work on this machine", shorten(observed.others), "cores")
    yield lower_is_better(f"{name}: CPU per reading", observed.cpu_us(), "cpu-us")
    for kind in PROCESS_KINDS:
        share = observed.cpu_s.get(kind, 0.0) / sum(observed.cpu_s.values()) * 100
        yield Figure(f"{name}: share of {kind}", shorten(share), "cpu-%")
    yield from delays(name, observed)


def delays(name: str, observed: Observation) -> Iterator[Figure]:
    for what, delays_ms in (("alert", observed.alert_ms), ("stored row", observed.stored_ms)):
        for share in (0.5, 0.99) if delays_ms else ():
            label = f"{name}: sent to {what}, p{share * 100:.0f} of {len(delays_ms):,}"
            yield lower_is_better(label, percentile(delays_ms, share) / 1000, "s")


# -- clusters ------------------------------------------------------------------------------------


def places(quick: bool) -> Iterator[Figure]:
    homes, settle_s, seconds = (1_000, 3.0, 6.0) if quick else (50_000, 30.0, 60.0)
    measure = partial(observe_on, homes=homes, settle_s=settle_s, seconds=seconds)
    local = measure("local[2]")
    clusters = {LOCAL_CLUSTER: measure(LOCAL_CLUSTER)}
    with standalone() as (address, daemons):
        clusters["a standalone cluster"] = measure(address, daemons)
    for where, observed in clusters.items():
        yield from compare_with_local(where, observed, local)


def observe_on(
    master: str, daemons: Sequence[int] = (), *, homes: int, settle_s: float, seconds: float
) -> Observation:
    without_page = ("--conf", "spark.ui.enabled=false")
    with (
        start_pipeline(STAGES, master, *without_page, beside=daemons) as running,
        sending(running, homes),
    ):
        return observe(running, homes, settle_s, seconds)


def compare_with_local(where: str, observed: Observation, local: Observation) -> Iterator[Figure]:
    name = f"{observed.homes:,} homes on {where}"
    held = observed.homes if kept_up(observed) else 0
    yield Figure(f"{name}: held", held, "homes", goal=observed.homes)
    pairs = (
        ("behind, sift, at most", "s", max(observed.waits_s("sift")), max(local.waits_s("sift"))),
        ("CPU per reading", "cpu-us", observed.cpu_us(), local.cpu_us()),
        ("sent to stored row, p50", "s", median_s(observed.stored_ms), median_s(local.stored_ms)),
    )
    for what, unit, ours, peer in pairs:
        yield replace(
            lower_is_better(f"{name} vs local[2]: {what}", ours, unit), peer=shorten(peer)
        )


def median_s(delays_ms: Sequence[int]) -> float:
    return percentile(delays_ms, 0.5) / 1000


# -- stages ---------------------------------------------------------------------------------------


def stages(quick: bool) -> Iterator[Figure]:
    homes, minutes = (5_000, 2) if quick else (GOAL, 6)
    sizes = {"events_max": 2_000} if quick else {"events_max": 100_000}
    with bench(HomeSimulator(homes), EVENING, minutes) as ready:
        costs: Mapping[str, StageCost] = {
            "sift": ready.sift(events_max=5_000 if quick else 200_000),
            "watch": ready.watch(**sizes),
            "record": ready.record(**sizes),
        }
    goal = None if quick else shorten(2 * GOAL * READINGS_PER_HOME)
    for name, cost in costs.items():
        what = "readings" if name == "sift" else "activities"
        limit = goal if name == "sift" else None
        yield Figure(f"{name} alone takes in", shorten(cost.rate), f"{what}/s", goal=limit)
        yield lower_is_better(f"{name} alone: CPU per row", cost.cpu_us(), "cpu-us")
        for kind in cost.cpu_s:
            yield lower_is_better(f"{name} alone: CPU per row, {kind}", cost.cpu_us(kind), "cpu-us")


# -- correctness -----------------------------------------------------------------------------


def day(quick: bool) -> Iterator[Figure]:
    homes, minutes = (50, 30) if quick else (300, DAY)
    for name, (total, wrong) in differences(homes, minutes).items():
        label = f"{minutes / 60:g} h of {homes:,} homes: {total:,} {name}, of which differ"
        yield lower_is_better(label, wrong, "rows", goal=0)


def score(quick: bool) -> Iterator[Figure]:
    yield from _homes_score.figures(*((50, 120) if quick else (300, DAY)))


# -- senders --------------------------------------------------------------------------------------


def producer(quick: bool) -> Iterator[Figure]:
    homes, minutes, seconds = (5_000, 1, 2) if quick else (GOAL, 3, 60)
    with start_child("_homes_hub") as hub:
        connection = f"{hub.result['connection']};EntityPath=sensors"
        costs = run_child("_homes_sender", "costs", connection, hub.pid, homes, minutes)
        live = run_child("_homes_sender", "realtime", connection, hub.pid, homes, seconds)
    made, sent, taken = (
        costs[f"{what}_cpu_s"] / costs["events"] * 1e6 for what in ("make", "send", "hub")
    )
    plain = costs["plain_cpu_s"] / costs["plain_events"] * 1e6
    yield compare_costs("make a reading vs send it, sender and hub", made, sent + taken, goal=1)
    yield compare_costs("make a reading vs send it, the sender alone", made, sent)
    yield compare_costs("send a reading vs one event at a time", sent, plain)
    name = f"{homes:,} homes in real time"
    goal = None if quick else shorten(0.99 * GOAL * READINGS_PER_HOME)
    yield Figure(f"{name}: sent", shorten(live["events"] / live["wall_s"]), "readings/s", goal=goal)
    yield lower_is_better(f"{name}: senders", live["core_share"] * 100, "% of a core", goal=50)
    yield lower_is_better(f"{name}: hub", live["hub_core_share"] * 100, "% of a core")
    yield lower_is_better(f"{name}: late at most", live["behind_s_max"], "s")


def compare_costs(name: str, ours: float, peer: float, goal: float | None = None) -> Figure:
    """Two costs in microseconds of CPU time."""
    return replace(lower_is_better(name, ours, "cpu-us", goal), peer=shorten(peer))


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
