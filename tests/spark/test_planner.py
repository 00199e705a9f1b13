"""The planner: the same answer to the same question, and every event in exactly one batch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import Position
from pumphouse.spark.offsets import DataLoss, Span
from pumphouse.spark.options import Limits, SourceOptions, read_source
from pumphouse.spark.planner import (
    HubSnapshot,
    Planner,
    ReadStatistics,
    batch_range,
    limit_events,
    next_end,
)

STRING = "Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=a2V5;EntityPath=sensors"
NOW_MS = 1_000_000


def view(*ranges: tuple[int, int], unavailable: tuple[str, ...] = ()) -> HubSnapshot:
    """Partitions by their oldest and newest event."""
    return HubSnapshot(
        {
            str(number): PartitionProperties(
                "sensors", str(number), first, last, "0", 0, last < first
            )
            for number, (first, last) in enumerate(ranges)
        },
        unavailable,
    )


def options(*, streaming: bool = True, **given: str) -> SourceOptions:
    return read_source({"connectionString": STRING, **given}, streaming=streaming, now_ms=NOW_MS)


def unasked(partition: str, position: Position) -> int:
    raise AssertionError(f"asked for {position} of {partition}")


def planner(**given: str) -> Planner:
    return Planner(options(streaming=True, **given), unasked)


# -- where a query starts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "start"),
    [
        ("earliest", {"0": 5, "1": 0}),
        ("latest", {"0": 10, "1": 0}),
        ("seq:7", {"0": 7, "1": 0}),  # as near as there is
        ("seq:99", {"0": 10, "1": 0}),
        ('{"seqNo": 7, "isInclusive": false}', {"0": 8, "1": 0}),
    ],
)
def test_where_a_query_starts(position: str, start: dict[str, int]) -> None:
    there = view((5, 9), (0, -1))
    assert planner(startingPosition=position).initial(there, NOW_MS) == start


def test_a_position_of_its_own_for_a_partition() -> None:
    plan = planner(startingPosition="latest", startingPositions='{"1": "earliest"}')
    assert plan.initial(view((5, 9), (3, 7)), NOW_MS) == {"0": 10, "1": 3}


def test_a_time_is_asked_of_the_hub() -> None:
    asked = []

    def resolve(partition: str, position: Position) -> int:
        asked.append((partition, position.kind, position.value))
        return 7

    plan = Planner(options(startingPosition="time:500000"), resolve)
    assert plan.initial(view((5, 9)), NOW_MS) == {"0": 7}
    assert asked == [("0", "time", "500000")]


def test_the_first_answer_stays() -> None:
    """Spark asks twice; "latest" must not be another event the second time."""
    plan = planner()
    assert plan.initial(view((0, 9)), NOW_MS) == {"0": 10}
    assert plan.initial(view((0, 50)), NOW_MS) == {"0": 10}


@pytest.mark.parametrize("position", ["latest", "time:2000000", "time:-15m", "seq:10", "offset:7"])
def test_an_unstable_start_is_journalled_first(position: str) -> None:
    plan = Planner(options(startingPosition=position), lambda partition, at: 10)
    start = plan.initial(view((0, 9)), NOW_MS)
    assert plan.latest(start, None, view((0, 50)), 0) == start  # an empty batch
    assert plan.latest(start, None, view((0, 50)), 0) == {"0": 51}


@pytest.mark.parametrize("position", ["earliest", "seq:0"])
def test_a_stable_start_costs_no_empty_batch(position: str) -> None:
    plan = planner(startingPosition=position)
    start = plan.initial(view((0, 9)), NOW_MS)
    assert plan.latest(start, None, view((0, 9)), 0) == {"0": 10}


def test_a_query_with_a_checkpoint_is_not_held_up() -> None:
    assert planner().latest({"0": 4}, None, view((0, 9)), 0) == {"0": 10}


@pytest.mark.parametrize("option", ["startingPositions", "endingPositions"])
def test_a_partition_that_is_not_there_is_named(option: str) -> None:
    plan = Planner(options(streaming=False, **{option: '{"7": "earliest"}'}), unasked)
    with pytest.raises(OptionError, match=f"{option} names partition 7, .* it reads 0, 1"):
        plan.initial(view((0, 9), (0, 9)), NOW_MS)


def test_a_chosen_partition_must_exist() -> None:
    with pytest.raises(OptionError, match="partitions names 4, and the hub has 0, 1"):
        planner(partitions="0,4").initial(view((0, 9), (0, 9)), NOW_MS)


# -- how far a batch goes -------------------------------------------------------------------------


def test_a_subset_of_partitions() -> None:
    plan = planner(partitions="1", startingPosition="earliest")
    there = view((0, 9), (0, 9))
    assert plan.initial(there, NOW_MS) == {"1": 0}
    assert plan.latest({"1": 0}, None, there, 0) == {"1": 10}
    assert plan.report(there) == {"1": 10}


def test_new_partitions_are_read_from_their_oldest_event() -> None:
    plan = planner()
    there = view((0, 9), (4, 6))
    journalled = plan.latest({"0": 5}, None, there, 0)
    assert journalled == {"0": 10, "1": 4}
    assert plan.work({"0": 5}, journalled, there) == [Span("0", 5, 10)]
    end = plan.latest(journalled, None, there, 0)
    assert end == {"0": 10, "1": 7}
    assert plan.work(journalled, end, there) == [Span("1", 4, 7)]


def test_a_batch_with_a_new_partition_is_repeated_as_it_was() -> None:
    """Retention has taken the partition's oldest events meanwhile: that is not passed over."""
    start = {"0": 5}
    first = planner().latest(start, None, view((0, 9), (4, 6)), 0)
    second = planner().latest(first, None, view((0, 9), (4, 6)), 0)
    later = view((0, 9), (6, 6))
    assert planner().work(start, first, later) == [Span("0", 5, 10)]
    with pytest.raises(DataLoss, match="events 4 to 5 have left"):
        planner().work(first, second, later)


def test_a_partition_that_does_not_answer_stays_where_it_is() -> None:
    there = HubSnapshot(view((0, 9)).partitions, unavailable=("1",))
    plan = planner()
    end = plan.latest({"0": 0, "1": 3}, None, there, 0)
    assert end == {"0": 10, "1": 3}
    assert plan.work({"0": 0, "1": 3}, end, there) == [Span("0", 0, 10)]


def test_a_partition_that_answers_late_starts_where_it_would_have() -> None:
    """Not at its oldest event, as a new one would."""
    asked = []

    def resolve(partition: str, position: Position) -> int:
        asked.append((partition, str(position)))
        return 6

    chosen = options(startingPosition="latest", startingPositions='{"1": "latest"}')
    plan = Planner(chosen, resolve)
    start = plan.initial(HubSnapshot(view((0, 9)).partitions, unavailable=("1",)), NOW_MS)
    assert start == {"0": 10}
    there = view((0, 9), (0, 9))
    plan.latest(start, None, there, 0)  # journals the start
    journalled = plan.latest(start, None, there, 0)
    assert journalled == {"0": 10, "1": 6}  # a later run could not know where it was to start
    end = plan.latest(journalled, None, there, 0)
    assert end == {"0": 10, "1": 10}
    assert planner().work(journalled, end, there) == [Span("1", 6, 10)]
    assert set(asked) == {("1", f"time:{NOW_MS}")}


def test_a_query_of_one_batch_has_no_limit() -> None:
    plan = planner(maxEventsPerTrigger="5", minEventsPerTrigger="999")
    assert plan.latest({"0": 0}, None, view((0, 99)), 0, everything=True) == {"0": 100}


def test_the_limits() -> None:
    there = view((0, 999), (0, 99))
    start = {"0": 0, "1": 0}
    assert planner(maxEventsPerTrigger="110").latest(start, None, there, 0) == {"0": 100, "1": 10}
    assert planner().latest(start, 110, there, 0) == {"0": 100, "1": 10}  # Spark's own
    assert planner(maxEventsPerPartition="50").latest(start, None, there, 0) == {"0": 50, "1": 50}


def test_a_limit_in_bytes_is_kept_by_the_mean_size() -> None:
    limits = Limits(bytes=10_000)
    assert limit_events(limits, None, 4, ReadStatistics()) is None  # nothing is known yet
    assert limit_events(limits, None, 4, ReadStatistics(event_bytes=100)) == 100
    assert limit_events(limits, 30, 4, ReadStatistics(event_bytes=100)) == 30
    assert limit_events(limits, None, 4, ReadStatistics(event_bytes=1e9)) == 4  # one for each


def test_slow_partitions_get_less() -> None:
    limits = Limits(slow_adjustment=True)
    seen = ReadStatistics(factors={"1": 0.5})
    assert next_end({"0": 0, "1": 0}, {"0": 10, "1": 10}, limits, None, seen) == {"0": 10, "1": 5}
    assert next_end(
        {"0": 0, "1": 0}, {"0": 10, "1": 10}, replace(limits, slow_adjustment=False), None, seen
    ) == {"0": 10, "1": 10}


def test_waiting_for_enough() -> None:
    plan = planner(minEventsPerTrigger="100", maxTriggerDelay="10s")
    start, few, many = {"0": 0}, view((0, 9)), view((0, 200))
    assert plan.latest(start, None, few, 0) == start
    assert plan.latest(start, None, few, 9) == start
    assert plan.latest(start, None, few, 10) == {"0": 10}  # waited long enough
    assert plan.latest({"0": 10}, None, view((0, 19)), 11) == {"0": 10}  # and waits anew
    assert plan.latest({"0": 10}, None, many, 12) == {"0": 201}


def test_nothing_new_is_no_reason_to_start_waiting() -> None:
    plan = planner(minEventsPerTrigger="100", maxTriggerDelay="10s")
    assert plan.latest({"0": 10}, None, view((0, 9)), 0) == {"0": 10}
    assert plan.latest({"0": 10}, None, view((0, 11)), 20) == {"0": 10}  # waits from now on


def test_a_run_that_ends() -> None:
    """AvailableNow: what arrives after the start is for the next run; new partitions too."""
    plan = planner(startingPosition="earliest", maxEventsPerTrigger="6", minEventsPerTrigger="999")
    plan.freeze(view((0, 9)))
    start = plan.initial(view((0, 9)), NOW_MS)
    with_new_partitions = view((0, 99), (0, 5))
    first = plan.latest(start, None, with_new_partitions, 0)
    assert first["0"] == 6
    second = plan.latest(first, None, with_new_partitions, 0)
    assert second["0"] == 10
    assert plan.latest(second, None, with_new_partitions, 0) == second
    assert plan.work(first, second, with_new_partitions) == [Span("0", 6, 10)]


def test_a_replay_reads_the_same_and_a_start_behind_its_end_nothing() -> None:
    plan = planner()
    assert plan.work({"0": 5}, {"0": 9}, view((0, 50))) == [Span("0", 5, 9)]
    assert plan.work({"0": 9}, {"0": 5}, view((0, 50))) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=12),
    st.integers(1, 40),
)
def test_every_event_is_in_one_batch(
    there: list[tuple[int, int]], arrivals: list[tuple[int, int]], limit: int
) -> None:
    ranges = [[first, first + count - 1] for first, count in there]
    plan = planner(startingPosition="earliest", maxEventsPerTrigger=str(limit))

    def now() -> HubSnapshot:
        return view(*((first, last) for first, last in ranges))

    offsets = plan.initial(now(), NOW_MS)
    read: dict[str, list[int]] = {one: [] for one in offsets}
    for number, count in [*arrivals, *[(0, 0)] * 800]:
        ranges[number % len(ranges)][1] += count
        end = plan.latest(offsets, None, now(), 0)
        for span in plan.work(offsets, end, now()):
            read[span.partition] += range(span.first, span.last)
        if end == offsets and not count:
            break
        offsets = end
    assert read == {
        str(number): list(range(first, last + 1)) for number, (first, last) in enumerate(ranges)
    }


# -- what has gone --------------------------------------------------------------------------------


def test_loss_is_an_error_unless_it_is_allowed() -> None:
    there = view((7, 20))
    with pytest.raises(DataLoss, match="events 5 to 6 have left"):
        planner().work({"0": 5}, {"0": 9}, there)
    told: list[str] = []
    lenient = Planner(options(failOnDataLoss="false"), unasked, told.append)
    assert lenient.work({"0": 5}, {"0": 9}, there) == [Span("0", 7, 9)]
    assert told == ["partition 0: of events 5 to 8 only 2 are left (failOnDataLoss=false)"]
    told.clear()
    assert lenient.work({"0": 7}, {"0": 9}, there) == [Span("0", 7, 9)]
    assert told == []


def test_a_hub_that_was_created_anew() -> None:
    there = view((0, 3), (0, 9))
    start = {"0": 50, "1": 8}
    with pytest.raises(DataLoss, match=r"partition 0: event 50 .* the newest is 3: .*re-created"):
        planner().latest(start, None, there, 0)
    with pytest.raises(DataLoss, match="re-created"):
        planner().work({"0": 40}, {"0": 50}, there)
    told: list[str] = []
    plan = Planner(options(failOnDataLoss="false"), unasked, told.append)
    end = plan.latest(start, None, there, 0)
    assert end == {"0": 4, "1": 10}  # everything in it is new
    assert plan.work(start, end, there) == [Span("0", 0, 4), Span("1", 8, 10)]
    (said,) = told
    assert said.startswith("partition 0 has no event 50 any more and is read from 0")


def test_a_hub_that_has_fewer_partitions_than_it_had() -> None:
    there, start = view((0, 9)), {"0": 3, "1": 7}
    with pytest.raises(DataLoss, match=r"partition 1 is in the checkpoint, .* has 0: .*re-created"):
        planner().latest(start, None, there, 0)
    lenient = planner(failOnDataLoss="false")
    assert lenient.latest(start, None, there, 0) == {"0": 10, "1": 7}
    silent = HubSnapshot(there.partitions, unavailable=("1",))
    assert planner().latest(start, None, silent, 0) == {"0": 10, "1": 7}


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_reads_everything() -> None:
    assert batch_range(options(streaming=False), view((5, 9), (0, -1)), unasked) == (
        {"0": 5, "1": 0},
        {"0": 10, "1": 0},
    )


def test_a_batch_with_an_end() -> None:
    chosen = options(
        streaming=False,
        startingPosition="seq:6",
        endingPosition="seq:8",
        endingPositions='{"1": "earliest"}',
    )
    start, end = batch_range(chosen, view((5, 9), (7, 9)), unasked)
    assert (start, end) == ({"0": 6, "1": 7}, {"0": 8, "1": 7})


def test_a_start_after_the_end() -> None:
    chosen = options(streaming=False, startingPosition="seq:9", endingPosition="seq:6")
    with pytest.raises(OptionError, match=r"partition 0: the start \(event 9\) lies after the end"):
        batch_range(chosen, view((5, 9)), unasked)
