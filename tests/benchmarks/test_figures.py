"""The figures of the benchmarks, their tables and pictures, and what they share."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import _machine, _processes, _report
from benchmarks._figures import (
    Figure,
    alternate,
    compare,
    compare_metrics,
    markdown_table,
    metrics_sides,
    run,
    run_parts,
    text_table,
)
from benchmarks._homes_clock import SimulatedTime, sent_ms
from benchmarks._homes_observation import (
    BatchTimes,
    Observation,
    batch_times,
    growth_s,
    percentile,
    problems,
)
from benchmarks._spark_start import INITIALIZING, STARTS_MAX, TOO_SLOW, start_query
from tests.benchmarks.short_forms import FIELDS

# -- figures ---------------------------------------------------------------------------------------


def test_medians_are_compared_and_the_rounds_give_the_range() -> None:
    figure = compare("speed", "events/cpu-s", [10, 90, 20], [1, 3, 2], goal=10)
    assert (figure.ours, figure.peer, figure.ratio) == (20, 2, 10)
    assert (figure.low, figure.high, figure.rounds) == (10, 30, 3)
    assert figure.met is True


def test_where_lower_is_better_the_ratio_turns_around() -> None:
    assert compare("time", "s", [2], [10], lower_is_better=True).ratio == 5


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("no goal", 1, "s", peer=2), None),
        (Figure("reached", 30, "x/s", peer=10, goal=3), True),
        (Figure("not quite", 29.9, "x/s", peer=10, goal=3), False),
        (Figure("a most", 1, "cpu-%", goal=1, lower_is_better=True), True),
        (Figure("too much", 1.1, "cpu-%", goal=1, lower_is_better=True), False),
        (Figure("a least", 5, "x/s", goal=6), False),
        (Figure("zero is a value", 0, "cpu-%", goal=1, lower_is_better=True), True),
    ],
)
def test_a_goal_is_for_the_ratio_or_without_a_peer_for_our_own_number(
    figure: Figure, met: bool | None
) -> None:
    assert figure.met is met


def test_a_line_of_json_is_the_figure() -> None:
    figure = compare("speed", "events/cpu-s", [123456.789], [3], goal=30)
    fields = json.loads(figure.to_json())
    assert fields | {"ratio": 41170, "goal": 30, "met": True, "ours": 123500} == fields
    assert set(fields) >= FIELDS
    assert Figure.from_json(figure.to_json()) == figure


def test_sides_take_turns() -> None:
    order = list[str]()
    sides = {name: partial(order.append, name) for name in ("ours", "peer")}
    assert alternate(2, sides) == {"ours": [None, None], "peer": [None, None]}
    assert order == ["ours", "peer", "ours", "peer"]


def test_tables_show_every_figure() -> None:
    figures = [compare("speed", "events/cpu-s", [1_200_000], [35_000], goal=25)]
    figures += [Figure("idle", 1.5, "cpu-%", goal=1, lower_is_better=True)]
    assert text_table(figures).splitlines() == [
        "figure       ours    peer  unit          ratio      range       goal  met",
        "speed   1,200,000  35,000  events/cpu-s   34.3  34.3-34.3         25  yes",
        "idle          1.5          cpu-%                           at most 1  NO",
    ]
    assert markdown_table(figures).splitlines()[2:] == [
        "| speed | 1,200,000 | 35,000 | events/cpu-s | 34.3 | 34.3-34.3 | 25 | yes |",
        "| idle | 1.5 |  | cpu-% |  |  | at most 1 | NO |",
    ]


@pytest.mark.parametrize(("goal", "status"), [(2, 0), (4, 1), (None, 0)])
def test_the_status_tells_whether_every_goal_is_met(
    goal: float | None, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(quick: bool) -> Iterator[Figure]:
        assert quick
        yield Figure("speed", 3, "x/s", peer=1, goal=goal)

    assert run(measure, ["--quick", "-o", "json"]) == status
    assert json.loads(capsys.readouterr().out)["ratio"] == 3


def only(name: str) -> Iterator[Figure]:
    yield Figure(name, 1, "x/s")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["one", "two", "three"]),
        (["--quick"], ["two"]),
        (["--parts", "three,one"], ["three", "one"]),
        (["--quick", "--parts", "one"], ["one"]),
    ],
)
def test_parts_can_be_chosen(
    words: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {name: lambda quick, name=name: only(name) for name in ("one", "two", "three")}
    assert run_parts(parts, ("two",), [*words, "-o", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["figure"] for line in lines] == names


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_parts({"one": lambda quick: only("one")}, (), ["--parts", "on"])
    assert "unknown part on: use one" in capsys.readouterr().err


# -- keeping up ------------------------------------------------------------------------------------


def span(waits: list[int], readings: int = 10_000, restarts: int = 0) -> Observation:
    """A hundred seconds of 1,200 homes, who send 100 readings a second; ten of them are kept."""
    came = {"sensors": readings, "activity": 1_000, "alerts": 0}
    return Observation(
        1_200, 100.0, came, {"sift": waits, "watch": [10, 20]}, {"hub": 1.0}, restarts
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (span([0, 400, 0, 400, 0, 400]), []),  # the lag of batches rises and falls
        (span([300, 300, 300, 400, 500, 500]), []),  # a growth of two seconds is allowed
        (span([300, 300, 300, 400, 500, 520]), ["lag of sift grew by 2.1 s"]),
        (span([0, 2_100, 0, 0, 0, 0]), ["sift had a lag of 21 s"]),
        (span([0], readings=9_600), ["sent 96 of 100 due readings/s"]),
        (span([0], restarts=2), ["stages failed 2 times"]),
    ],
)
def test_the_problems_of_a_pipeline_that_does_not_keep_up(
    found: Observation, words: list[str]
) -> None:
    messages = problems(found)
    assert len(messages) == len(words)
    assert all(word in line for word, line in zip(words, messages, strict=True))


def test_a_shorter_period_allows_less_growth() -> None:
    half = replace(span([300, 300, 300, 300, 420, 420], readings=5_000), seconds=50.0)
    assert problems(half) == ["the lag of sift grew by 1.2 s"]


def test_simulated_time_begins_at_an_hour_of_a_tuesday() -> None:
    start_ms = SimulatedTime(hour=19).start_ms()
    assert time.strftime("%A %H:%M", time.gmtime(start_ms / 1000)) == "Tuesday 19:00"


def test_a_reading_is_sent_at_the_next_full_second() -> None:
    assert [sent_ms(at) for at in (1_000_000, 1_000_250, 1_000_999)] == [1_001_000] * 3


def test_growth_is_that_of_the_mean() -> None:
    assert growth_s([0, 2, 9, 9, 4, 6]) == 4
    assert growth_s([1.5]) == 0


def test_a_percentile_is_a_value_that_was_there() -> None:
    assert [percentile(range(200), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 100, 198, 199]


def test_the_phases_of_batches_are_means_of_those_seen() -> None:
    seen = {4: {"addBatch": 10, "walCommit": 2}, 6: {"addBatch": 30}}
    assert batch_times(seen) == BatchTimes(3, {"addBatch": 20.0, "walCommit": 1.0})
    assert batch_times({}) == BatchTimes(0, {})


# -- processes -------------------------------------------------------------------------------------


def test_a_child_ends_with_the_block() -> None:
    with _processes.start_child("_hub", 2, 3) as hub:
        assert hub.result["connection"].startswith("Endpoint=sb://127.0.0.1:")
        assert _processes.cpu_s(hub.pid) > 0
        assert _processes.memory_bytes(hub.pid) > 1 << 20
    assert not Path(f"/proc/{hub.pid}").exists()


# -- the start of a streaming query ----------------------------------------------------------------


class StartedQuery:
    """A query that initializes until `sleep`, and then runs or has failed."""

    def __init__(self, failure: str | None = None) -> None:
        self.failure, self.initializing = failure, True

    @property
    def isActive(self) -> bool:
        return self.initializing or self.failure is None

    @property
    def status(self) -> dict[str, str]:
        return {"message": f"{INITIALIZING} sources" if self.initializing else "Processing"}

    def exception(self) -> Exception | None:
        failed = not self.initializing and self.failure is not None
        return RuntimeError(self.failure) if failed else None

    def sleep(self, seconds: float) -> None:
        self.initializing = False


@pytest.mark.parametrize(
    ("failures", "starts"),
    [
        ([None], 1),
        (["no such hub"], 1),
        ([f"Python worker {TOO_SLOW}"] * 2 + [None], 3),
        ([f"Python worker {TOO_SLOW}"] * (STARTS_MAX + 1), STARTS_MAX),
    ],
)
def test_a_query_whose_python_process_was_too_slow_is_started_again(
    failures: list[str | None], starts: int
) -> None:
    queries: list[StartedQuery] = []

    def start() -> Any:
        queries.append(StartedQuery(failures[len(queries)]))
        return queries[-1]

    query: Any = start_query(start, lambda seconds: queries[-1].sleep(seconds))
    assert (len(queries), query) == (starts, queries[-1])


# -- the page --------------------------------------------------------------------------------------


def test_the_machine_is_described_without_saying_whose_it_is() -> None:
    machine = _machine.describe()
    assert machine.keys() >= {"CPU", "cores", "memory", "OS", "Python"}
    assert (
        _machine.cpu_model("processor: 0\nmodel name\t: Some CPU @ 3 GHz\n") == "Some CPU @ 3 GHz"
    )
    assert _machine.kernel("6.1.0-custom-name") == "6.1.0"


def test_the_page_is_made_of_docstrings_pictures_and_tables(tmp_path: Path) -> None:
    figures = [compare("<fast> & cheap", "events/cpu-s", [50], [2], goal=20)]
    _report.write({"hub": figures}, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## CPU cost of the hub" in page
    assert "| <fast> & cheap | 50.0 | 2 | events/cpu-s | 25.0 |" in page
    assert "](benchmarks/hub.svg)" in page
    drawn = ElementTree.parse(tmp_path / "benchmarks" / "hub.svg").getroot()
    assert "<fast> & cheap" in [element.text for element in drawn.iter()]


def test_the_page_has_the_texts_of_the_docstrings() -> None:
    page = (_report.DOCS / "benchmarks.md").read_text()
    assert page == _report.with_current_texts(page), "run: python -m benchmarks._report"


@pytest.mark.parametrize(("words", "rounds"), [(["--metrics"], 20), (["--metrics", "3"], 3)])
def test_only_the_cost_of_metrics(
    words: list[str], rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def metrics(rounds: int) -> list[Figure]:
        return [compare("cost", "s", [1.0] * rounds, [1.0] * rounds, goal=0.98)]

    assert run(lambda quick: [], [*words, "-o", "json"], metrics) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == rounds
    with pytest.raises(SystemExit):
        run(lambda quick: [], ["--metrics", "0"], metrics)
    assert "at least 1 round (got 0)" in capsys.readouterr().err


def test_the_cost_of_metrics_and_its_noise() -> None:
    sides = metrics_sides(lambda metrics: [103.0 if metrics else 100.0, 200.0, 300.0])
    cost, noise = compare_metrics("cost", "s", [side() for side in sides.values()])
    assert (cost.figure, cost.ratio, cost.met) == ("cost with metrics vs without", 100 / 103, False)
    assert (noise.ratio, noise.goal) == (1, None)


def test_figures_of_a_curve_are_drawn_as_one(tmp_path: Path) -> None:
    figures = [
        Figure(f"{at} things", speed, "rows/s", curve="by <things>", at=at)
        for at, speed in ((64, 10.0), (1, 1000.0), (8, 100.0))
    ]
    _report.write({"hub": figures}, tmp_path)
    assert "](benchmarks/hub-curves.svg)" in (tmp_path / "benchmarks.md").read_text()
    drawn = ElementTree.parse(tmp_path / "benchmarks" / "hub-curves.svg").getroot()
    assert "by <things>" in [element.text for element in drawn.iter()]
    (line,) = (
        element.get("points") or "" for element in drawn.iter() if "points" in element.attrib
    )
    places = [tuple(map(float, one.split(","))) for one in line.split()]
    (x1, y1), (x2, y2), (x3, y3) = places  # from small to large: a power law is a straight line
    assert x1 < x2 < x3
    assert (x2 - x1, y2 - y1) == pytest.approx((x3 - x2, y3 - y2), abs=0.2)


def test_a_benchmark_without_figures_has_failed(tmp_path: Path) -> None:
    (tmp_path / "hub.json").write_text("")
    assert _report.read_results(tmp_path) == {"hub": []}
    assert "This benchmark failed" in _report.page({"hub": []}, date(2026, 1, 2))
