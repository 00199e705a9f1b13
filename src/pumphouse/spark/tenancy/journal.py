"""A query that shares its consumer group: what its journal says, and where a partition goes on.

A tenant plans only what it owns, and that changes. So the offset of a batch stands for itself: for
each partition it says from where to where it is read, and under which epoch. The start of the batch
does not matter, and a replay reads the same stretches again, and no others:

    {"sensors": {"0": 120}, "@tenancy": {"host": "watch", "stretches": {"0": [100, 120, 7]}}}

    checkpoints, journal -> goes_on_at, may_read -> stretches -> tasks
                            ^^^^^^^^^^^^^^^^^^^^ this module

Two things are known of where a partition stands, and each may be behind the other: the group's
checkpoint, and our journal. Two rules join them:

* What a stretch of the journal says is handled if Spark has committed the batch, whoever has owned
  the partition since; unless we left the stretch to somebody else. That is noted in the store
  before such a batch can be committed (see leftovers).
* A batch that must be replayed may read a stretch if the partition is ours now and the group's
  checkpoint has not passed its start: then it is what any new owner would read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.spark.lag.known_positions import TENANCY_KEY
from pumphouse.spark.offsets import Offsets, Span, from_json, order, to_json

ALL = "all"


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What a query was told about sharing its consumer group."""

    assignment: str  # a strategy of the processors: steady, balanced, greedy, fixed:4
    store: str = field(repr=False)
    host: str = ""
    lease_s: float = 30.0
    renew_s: float = 10.0
    interval_s: float = 10.0
    hand_off_s: float | None = None
    checkpoints: bool = True
    folder: str = ""  # Spark's checkpointLocation, if it was told to us

    @property
    def keeps(self) -> bool:
        """Whether it gives nothing up: what it has stays in its name until the lease runs out."""
        return self.assignment.startswith("fixed")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The events [first, last) of a partition, as a batch reads them under an epoch.

    Without an epoch it was journalled by a query that shared with nobody.
    """

    first: int
    last: int
    epoch: int | None = None

    @property
    def count(self) -> int:
        return max(0, self.last - self.first)

    @property
    def unread(self) -> Stretch:
        """What it still says if nothing of it was read: all before it had been."""
        return replace(self, last=self.first)


@dataclass(frozen=True, slots=True)
class Journal:
    """What Spark has written down of one batch."""

    host: str = ""
    stretches: Mapping[str, Stretch] = field(default_factory=dict)

    @property
    def ends(self) -> dict[str, int]:
        return {one: stretch.last for one, stretch in self.stretches.items()}

    def spans(self) -> list[Span]:
        """What its tasks read, in the order of the partitions: the same each time."""
        return [
            Span(one, self.stretches[one].first, self.stretches[one].last)
            for one in sorted(self.stretches, key=order)
            if self.stretches[one].count
        ]


# -- JSON -----------------------------------------------------------------------------------------


def to_offset(hub: str, journal: Journal) -> dict[str, Any]:
    told = {
        one: [stretch.first, stretch.last, stretch.epoch]
        for one, stretch in sorted(journal.stretches.items(), key=lambda item: order(item[0]))
    }
    tenancy = {"host": journal.host, "stretches": told}
    return {**to_json(hub, journal.ends), TENANCY_KEY: tenancy}


def from_offset(hub: str, found: str | Mapping[str, Any]) -> Journal:
    """A journal out of an offset; one of a query that shared with nobody has no epochs."""
    ends = from_json(hub, found)
    told = json.loads(found) if isinstance(found, str) else found
    tenancy = told.get(TENANCY_KEY)
    if tenancy is None:
        return Journal("", {one: Stretch(last, last) for one, last in ends.items()})
    try:
        stretches = {
            str(one): Stretch(int(first), int(last), None if epoch is None else int(epoch))
            for one, (first, last, epoch) in tenancy["stretches"].items()
        }
        return Journal(str(tenancy["host"]), stretches)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise OptionError(f"{tenancy!r:.200} is no journal of a tenant; start anew") from None


def between(start: Journal, end: Journal) -> Journal:
    """What a batch reads. Only a query that shared with nobody needs the start to tell."""
    if end.host or any(stretch.epoch is not None for stretch in end.stretches.values()):
        return end
    firsts = start.ends
    return Journal(
        "",
        {
            one: Stretch(firsts.get(one, stretch.last), stretch.last)
            for one, stretch in end.stretches.items()
        },
    )


def check_not_shared(found: Mapping[str, Any]) -> None:
    """Refuse a tenant's journal to a query that reads everything: it knows of its part only."""
    if TENANCY_KEY in found:
        host = found[TENANCY_KEY].get("host", "")
        raise OptionError(
            f"this checkpointLocation is of a query that shared its consumer group (as {host}): it "
            "knows the places of its own partitions only. Set assignment as before, or use another "
            "checkpointLocation"
        )


# -- where a partition goes on --------------------------------------------------------------------


def goes_on_at(
    found: Checkpoint, told: Stretch | None = None, *, checkpoints: bool = True
) -> int | None:
    """The next event of a partition that has become ours; None if only the options can tell.

    `found` is the group's checkpoint, `told` what the last committed batch of our journal read.
    """
    following = None if found.sequence is None or not checkpoints else found.sequence + 1
    if told is None:
        return following
    if told.epoch is None:  # from before we shared: where the group knows nothing, it tells
        return told.last if following is None else following
    return max(told.last, following or 0)


def may_read(stretch: Stretch, found: Checkpoint, *, checkpoints: bool = True) -> bool:
    """Whether the owner of a partition may read a stretch that was journalled before it was ours.

    Not if somebody has handled events of it since.
    """
    return not checkpoints or found.sequence is None or found.sequence < stretch.first


# -- which part of a batch is whose ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """A partition that is no longer ours, and the events of a batch that are left to its owner."""

    partition: str
    why: str
    span: Span | None = None

    def __str__(self) -> str:
        left = ""
        if self.span is not None and self.span.count > 0:
            left = f"; events {self.span.first} to {self.span.last - 1} are left to its owner"
        return f"partition {self.partition} is not ours any more: {self.why}{left}"

    def to_json(self) -> dict[str, Any]:
        left = None if self.span is None else [self.span.first, self.span.last]
        return {"partition": self.partition, "why": self.why, "left": left}


def owned_by(row: Ownership | None) -> str:
    """Who has a partition, in words."""
    if row is None or not row.owner:
        return "nobody has it"
    return f"{row.owner} has it (epoch {row.epoch})"


def kept_in_place(
    tasks: Sequence[tuple[Span, ...]], mine: Offsets
) -> list[tuple[tuple[Span, ...], dict[str, int]]]:
    """Tasks without what is not ours, and their epochs; each keeps its number.

    A task that has nothing left stays, empty: whoever counts tasks and rows behind us counts the
    same ones when the batch is repeated.
    """
    kept = [tuple(span for span in spans if span.partition in mine) for spans in tasks]
    return [(spans, {span.partition: mine[span.partition] for span in spans}) for spans in kept]
