"""Estimates when an event was enqueued, without reading the event. Pure.

    partition properties -> Sample -> table of samples -> enqueued_ms_of -> lag in seconds
                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Each poll takes a sample: the newest event of a partition and the time at which it was enqueued. An
event between two samples was enqueued after the first poll and not later than the newest event of
the second. The estimate is a straight line between the two, and wrong by at most one polling
interval. A checkpoint may contain the time of its event, which is one more point of the line.

For an event before the first sample, without a checkpoint that has a time, the estimate is the time
of the first sample. The event was enqueued at that time or earlier, so the lag is too small at
first; it grows with the clock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

# Per partition: at an interval of 15 s the last hour is exact to one interval, and a consumer that
# has stopped for weeks still has a table of this length.
SAMPLES_MAX = 480


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest event of a partition at one poll."""

    sequence: int
    enqueued_ms: int
    seen_ms: int  # when the last poll with this newest event began; later events came after that


Samples = tuple[Sample, ...]  # by sequence


def with_sample(samples: Samples, new: Sample, needed: int) -> Samples:
    """The table with one more sample. No group needs an event below the sequence `needed`."""
    if samples and new.sequence < samples[-1].sequence:
        samples = ()  # the hub was created again
    if samples and new.sequence == samples[-1].sequence:
        return (*samples[:-1], replace(samples[-1], seen_ms=new.seen_ms))
    return thinned((*samples[obsolete(samples, needed) :], new))


def obsolete(samples: Samples, needed: int) -> int:
    """How many samples lie before the last one that is below `needed`."""
    return max(0, bisect_left(samples, needed, key=lambda sample: sample.sequence) - 1)


def thinned(samples: Samples) -> Samples:
    """At most SAMPLES_MAX samples: if there are more, drop every second one of the older half."""
    if len(samples) <= SAMPLES_MAX:
        return samples
    middle = len(samples) // 2
    return (*samples[:middle:2], *samples[middle:])


def enqueued_ms_of(
    sequence: int, samples: Samples, checkpoint: tuple[int, int] | None = None
) -> float | None:
    """When this event was enqueued; None if it is newer than every sample.

    `checkpoint` is the sequence number and the enqueued time of an earlier event.
    """
    at = bisect_left(samples, sequence, key=lambda sample: sample.sequence)
    if at == len(samples):
        return None
    after, before = samples[at], samples[at - 1] if at else None
    low = lower_point(before, checkpoint)
    if after.sequence == sequence or low is None:
        return after.enqueued_ms
    low_sequence, low_ms = low
    part = (sequence - low_sequence) / (after.sequence - low_sequence)
    start_ms = min(low_ms, after.enqueued_ms)
    return start_ms + part * (after.enqueued_ms - start_ms)


def lower_point(
    before: Sample | None, checkpoint: tuple[int, int] | None
) -> tuple[int, float] | None:
    """The lower end of the line: an event at or before the requested one, and its earliest time."""
    if before is None:
        return checkpoint
    if checkpoint is not None and checkpoint[0] > before.sequence:
        return checkpoint
    return before.sequence + 1, max(before.enqueued_ms, before.seen_ms)


def lag_s_of(
    next_sequence: int,
    last_sequence: int,
    samples: Samples,
    checkpoint: tuple[int, int] | None,
    now_ms: int,
) -> float | None:
    """Seconds since the next event of a group was enqueued; 0 if there is none."""
    if next_sequence > last_sequence:
        return 0.0
    enqueued_ms = enqueued_ms_of(next_sequence, samples, checkpoint)
    return None if enqueued_ms is None else max(0.0, (now_ms - enqueued_ms) / 1000)
