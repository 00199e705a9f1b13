"""The number of homes that this machine can process in real time

100,000 homes with five sensors each send 8,333 readings a second into a hub with 16 partitions.
`sift`, `watch` and `record` run in one Spark application on local[2] and store into files and
SQLite. Hub, senders and pipeline are processes of one machine, started by the usual commands.

- **held**: the largest tested number of homes without growing lag. The lag of a stage is the number
  of events that its hub has received minus the number that it has processed. Its mean may grow by
  at most 2 seconds of intake in 100 seconds, and it must stay below 20 seconds. Each number of
  homes has a table of its own, also the first one that is not held: its figures show what limits
  it. Each number is measured for 100 seconds.
  `--steps 50000,600000` measures other numbers.
- **kept by sift**: the share of readings that become activities. It depends on the hour: 10 % at
  night, 18 % in the evening, and 13 % in a whole day. So the simulated time begins at 15:00 of a
  Tuesday, where the share is about that of a day. `--hour 19` measures the evening.
- **cores**, **CPU per reading**, **share of**: CPU time by process: hub, senders, Spark's JVM, its
  Python workers, and the pipeline's own process, which stores. Other work on the machine is shown,
  because it lowers the number of homes held.
- **batches**: the batches of a stage per minute, and the mean time of each phase of a batch, by
  Spark's names. `addBatch` contains the work of the tasks, `triggerExecution` everything.
- **memory**: at the end, by process. Memory that several processes share counts once (PSS).
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
- **vs the other version**: with `--against COMMAND` the part `whole` compares another version of
  Pumphouse with this one, in turns: hub, senders and pipeline. COMMAND is the path of its command
  `pumphouse`.
- **make**, **send**: CPU time of one minute of readings, and the share of a core that the senders
  of 100,000 homes use in real time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks import _homes_score
from benchmarks._figures import (
    Figure,
    Measure,
    alternate,
    parts_command_line,
    progress,
    run_selected,
    shorten,
)
from benchmarks._homes_clock import HOUR
from benchmarks._homes_cluster import standalone
from benchmarks._homes_day import differences
from benchmarks._homes_observation import READINGS_PER_HOME, Observation, percentile, problems
from benchmarks._homes_pipeline import (
    PROCESS_KINDS,
    PUMPHOUSE,
    observe,
    sending,
    start_pipeline,
)
from benchmarks._homes_stages import StageCost, bench
from benchmarks._processes import run_child, start_child
from pumphouse.homes.simulator.sensors import HomeSimulator

SOME = 100_000  # homes, where not all steps are measured
GOAL = 600_000
CPU_US_GOAL = 35.0  # at GOAL homes
ALERT_P50_S, ALERT_P99_S = 1.0, 2.0  # at SOME homes
STAGES = "sift,watch,record"
STEPS = (50_000, 100_000, 300_000, 600_000, 800_000)
# In half the time, the batches of a stage every 5 s looked like a growing lag.
SETTLE_S, WATCH_S = 20.0, 100.0
ROUNDS = 2  # of a comparison with another version
EVENING = 29_866_560 + 18 * 60  # a Tuesday
DAY = 1440
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line selects."""

    steps: tuple[int, ...] = STEPS
    recording: Path | None = None  # of the JVM
    against: Path | None = None  # the command of another version
    hour: int = HOUR

    def arguments(self) -> tuple[str, ...]:
        """Further arguments of `pumphouse homes run`."""
        if self.recording is None:
            return ()
        flight = f"-XX:StartFlightRecording=filename={self.recording.absolute()},settings=profile"
        return ("--conf", f"spark.driver.extraJavaOptions=-XX:+UseParallelGC {flight}")


def lower_is_better(name: str, value: float, unit: str, goal: float | None = None) -> Figure:
    return Figure(name, shorten(value), unit, goal=goal, lower_is_better=True)


# -- the whole pipeline ---------------------------------------------------------------------------


def whole(quick: bool, options: Options | None = None) -> Iterator[Figure]:
    """Measure more and more homes, until a stage falls behind."""
    options = options or Options()
    if options.against is not None:
        yield from chain.from_iterable(compare_versions(options, homes) for homes in options.steps)
        return
    steps, settle_s = ((2_000,), 1.0) if quick else (options.steps, SETTLE_S)
    most = 0
    # Fewer stages start faster.
    stages, arguments = "sift,record" if quick else STAGES, options.arguments()
    with start_pipeline(stages, "local[2]", *arguments, hour=options.hour) as running:
        for homes in steps:
            progress(f"{homes:,} homes in real time")
            with sending(running, homes):
                observed = observe(running, homes, settle_s, 4.0 if quick else WATCH_S)
            held = kept_up(observed)
            most = homes if held else most
            yield from pipeline_figures(observed, held)
            if not held:
                break
    yield Figure("homes held in real time", most, "homes", goal=None if quick else GOAL)


def kept_up(observed: Observation) -> bool:
    reasons = problems(observed)
    for reason in reasons:
        progress(f"{observed.homes:,} homes: {reason}")
    return not reasons


def pipeline_figures(observed: Observation, held: bool) -> Iterator[Figure]:
    homes = f"{observed.homes:,} homes"
    of_step = (
        *load_figures(observed, held),
        *cost_figures(observed),
        *delays(observed),
        *batch_figures(observed),
    )
    for figure in of_step:
        yield replace(figure, figure=f"{homes}: {figure.figure}", group=homes)


def load_figures(observed: Observation, held: bool) -> Iterator[Figure]:
    yield Figure("held", observed.homes if held else 0, "homes")
    yield Figure("readings", shorten(observed.readings / observed.seconds), "1/s")
    yield Figure("kept by sift", shorten(observed.kept * 100), "%")
    for stage in observed.waits:
        yield lower_is_better(f"behind, {stage}, at most", max(observed.waits_s(stage)), "s")


def cost_figures(observed: Observation) -> Iterator[Figure]:
    yield lower_is_better("cores in use", observed.cores, "cores")
    yield Figure("used by other work on this machine", shorten(observed.others), "cores")
    goal = CPU_US_GOAL if observed.homes == GOAL else None
    per_reading = lower_is_better("CPU per reading", observed.cpu_us(), "cpu-us", goal)
    yield replace(per_reading, curve="CPU per reading in us, by homes", at=observed.homes)
    for kind in PROCESS_KINDS:
        share = observed.cpu_s.get(kind, 0.0) / sum(observed.cpu_s.values()) * 100
        yield Figure(f"share of {kind}", shorten(share), "cpu-%")
    for kind, megabytes in observed.memory_mb.items():
        yield Figure(f"memory of {kind}", shorten(megabytes), "MB")


def batch_figures(observed: Observation) -> Iterator[Figure]:
    for stage, times in observed.batches.items():
        per_minute = times.count / observed.seconds * 60
        yield Figure(f"{stage}: batches", shorten(per_minute), "1/min")
        for phase, mean_ms in times.phases_ms.items():
            yield lower_is_better(f"{stage}: {phase}", mean_ms, "ms")


def delays(observed: Observation) -> Iterator[Figure]:
    goals = {0.5: ALERT_P50_S, 0.99: ALERT_P99_S} if observed.homes == SOME else {}
    for what, delays_ms in (("alert", observed.alert_ms), ("stored row", observed.stored_ms)):
        for share in (0.5, 0.99) if delays_ms else ():
            label = f"sent to {what}, p{share * 100:.0f} of {len(delays_ms):,}"
            goal = goals.get(share) if what == "alert" else None
            yield lower_is_better(label, percentile(delays_ms, share) / 1000, "s", goal)


# -- another version ------------------------------------------------------------------------------


def compare_versions(options: Options, homes: int) -> Iterator[Figure]:
    program = options.against or PUMPHOUSE
    measure = partial(observe_version, homes=homes, hour=options.hour)
    sides = {"ours": partial(measure, PUMPHOUSE), "peer": partial(measure, program)}
    observed = alternate(ROUNDS, sides)
    name = f"{homes:,} homes vs the other version"
    cpu_us = {side: min(each.cpu_us() for each in rounds) for side, rounds in observed.items()}
    yield version_figure(f"{name}: CPU per reading", "cpu-us", cpu_us, goal=2)
    delays_ms = {
        side: [ms for each in rounds for ms in each.alert_ms] for side, rounds in observed.items()
    }
    for share in (0.5, 0.99):
        seconds = {side: percentile(ms, share) / 1000 for side, ms in delays_ms.items()}
        yield version_figure(f"{name}: sent to alert, p{share * 100:.0f}", "s", seconds)


def observe_version(program: Path, homes: int, hour: int) -> Observation:
    with start_pipeline(STAGES, program=program, hour=hour) as running, sending(running, homes):
        return observe(running, homes, SETTLE_S, WATCH_S)


def version_figure(
    name: str, unit: str, sides: Mapping[str, float], goal: float | None = None
) -> Figure:
    return replace(lower_is_better(name, sides["ours"], unit, goal), peer=shorten(sides["peer"]))


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
    homes, minutes = (5_000, 2) if quick else (SOME, 6)
    sizes = {"events_max": 2_000} if quick else {"events_max": 100_000}
    with bench(HomeSimulator(homes), EVENING, minutes) as ready:
        costs: Mapping[str, StageCost] = {
            "sift": ready.sift(events_max=5_000 if quick else 200_000),
            "watch": ready.watch(**sizes),
            "record": ready.record(**sizes),
        }
    goal = None if quick else shorten(2 * SOME * READINGS_PER_HOME)
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
    homes, minutes, seconds = (5_000, 1, 2) if quick else (SOME, 3, 60)
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
    goal = None if quick else shorten(0.99 * SOME * READINGS_PER_HOME)
    yield Figure(f"{name}: sent", shorten(live["events"] / live["wall_s"]), "readings/s", goal=goal)
    yield lower_is_better(f"{name}: senders", live["core_share"] * 100, "% of a core", goal=50)
    yield lower_is_better(f"{name}: hub", live["hub_core_share"] * 100, "% of a core")
    yield lower_is_better(f"{name}: late at most", live["behind_s_max"], "s")


def compare_costs(name: str, ours: float, peer: float, goal: float | None = None) -> Figure:
    """Two costs in microseconds of CPU time."""
    return replace(lower_is_better(name, ours, "cpu-us", goal), peer=shorten(peer))


def main(argv: Sequence[str] | None = None) -> int:
    parser = parts_command_line(PARTS, IN_SHORT)
    steps = ",".join(map(str, STEPS))
    parser.add_argument("--steps", default=steps, metavar="HOMES", help="of the part `whole`")
    parser.add_argument("--jfr", type=Path, metavar="FILE", help="record the JVM of `whole`")
    text = "hour of the simulated day at which `whole` begins"
    parser.add_argument(
        "--hour", type=int, choices=range(24), default=HOUR, metavar="HOUR", help=text
    )
    text = "compare `whole` with another version: the path of its command pumphouse"
    parser.add_argument("--against", type=Path, metavar="COMMAND", help=text)
    chosen = parser.parse_args(argv)
    steps_chosen = tuple(map(int, chosen.steps.split(",")))
    options = Options(steps_chosen, chosen.jfr, chosen.against, chosen.hour)
    parts: dict[str, Measure] = {**PARTS, "whole": partial(whole, options=options)}
    return run_selected(parts, IN_SHORT, parser, chosen)


PARTS: dict[str, Measure] = {
    "whole": whole,
    "stages": stages,
    "places": places,
    "day": day,
    "score": score,
    "producer": producer,
}
IN_SHORT = ("producer", "whole")

if __name__ == "__main__":
    sys.exit(main())
