"""Resets of a checkpoint by an operator: the checkpoint to write for a position. Pure.

A checkpoint names the last event that was handled. To read from event N on, it must name the event
before, with that event's own offset, because some clients resume by the offset alone. Where there
is no event before (N is the oldest), the offset "-1" stands for the beginning.

    position -> edge_position, position_before -> change -> store.update_checkpoint(rewind=True)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Event, Position
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership

BEGINNING = "-1"


@dataclass(frozen=True, slots=True)
class ResetPosition:
    """The event that counts as the last one handled; BEGINNING stands before the oldest."""

    sequence: int
    offset: str
    enqueued_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One partition's checkpoint as it is, and as it will be."""

    before: Checkpoint
    after: Checkpoint

    @property
    def partition(self) -> str:
        return self.before.partition

    @property
    def moves(self) -> bool:
        old, new = self.before, self.after
        return (old.sequence, old.offset) != (new.sequence, new.offset)

    @property
    def effect(self) -> str:
        """The effect in words: the number of events, or the position if they cannot be counted."""
        if self.before.sequence is None or self.after.sequence is None:
            verb = "starts" if self.before.offset is None else "continues"
            return f"{verb} at {next_event_text(self.after)}" if self.moves else "stays"
        distance = self.after.sequence - self.before.sequence
        if distance == 0:
            return "stays"
        events = f"{abs(distance):,} event{'' if abs(distance) == 1 else 's'}"
        return f"skips {events}" if distance > 0 else f"re-reads {events}"


def next_event_text(checkpoint: Checkpoint) -> str:
    """The event that is read after a checkpoint, in words."""
    if checkpoint.offset == BEGINNING:
        return "the beginning"
    if checkpoint.sequence is None:
        return f"the event after offset {checkpoint.offset}"
    return f"event {checkpoint.sequence + 1:,}"


def shifted_position(
    current: Checkpoint | None, by: int, properties: PartitionProperties
) -> Position:
    """The position `by` events after the next event to read (before it, if negative).

    It is limited to the events that the hub has.
    """
    if current is None or current.sequence is None:
        raise OptionError(
            f"the checkpoint of partition {properties.partition} has no sequence number to shift: "
            "reset it with --to"
        )
    following = current.sequence + 1 + by
    first, end = properties.first_sequence, properties.last_sequence + 1
    return Position("sequence", str(min(max(following, first), end)), inclusive=True)


def edge_position(position: Position, properties: PartitionProperties) -> ResetPosition | None:
    """The reset for a position at either end of the partition; None if events must be read."""
    newest = ResetPosition(
        properties.last_sequence, properties.last_offset, properties.last_enqueued_ms
    )
    oldest = ResetPosition(properties.first_sequence - 1, BEGINNING)
    if properties.empty:
        return newest if properties.last_sequence >= 0 else oldest
    if position == EARLIEST:
        return oldest
    if position == LATEST or properties.ends_before(position):
        return newest
    if position.kind == "sequence":
        following = int(position.value) + (not position.inclusive)
        return oldest if following <= properties.first_sequence else None
    return None


def position_before(
    properties: PartitionProperties, following: Event | None, earlier: Event | None
) -> ResetPosition:
    """The reset to just before `following`, the event to read next; None: to the end."""
    if following is None:
        return ResetPosition(
            properties.last_sequence, properties.last_offset, properties.last_enqueued_ms
        )
    if earlier is None:
        assert following.sequence is not None
        return ResetPosition(following.sequence - 1, BEGINNING)
    assert earlier.sequence is not None
    assert earlier.offset is not None
    return ResetPosition(earlier.sequence, earlier.offset, earlier.enqueued_ms)


def change(current: Checkpoint | None, group: Group, partition: str, to: ResetPosition) -> Change:
    """The change to write. The epoch stays: a reset does not fence the owner off."""
    before = current or Checkpoint(group, partition)
    after = replace(before, sequence=to.sequence, offset=to.offset, enqueued_ms=to.enqueued_ms)
    return Change(before, after)


def live_rows(listing: Listing, lease_s: float, partitions: Iterable[str]) -> list[Ownership]:
    """The rows of these partitions that a live host owns."""
    chosen = set(partitions)
    rows = (row for row in listing.ownerships if row.partition in chosen)
    return [row for row in rows if row.owner and not row.expired(lease_s)]


def live_owners(listing: Listing, lease_s: float, partitions: Iterable[str]) -> list[str]:
    """The live owners of these partitions."""
    return owners_of(live_rows(listing, lease_s, partitions))


def owners_of(rows: Iterable[Ownership]) -> list[str]:
    return sorted({row.owner for row in rows})


def overwrites(row: Ownership) -> bool:
    """Whether its owner would overwrite a moved checkpoint: an official SDK, which has no epoch.

    A host of this package is refused when it writes the next checkpoint, and follows.
    """
    return row.epoch == 0
