"""When an event was enqueued, estimated from the newest events of earlier polls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pumphouse.lag.enqueued_times import (
    SAMPLES_MAX,
    Sample,
    Samples,
    enqueued_ms_of,
    lag_s_of,
    with_sample,
)


def table(*samples: tuple[int, int, int], needed: int = 0) -> Samples:
    result: Samples = ()
    for sample in samples:
        result = with_sample(result, Sample(*sample), needed)
    return result


def test_the_newest_event_of_a_poll_is_exact() -> None:
    assert enqueued_ms_of(10, table((5, 1000, 1500), (10, 2000, 2500))) == 2000


def test_an_event_between_two_polls_lies_on_the_line_between_them() -> None:
    samples = table((5, 1000, 1500), (10, 2500, 2600))
    # Event 6 came after the first poll, at 1500 at the earliest.
    assert enqueued_ms_of(6, samples) == 1500
    assert enqueued_ms_of(8, samples) == 2000


def test_a_burst_after_an_hour_without_events_is_new() -> None:
    """The line does not begin at the last event, an hour ago, but at the last poll."""
    samples = table((5, 1000, 1500), (5, 1000, 3_600_000), (10, 3_610_000, 3_615_000))
    assert len(samples) == 2
    assert lag_s_of(6, 10, samples, (5, 1000), 3_615_000) == 15


def test_the_time_of_a_checkpoint_is_one_more_point() -> None:
    samples = table((10, 2000, 2500))
    assert enqueued_ms_of(6, samples) == 2000  # unknown: at the latest then
    assert enqueued_ms_of(6, samples, (5, 1000)) == 1200
    samples = table((5, 1000, 1500), (10, 2500, 2600))
    assert enqueued_ms_of(8, samples, (7, 1900)) == 2100


def test_clocks_that_differ_do_not_turn_the_line_around() -> None:
    samples = table((5, 1000, 9000), (10, 2000, 10_000))  # the clock of the hub is behind
    assert enqueued_ms_of(6, samples) == 2000
    assert lag_s_of(6, 10, samples, None, 1000) == 0.0  # never negative


def test_no_lag_and_no_sample() -> None:
    assert lag_s_of(11, 10, (), None, 5000) == 0.0
    assert lag_s_of(6, 10, (), None, 5000) is None


def test_a_hub_that_was_created_again_starts_a_new_table() -> None:
    assert table((50, 1000, 1500), (3, 2000, 2500)) == (Sample(3, 2000, 2500),)


def test_samples_that_no_group_needs_are_dropped() -> None:
    samples = table((1, 1, 1), (2, 2, 2), (3, 3, 3), needed=3)
    assert [sample.sequence for sample in samples] == [2, 3]


def test_the_table_is_bounded_and_keeps_its_beginning() -> None:
    samples = table(*((n, n * 1000, n * 1000) for n in range(10 * SAMPLES_MAX)))
    assert len(samples) <= SAMPLES_MAX
    assert samples[0].sequence == 0
    newest = [sample.sequence for sample in samples[-SAMPLES_MAX // 4 :]]
    assert newest == list(range(newest[0], 10 * SAMPLES_MAX))  # every poll


@given(
    gaps=st.lists(st.integers(0, 20_000), min_size=1, max_size=200),
    interval_ms=st.integers(1, 15_000),
    number=st.integers(0, 199),
)
def test_the_error_is_at_most_one_interval(gaps: list[int], interval_ms: int, number: int) -> None:
    """Events at known times, polls at an interval: the estimate is at most one interval away."""
    times = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    samples: Samples = ()
    for poll_ms in range(-1, times[-1] + interval_ms, interval_ms)[-SAMPLES_MAX:]:
        if stored := [n for n, at in enumerate(times) if at <= poll_ms]:
            samples = with_sample(samples, Sample(stored[-1], times[stored[-1]], poll_ms), 0)
    event = min(number, len(times) - 1)
    estimate = enqueued_ms_of(event, samples)
    assert estimate is not None
    if samples[0].sequence < event:
        assert abs(estimate - times[event]) <= interval_ms
    else:
        assert estimate >= times[event]
