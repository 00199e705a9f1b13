"""Resets of a checkpoint: it names the event before the one to be read next."""

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Event, Position
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.processor.admin.resets import (
    BEGINNING,
    ResetPosition,
    change,
    edge_position,
    live_owners,
    position_before,
    shifted_position,
)

GROUP = Group("hub.example", "sensors")
PROPERTIES = PartitionProperties("sensors", "0", 10, 99, "990", 60_000, empty=False)
OLDEST, NEWEST = ResetPosition(9, BEGINNING), ResetPosition(99, "990", 60_000)


def sequence(number: int, inclusive: bool = True) -> Position:
    return Position("sequence", str(number), inclusive)


def checkpoint_at(number: int | None) -> Checkpoint:
    return Checkpoint(GROUP, "0", number, None if number is None else str(number * 10), epoch=3)


@pytest.mark.parametrize(
    ("position", "reset"),
    [
        (EARLIEST, OLDEST),
        (LATEST, NEWEST),
        (sequence(10), OLDEST),
        (sequence(9, inclusive=False), OLDEST),
        (sequence(3), OLDEST),  # removed by retention: the oldest event instead
        (sequence(11), None),  # the offset of event 10 must be read
        (sequence(99), None),
        (sequence(100), NEWEST),
        (sequence(99, inclusive=False), NEWEST),
        (sequence(500), NEWEST),
        (Position("time", "50000", True), None),
        (Position("time", "60000", False), NEWEST),  # the time of the newest event
        (Position("time", "60001", True), NEWEST),
        (Position("offset", "990", False), NEWEST),
        (Position("offset", "ab-12", True), None),  # not a number: it must be read
        (Position("offset", "500", True), None),
    ],
)
def test_resets_that_need_no_reading(position: Position, reset: ResetPosition | None) -> None:
    assert edge_position(position, PROPERTIES) == reset


@pytest.mark.parametrize("position", [EARLIEST, LATEST, sequence(5), Position("time", "1", True)])
def test_an_empty_partition_has_one_reset_position(position: Position) -> None:
    fresh = PartitionProperties("sensors", "0", 0, -1, "-1", 0, empty=True)
    assert edge_position(position, fresh) == ResetPosition(-1, BEGINNING)
    emptied = PartitionProperties("sensors", "0", 100, 99, "990", 60_000, empty=True)
    assert edge_position(position, emptied) == NEWEST


def test_the_reset_position_before_an_event() -> None:
    earlier, following = (
        Event(b"", sequence=40, offset="400", enqueued_ms=7),
        Event(b"", sequence=41, offset="410"),
    )
    assert position_before(PROPERTIES, following, earlier) == ResetPosition(40, "400", 7)
    assert position_before(PROPERTIES, following, None) == ResetPosition(40, BEGINNING)
    assert position_before(PROPERTIES, None, None) == NEWEST


@pytest.mark.parametrize(
    ("at", "by", "following"),
    [(40, 5, 46), (40, -5, 36), (40, 0, 41), (40, -500, 10), (40, 500, 100), (2, 1, 10)],
)
def test_a_shift_stays_within_the_events_of_the_log(at: int, by: int, following: int) -> None:
    assert shifted_position(checkpoint_at(at), by, PROPERTIES) == sequence(following)


@pytest.mark.parametrize("current", [None, checkpoint_at(None)])
def test_a_checkpoint_without_a_sequence_cannot_be_shifted(current: Checkpoint | None) -> None:
    with pytest.raises(OptionError, match="partition 0 has no sequence number to shift"):
        shifted_position(current, 1, PROPERTIES)


@pytest.mark.parametrize(
    ("at", "to", "effect"),
    [
        (40, 50, "skips 10 events"),
        (40, 39, "re-reads 1 event"),
        (4000, 10, "re-reads 3,990 events"),
        (40, 40, "stays"),
        (None, 4000, "starts at event 4,001"),
    ],
)
def test_the_effect_of_a_reset_in_words(at: int | None, to: int, effect: str) -> None:
    change_made = change(checkpoint_at(at), GROUP, "0", ResetPosition(to, str(to * 10)))
    assert change_made.effect == effect
    assert change_made.moves == (at != to)


@pytest.mark.parametrize(
    ("to", "effect"),
    [
        (ResetPosition(4000, "88"), "starts at event 4,001"),
        (ResetPosition(-1, BEGINNING), "starts at the beginning"),
        (OLDEST, "starts at the beginning"),
    ],
)
def test_the_effect_of_a_reset_without_a_checkpoint(to: ResetPosition, effect: str) -> None:
    assert change(None, GROUP, "0", to).effect == effect


def test_the_effect_of_a_reset_of_a_checkpoint_without_a_sequence_number() -> None:
    at_offset = Checkpoint(GROUP, "0", None, "88")
    assert change(at_offset, GROUP, "0", ResetPosition(40, "400")).effect == "continues at event 41"


def test_a_reset_keeps_the_epoch() -> None:
    assert change(checkpoint_at(40), GROUP, "0", OLDEST).after.epoch == 3
    assert change(None, GROUP, "0", OLDEST).after == Checkpoint(GROUP, "0", 9, BEGINNING)


def test_live_owners_of_a_reset() -> None:
    rows = (
        Ownership("0", "b", age_s=1),
        Ownership("1", "a", age_s=1),
        Ownership("2", "c", age_s=31),
        Ownership("3", "", age_s=1),
        Ownership("4", "d", age_s=1),
    )
    assert live_owners(Listing(rows), 30, ["0", "1", "2", "3"]) == ["a", "b"]
