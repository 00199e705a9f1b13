"""What Spark journals for a query that shares its consumer group, and where a partition resumes.

The query plans only the partitions that it owns, and those change. So the offset of a batch is
complete in itself: for each partition it holds the range that is read, and the epoch. A replay
reads the same ranges again, whatever the start of the batch:

    {"sensors": {"0": 120}, "@tenancy": {"host": "watch", "stretches": {"0": [100, 120, 7]}}}

    checkpoints, journal -> resume_position, may_replay -> ranges -> tasks
                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Both the group's checkpoint and our journal show how far a partition was read, and either may be
behind the other. Two rules join them:

* The ranges of a committed batch were read, even if another host has owned the partition since. The
  exception is a range that was left to another owner: it is written to the store before the batch
  can be committed (see skipped_ranges.py).
* A replayed batch may read a range if the partition is ours now and the group's checkpoint has not
  passed the start of the range: any new owner would read the same events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.spark.generation import created_in, with_created
from pumphouse.spark.lag.known_positions import TENANCY_KEY
from pumphouse.spark.offsets import Offsets, Span, from_json, order, to_json


@dataclass(frozen=True, slots=True)
class JournalRange:
    """The events [first, last) of a partition, as a batch reads them under an epoch.

    The journal of a query that read all partitions has no epochs.
    """

    first: int
    last: int
    epoch: int | None = None

    @property
    def count(self) -> int:
        return max(0, self.last - self.first)

    @property
    def unread(self) -> JournalRange:
        """The empty range at the start of this one: nothing of this range was read."""
        return replace(self, last=self.first)


@dataclass(frozen=True, slots=True)
class Journal:
    """What Spark has journalled for one batch."""

    host: str = ""
    ranges: Mapping[str, JournalRange] = field(default_factory=dict)
    created_ms: int | None = None  # when its hub was created

    @property
    def ends(self) -> dict[str, int]:
        return {partition: planned.last for partition, planned in self.ranges.items()}

    def spans(self) -> list[Span]:
        """What its tasks read, in the order of the partitions: the same in every replay."""
        return [
            Span(partition, self.ranges[partition].first, self.ranges[partition].last)
            for partition in sorted(self.ranges, key=order)
            if self.ranges[partition].count
        ]

    def without_reads(self) -> Journal:
        """Only the partitions of which the batch reads nothing, with their positions."""
        idle = {name: planned for name, planned in self.ranges.items() if not planned.count}
        return replace(self, ranges=idle)


# -- JSON -----------------------------------------------------------------------------------------


def to_offset(hub: str, journal: Journal) -> dict[str, Any]:
    ranges = {
        partition: [planned.first, planned.last, planned.epoch]
        for partition, planned in sorted(journal.ranges.items(), key=lambda item: order(item[0]))
    }
    tenancy = {"host": journal.host, "stretches": ranges}
    offset = {**to_json(hub, journal.ends), TENANCY_KEY: tenancy}
    return with_created(offset, journal.created_ms)


def from_offset(hub: str, offset: str | Mapping[str, Any]) -> Journal:
    """The journal in an offset; that of a query which read all partitions has no epochs."""
    ends = from_json(hub, offset)
    fields = json.loads(offset) if isinstance(offset, str) else offset
    tenancy = fields.get(TENANCY_KEY)
    if tenancy is None:
        reads = {partition: JournalRange(last, last) for partition, last in ends.items()}
        return Journal("", reads, created_in(fields))
    try:
        ranges = {
            str(partition): JournalRange(
                int(first), int(last), None if epoch is None else int(epoch)
            )
            for partition, (first, last, epoch) in tenancy["stretches"].items()
        }
        return Journal(str(tenancy["host"]), ranges, created_in(fields))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise OptionError(
            f"invalid {TENANCY_KEY} in the checkpoint: {tenancy!r:.200}; use a new "
            "checkpointLocation"
        ) from None


def complete_ranges(start: Journal, end: Journal) -> Journal:
    """The ranges of a batch. A query that reads all partitions journals only where they end."""
    if end.host or any(planned.epoch is not None for planned in end.ranges.values()):
        return end
    firsts = start.ends
    return Journal(
        "",
        {
            partition: JournalRange(firsts.get(partition, planned.last), planned.last)
            for partition, planned in end.ranges.items()
        },
        end.created_ms,
    )


def check_not_shared(offset: Mapping[str, Any]) -> None:
    """OptionError if a query that reads all partitions has the journal of a tenant."""
    if TENANCY_KEY in offset:
        host = offset[TENANCY_KEY].get("host", "")
        raise OptionError(
            f"this checkpointLocation is of a query that shared its consumer group (as {host}): it "
            "has the positions of its own partitions only. Set assignment as before, or use "
            "another checkpointLocation"
        )


# -- where a partition resumes --------------------------------------------------------------------


def resume_position(
    checkpoint: Checkpoint, committed: JournalRange | None = None, *, checkpoints: bool = True
) -> int | None:
    """The next event of a partition that we have claimed; None if only the options decide.

    `checkpoint` is the group's, `committed` the range that our last committed batch read.
    """
    known = checkpoints and checkpoint.sequence is not None
    next_sequence = checkpoint.sequence + 1 if known else None  # type: ignore[operator]
    if committed is None:
        return next_sequence
    # Without an epoch: journalled before the query shared its group. The checkpoint has priority.
    if committed.epoch is None:
        return committed.last if next_sequence is None else next_sequence
    return max(committed.last, next_sequence or 0)


def may_replay(planned: JournalRange, checkpoint: Checkpoint, *, checkpoints: bool = True) -> bool:
    """Whether the owner may read a range that an earlier ownership term journalled.

    It may not if another host has handled events of the range since.
    """
    return not checkpoints or checkpoint.sequence is None or checkpoint.sequence < planned.first


# -- lost partitions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """A partition that is no longer ours, and the events of a batch that are left to its owner."""

    partition: str
    why: str
    skipped: Span | None = None

    def __str__(self) -> str:
        skipped = ""
        if self.skipped is not None and self.skipped.count > 0:
            events = f"events {self.skipped.first} to {self.skipped.last - 1}"
            skipped = f"; {events} are left to its owner"
        return f"partition {self.partition} is no longer ours: {self.why}{skipped}"

    def to_json(self) -> dict[str, Any]:
        bounds = None if self.skipped is None else [self.skipped.first, self.skipped.last]
        return {"partition": self.partition, "why": self.why, "left": bounds}


def describe_owner(row: Ownership | None) -> str:
    if row is None or not row.owner:
        return "it has no owner"
    return f"{row.owner} owns it (epoch {row.epoch})"


def keep_task_numbers(
    tasks: Sequence[tuple[Span, ...]], epochs: Offsets
) -> list[tuple[tuple[Span, ...], dict[str, int]]]:
    """The spans of partitions that are ours, and their epochs, task by task.

    A task without spans stays, empty: a consumer that counts tasks and rows counts the same ones
    when the batch is replayed.
    """
    kept = [tuple(span for span in spans if span.partition in epochs) for spans in tasks]
    return [(spans, {span.partition: epochs[span.partition] for span in spans}) for spans in kept]
