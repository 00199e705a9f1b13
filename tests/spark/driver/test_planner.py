"""The planner: plans do not change between calls, and every event is planned once."""

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
    limit_events,
    next_end,
    plan_batch_query,
)

STRING = "Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=a2V5;EntityPath=sensors"
NOW_MS = 1_000_000


def snapshot(*ranges: tuple[int, int], unavailable: tuple[str, ...] = ()) -> HubSnapshot:
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


def fail_to_resolve(partition: str, position: Position) -> int:
    raise AssertionError(f"asked for {position} of {partition}")


def planner(**given: str) -> Planner:
    return Planner(options(streaming=True, **given), fail_to_resolve)


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
    hub = snapshot((5, 9), (0, -1))
    assert planner(startingPosition=position).initial_offsets(hub, NOW_MS) == start


def test_a_partition_can_have_a_start_of_its_own() -> None:
    plan = planner(startingPosition="latest", startingPositions='{"1": "earliest"}')
    assert plan.initial_offsets(snapshot((5, 9), (3, 7)), NOW_MS) == {"0": 10, "1": 3}


def test_a_time_is_resolved_by_the_hub() -> None:
    requests = []

    def resolve(partition: str, position: Position) -> int:
        requests.append((partition, position.kind, position.value))
        return 7

    plan = Planner(options(startingPosition="time:500000"), resolve)
    assert plan.initial_offsets(snapshot((5, 9)), NOW_MS) == {"0": 7}
    assert requests == [("0", "time", "500000")]


def test_the_initial_offsets_do_not_change() -> None:
    """Spark asks twice; "latest" must resolve to the same event."""
    plan = planner()
    assert plan.initial_offsets(snapshot((0, 9)), NOW_MS) == {"0": 10}
    assert plan.initial_offsets(snapshot((0, 50)), NOW_MS) == {"0": 10}


@pytest.mark.parametrize("position", ["latest", "time:2000000", "time:-15m", "seq:10", "offset:7"])
def test_an_unstable_start_is_journalled_first(position: str) -> None:
    plan = Planner(options(startingPosition=position), lambda partition, at: 10)
    start = plan.initial_offsets(snapshot((0, 9)), NOW_MS)
    assert plan.plan_end(start, None, snapshot((0, 50)), 0) == start  # an empty batch
    assert plan.plan_end(start, None, snapshot((0, 50)), 0) == {"0": 51}


@pytest.mark.parametrize("position", ["earliest", "seq:0"])
def test_a_stable_start_needs_no_empty_batch(position: str) -> None:
    plan = planner(startingPosition=position)
    start = plan.initial_offsets(snapshot((0, 9)), NOW_MS)
    assert plan.plan_end(start, None, snapshot((0, 9)), 0) == {"0": 10}


def test_a_query_with_a_checkpoint_needs_no_empty_batch() -> None:
    assert planner().plan_end({"0": 4}, None, snapshot((0, 9)), 0) == {"0": 10}


@pytest.mark.parametrize("option", ["startingPositions", "endingPositions"])
def test_a_position_for_an_unknown_partition_is_an_error(option: str) -> None:
    plan = Planner(options(streaming=False, **{option: '{"7": "earliest"}'}), fail_to_resolve)
    with pytest.raises(OptionError, match=f"{option} names partition 7, .* it reads 0, 1"):
        plan.initial_offsets(snapshot((0, 9), (0, 9)), NOW_MS)


def test_an_unknown_partition_in_the_options_is_an_error() -> None:
    with pytest.raises(OptionError, match="the hub has no partition 4; it has 0, 1"):
        planner(partitions="0,4").initial_offsets(snapshot((0, 9), (0, 9)), NOW_MS)


# -- the end of a batch ---------------------------------------------------------------------------


def test_only_the_chosen_partitions_are_read() -> None:
    plan = planner(partitions="1", startingPosition="earliest")
    hub = snapshot((0, 9), (0, 9))
    assert plan.initial_offsets(hub, NOW_MS) == {"1": 0}
    assert plan.plan_end({"1": 0}, None, hub, 0) == {"1": 10}
    assert plan.newest_ends(hub) == {"1": 10}


def test_new_partitions_are_read_from_their_oldest_event() -> None:
    plan = planner()
    hub = snapshot((0, 9), (4, 6))
    journalled = plan.plan_end({"0": 5}, None, hub, 0)
    assert journalled == {"0": 10, "1": 4}
    assert plan.plan_spans({"0": 5}, journalled, hub) == [Span("0", 5, 10)]
    end = plan.plan_end(journalled, None, hub, 0)
    assert end == {"0": 10, "1": 7}
    assert plan.plan_spans(journalled, end, hub) == [Span("1", 4, 7)]


def test_a_batch_with_a_new_partition_is_replayed_unchanged() -> None:
    """Retention has removed the partition's oldest events meanwhile: that is a data loss."""
    start = {"0": 5}
    first = planner().plan_end(start, None, snapshot((0, 9), (4, 6)), 0)
    second = planner().plan_end(first, None, snapshot((0, 9), (4, 6)), 0)
    later = snapshot((0, 9), (6, 6))
    assert planner().plan_spans(start, first, later) == [Span("0", 5, 10)]
    with pytest.raises(DataLoss, match="removed events 4 to 5"):
        planner().plan_spans(first, second, later)


def test_a_partition_that_does_not_respond_keeps_its_offset() -> None:
    hub = HubSnapshot(snapshot((0, 9)).partitions, unavailable=("1",))
    plan = planner()
    end = plan.plan_end({"0": 0, "1": 3}, None, hub, 0)
    assert end == {"0": 10, "1": 3}
    assert plan.plan_spans({"0": 0, "1": 3}, end, hub) == [Span("0", 0, 10)]


def test_a_partition_that_responds_late_starts_at_its_configured_position() -> None:
    """Not at its oldest event, as a new partition does."""
    requests = []

    def resolve(partition: str, position: Position) -> int:
        requests.append((partition, str(position)))
        return 6

    chosen = options(startingPosition="latest", startingPositions='{"1": "latest"}')
    plan = Planner(chosen, resolve)
    start = plan.initial_offsets(
        HubSnapshot(snapshot((0, 9)).partitions, unavailable=("1",)), NOW_MS
    )
    assert start == {"0": 10}
    hub = snapshot((0, 9), (0, 9))
    plan.plan_end(start, None, hub, 0)  # journals the start
    journalled = plan.plan_end(start, None, hub, 0)
    assert journalled == {"0": 10, "1": 6}  # a later run could not know where it was to start
    end = plan.plan_end(journalled, None, hub, 0)
    assert end == {"0": 10, "1": 10}
    assert planner().plan_spans(journalled, end, hub) == [Span("1", 6, 10)]
    assert set(requests) == {("1", f"time:{NOW_MS}")}


def test_a_query_of_one_batch_ignores_the_limits() -> None:
    plan = planner(maxEventsPerTrigger="5", minEventsPerTrigger="999")
    assert plan.plan_end({"0": 0}, None, snapshot((0, 99)), 0, everything=True) == {"0": 100}


def test_a_batch_keeps_to_the_limits() -> None:
    hub = snapshot((0, 999), (0, 99))
    start = {"0": 0, "1": 0}
    assert planner(maxEventsPerTrigger="110").plan_end(start, None, hub, 0) == {"0": 100, "1": 10}
    assert planner().plan_end(start, 110, hub, 0) == {"0": 100, "1": 10}  # Spark's own
    assert planner(maxEventsPerPartition="50").plan_end(start, None, hub, 0) == {"0": 50, "1": 50}


def test_a_limit_in_bytes_uses_the_mean_event_size() -> None:
    limits = Limits(bytes=10_000)
    assert limit_events(limits, None, 4, ReadStatistics()) is None  # nothing is known yet
    assert limit_events(limits, None, 4, ReadStatistics(event_bytes=100)) == 100
    assert limit_events(limits, 30, 4, ReadStatistics(event_bytes=100)) == 30
    assert limit_events(limits, None, 4, ReadStatistics(event_bytes=1e9)) == 4  # one for each


def test_slow_partitions_are_read_less() -> None:
    limits = Limits(slow_adjustment=True)
    statistics = ReadStatistics(factors={"1": 0.5})
    assert next_end({"0": 0, "1": 0}, {"0": 10, "1": 10}, limits, None, statistics) == {
        "0": 10,
        "1": 5,
    }
    assert next_end(
        {"0": 0, "1": 0},
        {"0": 10, "1": 10},
        replace(limits, slow_adjustment=False),
        None,
        statistics,
    ) == {"0": 10, "1": 10}


def test_a_batch_waits_for_the_minimum_or_the_longest_delay() -> None:
    plan = planner(minEventsPerTrigger="100", maxTriggerDelay="10s")
    start, few, many = {"0": 0}, snapshot((0, 9)), snapshot((0, 200))
    assert plan.plan_end(start, None, few, 0) == start
    assert plan.plan_end(start, None, few, 9) == start
    assert plan.plan_end(start, None, few, 10) == {"0": 10}  # waited long enough
    assert plan.plan_end({"0": 10}, None, snapshot((0, 19)), 11) == {"0": 10}  # and waits again
    assert plan.plan_end({"0": 10}, None, many, 12) == {"0": 201}


def test_the_delay_starts_with_the_first_new_event() -> None:
    plan = planner(minEventsPerTrigger="100", maxTriggerDelay="10s")
    assert plan.plan_end({"0": 10}, None, snapshot((0, 9)), 0) == {"0": 10}
    assert plan.plan_end({"0": 10}, None, snapshot((0, 11)), 20) == {"0": 10}  # waits from now on


def test_a_run_that_ends_reads_only_what_the_hub_holds_at_the_start() -> None:
    """AvailableNow: later events and new partitions are for the next run."""
    plan = planner(startingPosition="earliest", maxEventsPerTrigger="6", minEventsPerTrigger="999")
    plan.end_at_newest(snapshot((0, 9)))
    start = plan.initial_offsets(snapshot((0, 9)), NOW_MS)
    larger = snapshot((0, 99), (0, 5))
    first = plan.plan_end(start, None, larger, 0)
    assert first["0"] == 6
    second = plan.plan_end(first, None, larger, 0)
    assert second["0"] == 10
    assert plan.plan_end(second, None, larger, 0) == second
    assert plan.plan_spans(first, second, larger) == [Span("0", 6, 10)]


def test_a_replay_reads_the_same_and_a_start_after_its_end_reads_nothing() -> None:
    plan = planner()
    assert plan.plan_spans({"0": 5}, {"0": 9}, snapshot((0, 50))) == [Span("0", 5, 9)]
    assert plan.plan_spans({"0": 9}, {"0": 5}, snapshot((0, 50))) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=12),
    st.integers(1, 40),
)
def test_every_event_is_in_one_batch(
    hub: list[tuple[int, int]], arrivals: list[tuple[int, int]], limit: int
) -> None:
    ranges = [[first, first + count - 1] for first, count in hub]
    plan = planner(startingPosition="earliest", maxEventsPerTrigger=str(limit))

    def now() -> HubSnapshot:
        return snapshot(*((first, last) for first, last in ranges))

    offsets = plan.initial_offsets(now(), NOW_MS)
    read: dict[str, list[int]] = {name: [] for name in offsets}
    for number, count in [*arrivals, *[(0, 0)] * 800]:
        ranges[number % len(ranges)][1] += count
        end = plan.plan_end(offsets, None, now(), 0)
        for span in plan.plan_spans(offsets, end, now()):
            read[span.partition] += range(span.first, span.last)
        if end == offsets and not count:
            break
        offsets = end
    assert read == {
        str(number): list(range(first, last + 1)) for number, (first, last) in enumerate(ranges)
    }


# -- data loss ------------------------------------------------------------------------------------


def test_data_loss_is_an_error_unless_it_is_allowed() -> None:
    hub = snapshot((7, 20))
    with pytest.raises(DataLoss, match="removed events 5 to 6"):
        planner().plan_spans({"0": 5}, {"0": 9}, hub)
    warnings: list[str] = []
    lenient = Planner(options(failOnDataLoss="false"), fail_to_resolve, warnings.append)
    assert lenient.plan_spans({"0": 5}, {"0": 9}, hub) == [Span("0", 7, 9)]
    assert warnings == ["partition 0: of events 5 to 8 only 2 are left (failOnDataLoss=false)"]
    warnings.clear()
    assert lenient.plan_spans({"0": 7}, {"0": 9}, hub) == [Span("0", 7, 9)]
    assert warnings == []


def test_a_hub_that_was_re_created_is_a_data_loss() -> None:
    hub = snapshot((0, 3), (0, 9))
    start = {"0": 50, "1": 8}
    with pytest.raises(DataLoss, match=r"partition 0: event 50 .* the newest is 3: .*re-created"):
        planner().plan_end(start, None, hub, 0)
    with pytest.raises(DataLoss, match="re-created"):
        planner().plan_spans({"0": 40}, {"0": 50}, hub)
    warnings: list[str] = []
    plan = Planner(options(failOnDataLoss="false"), fail_to_resolve, warnings.append)
    end = plan.plan_end(start, None, hub, 0)
    assert end == {"0": 4, "1": 10}  # everything in it is new
    assert plan.plan_spans(start, end, hub) == [Span("0", 0, 4), Span("1", 8, 10)]
    (warning,) = warnings
    assert warning.startswith("partition 0 no longer has event 50 and is read from 0")


def test_a_hub_with_fewer_partitions_is_a_data_loss() -> None:
    hub, start = snapshot((0, 9)), {"0": 3, "1": 7}
    with pytest.raises(
        DataLoss, match=r"partition 1 is in the checkpoint, .* has only 0: .*re-created"
    ):
        planner().plan_end(start, None, hub, 0)
    lenient = planner(failOnDataLoss="false")
    assert lenient.plan_end(start, None, hub, 0) == {"0": 10, "1": 7}
    silent = HubSnapshot(hub.partitions, unavailable=("1",))
    assert planner().plan_end(start, None, silent, 0) == {"0": 10, "1": 7}


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_query_reads_everything() -> None:
    assert plan_batch_query(
        options(streaming=False), snapshot((5, 9), (0, -1)), fail_to_resolve
    ) == (
        {"0": 5, "1": 0},
        {"0": 10, "1": 0},
    )


def test_a_batch_query_can_have_an_end() -> None:
    chosen = options(
        streaming=False,
        startingPosition="seq:6",
        endingPosition="seq:8",
        endingPositions='{"1": "earliest"}',
    )
    start, end = plan_batch_query(chosen, snapshot((5, 9), (7, 9)), fail_to_resolve)
    assert (start, end) == ({"0": 6, "1": 7}, {"0": 8, "1": 7})


def test_a_start_after_the_end_is_an_error() -> None:
    chosen = options(streaming=False, startingPosition="seq:9", endingPosition="seq:6")
    with pytest.raises(OptionError, match=r"partition 0: the start \(event 9\) lies after the end"):
        plan_batch_query(chosen, snapshot((5, 9)), fail_to_resolve)
