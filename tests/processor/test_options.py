"""Options that cannot work are refused with a sentence that says why."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Event
from pumphouse.processor.options import (
    RELAXED,
    CheckpointPolicy,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.plan import Pending, add_pending, checkpoint_due_in, sequence_of
from pumphouse.processor.pump import cut


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lease_s": 15.0}, r"at least 2 x renew_s.*lease_s=15, renew_s=10"),
        ({"renew_s": 0}, r"renew_s must be above 0 \(got 0\)"),
        ({"interval_s": -1}, "interval_s must be above 0"),
        ({"interval_s": float("nan")}, "interval_s must be above 0"),
        ({"hand_off_s": 5.0}, "hand_off_s must be at least renew_s"),
        ({"stop_s": 0}, "stop_s must be above 0"),
        ({"prefetch": 0}, r"prefetch must be at least 1 \(got 0\)"),
        ({"batch_events_max": 0}, "batch_events_max must be at least 1"),
        ({"batch_bytes_max": 0}, "batch_bytes_max must be at least 1"),
        ({"max_partitions": 0}, "max_partitions must be at least 1"),
        ({"max_wait_s": 0}, "max_wait_s must be above 0"),
        ({"handler_timeout_s": 0}, "handler_timeout_s must be above 0"),
        ({"handler_threads": 0}, "handler_threads must be at least 1"),
        ({"backoff_most_s": 0.1}, "backoff_most_s must be at least backoff_first_s"),
    ],
)
def test_invalid_processor_options_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ProcessorOptions(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"retries": -1}, "retries must be at least 0"),
        ({"first_s": 5.0, "most_s": 1.0}, "0 < first_s <= most_s"),
        ({"then": "pray"}, "then must be one of stop, skip, dead-letter"),
    ],
)
def test_an_invalid_poison_policy_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        PoisonPolicy(**settings)


@pytest.mark.parametrize("settings", [{"every_events": 0}, {"every_s": 0.0}])
def test_an_invalid_checkpoint_policy_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="every_"):
        CheckpointPolicy(**settings)


def test_relaxed_has_the_defaults_of_the_processor_notes() -> None:
    assert (RELAXED.interval_s, RELAXED.lease_s) == (30.0, 120.0)


def test_the_start_position_of_a_partition() -> None:
    assert ProcessorOptions().start_of("3") is EARLIEST
    options = ProcessorOptions(start=LATEST, starts={"3": EARLIEST})
    assert (options.start_of("3"), options.start_of("4")) == (EARLIEST, LATEST)


# -- checkpoint policies, and the bounds of a batch -----------------------------------------------


def event(sequence: int, size: int = 1) -> Event:
    return Event(b"x" * size, sequence=sequence)


@pytest.mark.parametrize(
    ("policy", "now_s", "expected"),
    [
        (CheckpointPolicy(), 1e9, float("inf")),
        (CheckpointPolicy(every_events=3), 100.0, 0.0),
        (CheckpointPolicy(every_events=4), 1e9, float("inf")),
        (CheckpointPolicy(every_s=5.0), 103.0, 2.0),
        (CheckpointPolicy(every_s=5.0), 109.0, 0.0),
        (CheckpointPolicy(every_events=4, every_s=5.0), 103.0, 2.0),
        (CheckpointPolicy(every_events=3, every_s=5.0), 101.0, 0.0),
    ],
)
def test_when_a_checkpoint_is_due(policy: CheckpointPolicy, now_s: float, expected: float) -> None:
    pending = add_pending(add_pending(None, [event(0), event(1)], 100.0), [event(2)], 102.0)
    assert pending == Pending(event(2), 3, 100.0)
    assert checkpoint_due_in(policy, pending, now_s) == expected
    assert checkpoint_due_in(policy, None, now_s) == float("inf")


def test_an_event_that_was_not_read_cannot_be_checkpointed() -> None:
    assert sequence_of(event(0)) == 0
    with pytest.raises(OptionError):
        sequence_of(Event(b"x"))


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [([], 0), ([200], 1), ([200, 1], 1), ([50, 50, 1], 2), ([50, 51], 1), ([1, 1, 1], 3)],
)
def test_a_batch_is_cut_at_its_byte_limit(sizes: list[int], taken: int) -> None:
    events = [event(number, size) for number, size in enumerate(sizes)]
    batch, rest = cut(events, 100)
    assert len(batch) == taken
    assert batch + rest == events
