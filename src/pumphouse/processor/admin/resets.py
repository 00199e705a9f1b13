"""Where a checkpoint goes when somebody moves it by hand.

A checkpoint names the last event that was handled. To read from event N on, it must name the event
before, with that event's own offset, because some clients resume by the offset alone. Where there
is no event before (N is the oldest), the offset "-1" stands for the beginning.

    position -> wanted -> Look -> change -> Change -> store.update_checkpoint(rewind=True)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Event, Position
from pumphouse.leases.model import Checkpoint, Group, Listing

BEGINNING = "-1"


@dataclass(frozen=True, slots=True)
class Place:
    """An event that counts as the last one handled, or (with BEGINNING) the place before all."""

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
        here, there = self.before, self.after
        return (here.sequence, here.offset) != (there.sequence, there.offset)

    @property
    def effect(self) -> str:
        """What it means, in words; nothing if it cannot be counted."""
        if self.before.sequence is None or self.after.sequence is None:
            return "" if self.moves else "stays"
        distance = self.after.sequence - self.before.sequence
        if distance == 0:
            return "stays"
        events = f"{abs(distance):,} event{'' if abs(distance) == 1 else 's'}"
        return f"skips {events}" if distance > 0 else f"re-reads {events}"


def shifted(current: Checkpoint | None, by: int, found: PartitionProperties) -> Position:
    """The position of the event so many after (or before) the next one, within what is there."""
    if current is None or current.sequence is None:
        raise OptionError(
            f"partition {found.partition} has no checkpoint with a sequence number to shift from; "
            "reset it with --to"
        )
    following = current.sequence + 1 + by
    first, beyond = found.first_sequence, found.last_sequence + 1
    return Position("sequence", str(min(max(following, first), beyond)), inclusive=True)


def at_the_border(position: Position, found: PartitionProperties) -> Place | None:
    """The place for a position that needs no reading; None if an event must be looked at."""
    newest = Place(found.last_sequence, found.last_offset, found.last_enqueued_ms)
    oldest = Place(found.first_sequence - 1, BEGINNING)
    if found.empty:
        return newest if found.last_sequence >= 0 else oldest
    if position == EARLIEST:
        return oldest
    if position == LATEST or found.ends_before(position):
        return newest
    if position.kind == "sequence":
        following = int(position.value) + (not position.inclusive)
        return oldest if following <= found.first_sequence else None
    return None


def before_event(
    found: PartitionProperties, following: Event | None, earlier: Event | None
) -> Place:
    """The place just before the event that is to be read next; at the end if there is none."""
    if following is None:
        return Place(found.last_sequence, found.last_offset, found.last_enqueued_ms)
    if earlier is None:
        assert following.sequence is not None
        return Place(following.sequence - 1, BEGINNING)
    assert earlier.sequence is not None
    assert earlier.offset is not None
    return Place(earlier.sequence, earlier.offset, earlier.enqueued_ms)


def change(current: Checkpoint | None, group: Group, partition: str, to: Place) -> Change:
    """What to write. The epoch stays: a rewind does not fence anybody off."""
    before = current or Checkpoint(group, partition)
    after = replace(before, sequence=to.sequence, offset=to.offset, enqueued_ms=to.enqueued_ms)
    return Change(before, after)


def live_owners(listing: Listing, lease_s: float, partitions: Iterable[str]) -> list[str]:
    """Who would go on from the old place, and write over the new one."""
    wanted = set(partitions)
    rows = (row for row in listing.ownerships if row.partition in wanted)
    return sorted({row.owner for row in rows if row.owner and not row.expired(lease_s)})
