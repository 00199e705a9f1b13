"""Offsets: no event is read twice or left out, and the parts of a limit sum to it."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.spark.offsets import (
    SMALL_TASK_SPANS,
    DataLoss,
    Span,
    apportion,
    assign_to_tasks,
    available_part,
    backlog,
    check_available,
    earliest,
    from_json,
    latest,
    limit_per_partition,
    not_before,
    prorate,
    scale_by_factors,
    spans_between,
    split_span,
    to_json,
)


def partition(first: int, last: int) -> PartitionProperties:
    return PartitionProperties("sensors", "0", first, last, "0", 0, last < first)


@st.composite
def waiting(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int]]:
    """A start and an end, with backlogs from none to huge."""
    names = [str(number) for number in range(draw(st.integers(1, 12)))]
    start = {name: draw(st.integers(0, 1 << 40)) for name in names}
    counts = st.one_of(st.integers(-3, 5), st.integers(0, 1 << 40))
    return start, {name: start[name] + draw(counts) for name in names}


# -- JSON -----------------------------------------------------------------------------------------


def test_offsets_have_the_form_of_the_scala_connector() -> None:
    offsets = {"10": 3, "2": 87, "0": 120}
    assert json.dumps(to_json("sensors", offsets)) == '{"sensors": {"0": 120, "2": 87, "10": 3}}'
    assert from_json("sensors", '{"sensors":{"0":120,"2":87,"10":3}}') == offsets
    assert from_json("Sensors", {"sensors": {"0": 120}}) == {"0": 120}


@given(st.dictionaries(st.integers(0, 2000).map(str), st.integers(0, 1 << 62)))
def test_offsets_survive_a_round_trip_through_json(offsets: dict[str, int]) -> None:
    assert from_json("h", json.dumps(to_json("h", offsets))) == offsets


def test_the_checkpoint_of_another_hub_is_refused() -> None:
    with pytest.raises(OptionError, match=r"checkpoint is of hub meters, .* reads hub sensors"):
        from_json("sensors", '{"meters": {"0": 1}}')


@pytest.mark.parametrize("wrong", ["", "[]", "7", '{"sensors": 7}', '{"sensors": {"0": "x"}}'])
def test_an_invalid_offset_is_refused(wrong: str) -> None:
    with pytest.raises(OptionError, match="invalid offset in the checkpoint"):
        from_json("sensors", wrong)


# -- the ends of a partition ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "first", "end"),
    [
        (partition(0, -1), 0, 0),  # never an event
        (partition(0, 9), 0, 10),
        (partition(5, 9), 5, 10),  # retention removed five
        (partition(10, 9), 10, 10),  # retention removed all
    ],
)
def test_the_earliest_and_latest_sequence_of_a_partition(
    state: PartitionProperties, first: int, end: int
) -> None:
    assert (earliest(state), latest(state)) == (first, end)


# -- limits ---------------------------------------------------------------------------------------


@given(waiting(), st.integers(1, 1 << 41))
def test_the_parts_sum_to_the_limit(
    both: tuple[dict[str, int], dict[str, int]], limit: int
) -> None:
    start, end = both
    backlogs = backlog(start, end)
    taken = backlog(start, prorate(start, end, limit))
    assert sum(taken.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= taken[name] <= backlogs[name] for name in end)
    if limit >= len(end):
        assert all(taken[name] for name in end if backlogs[name])  # no partition starves


@given(waiting(), st.integers(1, 100))
def test_repeated_limits_reach_the_end(
    both: tuple[dict[str, int], dict[str, int]], limit: int
) -> None:
    start, end = both
    end = {name: min(number, start[name] + 30) for name, number in end.items()}
    for _ in range(sum(backlog(start, end).values()) // limit + 1):
        start = prorate(start, end, limit)
    assert backlog(start, end) == dict.fromkeys(end, 0)


def test_a_limit_is_divided_in_proportion_to_the_backlogs() -> None:
    start = dict.fromkeys("012", 0)
    assert prorate(start, {"0": 600, "1": 300, "2": 100}, 100) == {"0": 60, "1": 30, "2": 10}


def test_a_limit_below_the_number_of_partitions_serves_the_longest_backlogs() -> None:
    start = dict.fromkeys("012", 0)
    assert prorate(start, {"0": 1, "1": 9, "2": 5}, 2) == {"0": 0, "1": 1, "2": 1}


@given(st.dictionaries(st.text("0123456789", min_size=1), st.integers(0, 1 << 50)), st.integers(0))
def test_apportioned_parts_sum_to_the_limit(backlogs: dict[str, int], limit: int) -> None:
    parts = apportion(backlogs, limit)
    assert sum(parts.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= parts[name] <= backlogs[name] for name in backlogs)


def test_slow_partitions_get_fewer_events_but_at_least_one() -> None:
    start, end = {"0": 10, "1": 10, "2": 10, "3": 10}, {"0": 110, "1": 110, "2": 11, "3": 10}
    factors = {"0": 0.25, "2": 0.01, "3": 0.01}
    assert scale_by_factors(end, start, factors) == {"0": 35, "1": 110, "2": 11, "3": 10}


def test_each_partition_is_limited() -> None:
    assert limit_per_partition({"0": 5, "1": 5}, {"0": 100, "1": 7}, 10) == {"0": 15, "1": 7}


def test_an_end_is_never_before_the_start() -> None:
    assert not_before({"0": 9, "1": 4}, {"0": 7, "2": 3}) == {"0": 9, "1": 4, "2": 3}


# -- spans ----------------------------------------------------------------------------------------


def test_the_spans_of_a_batch() -> None:
    spans = spans_between({"0": 5, "1": 9, "10": 0, "2": 8}, {"0": 7, "1": 9, "10": 4, "2": 3})
    assert spans == [
        Span("0", 5, 7),
        Span("10", 0, 4),
    ]  # 1 has no new event, 2 ends before its start


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 10))
def test_every_span_is_assigned_once(counts: list[int], per_task: int) -> None:
    work = [Span(str(number), 0, count) for number, count in enumerate(counts)]
    tasks = assign_to_tasks(work, per_task)
    assert (
        sorted((span for task in tasks for span in task), key=lambda span: int(span.partition))
        == work
    )
    assert all(1 <= len(task) <= per_task for task in tasks)
    assert len(tasks) == -(-len(work) // per_task)


@pytest.mark.parametrize(
    ("partitions", "events", "tasks"),
    [
        (1, 5, 1),
        (4, 5, 1),
        (16, 20, 2),
        (64, 5, 8),
        (16, 125, 2),
        (16, 250, 4),
        (16, 1000, 16),
        (4, 100_000, 4),
    ],
)
def test_few_events_are_read_by_few_tasks(partitions: int, events: int, tasks: int) -> None:
    spans = [Span(str(number), 0, events) for number in range(partitions)]
    assert len(assign_to_tasks(spans)) == tasks


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_every_span_is_assigned_once_without_a_chosen_number(counts: list[int]) -> None:
    work = [Span(str(number), 0, count) for number, count in enumerate(counts)]
    tasks = assign_to_tasks(work)
    assert sorted(map(repr, (span for task in tasks for span in task))) == sorted(map(repr, work))
    assert all(1 <= len(task) <= SMALL_TASK_SPANS for task in tasks)
    assert assign_to_tasks(work) == tasks  # a repeated batch


def test_tasks_are_of_about_equal_size() -> None:
    work = [Span(name, 0, count) for name, count in zip("0123", (100, 90, 10, 5), strict=True)]
    assert sorted(sum(span.count for span in task) for task in assign_to_tasks(work, 2)) == [
        100,
        105,
    ]


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 50))
def test_the_partsof_a_span_cover_it(first: int, count: int, pieces: int) -> None:
    parts = split_span(Span("0", first, first + count), pieces)
    assert parts[0].first == first
    assert parts[-1].last == first + count
    assert all(piece.last == following.first for piece, following in pairwise(parts))
    assert all(piece.count for piece in parts)
    assert len(parts) == min(pieces, count)


# -- data loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "state", "reason", "left"),
    [
        (Span("0", 5, 9), partition(5, 20), None, Span("0", 5, 9)),
        (Span("0", 5, 21), partition(0, 20), None, Span("0", 5, 21)),
        (Span("0", 5, 9), partition(7, 20), "removed events 5 to 6", Span("0", 7, 9)),
        (Span("0", 5, 9), partition(12, 20), "removed events 5 to 8", Span("0", 12, 12)),
        (Span("0", 5, 9), partition(21, 20), "removed events 5 to 8", Span("0", 21, 21)),
        (Span("0", 50, 60), partition(0, 20), "the hub was re-created", Span("0", 0, 21)),
        (Span("0", 5, 60), partition(0, 20), "the hub was re-created", Span("0", 5, 21)),
        (Span("0", 5, 9), partition(0, -1), "the hub was re-created", Span("0", 0, 0)),
    ],
)
def test_data_loss_is_found_and_the_available_part_is_left(
    span: Span, state: PartitionProperties, reason: str | None, left: Span
) -> None:
    if reason is None:
        check_available(span, state)
    else:
        with pytest.raises(DataLoss, match=f"partition 0: .*{reason}.*failOnDataLoss=false"):
            check_available(span, state)
    assert available_part(span, state) == left
