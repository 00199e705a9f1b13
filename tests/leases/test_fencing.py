"""`next_step` for every combination of known, requested and stored checkpoints."""

from __future__ import annotations

from itertools import product

import pytest

from pumphouse.leases.fencing import (
    AlreadyStored,
    FencedOff,
    RetryWrite,
    is_ahead,
    is_erased,
    next_step,
    same_position,
)
from pumphouse.leases.model import Checkpoint
from tests.leases.contract.stores import GROUP


def saved(at: int | None, epoch: int, etag: str = "") -> Checkpoint:
    """A checkpoint at a sequence number, or a bare stamp."""
    return Checkpoint(GROUP, "0", at, None if at is None else str(at * 100), epoch, etag)


def step(
    known: Checkpoint | None, requested: Checkpoint, stored: Checkpoint | None, in_doubt: bool
) -> AlreadyStored | RetryWrite | FencedOff:
    """After no response if in doubt, else after a refusal."""
    return next_step(known, requested, stored, in_doubt=in_doubt, refused=not in_doubt)


# We have epoch 5 and wrote 20; now we write 30. The stored checkpoint, and the next step:
ADVANCING = [
    # at, epoch, in doubt -> next step
    (20, 6, False, FencedOff(6)),  # a later owner has stamped it
    (20, 6, True, FencedOff(6)),
    (30, 6, True, FencedOff(6)),  # ... after our write took effect
    (
        30,
        5,
        True,
        AlreadyStored(saved(30, 5, "new")),
    ),  # our write took effect, its response was lost
    (20, 5, True, RetryWrite(saved(30, 5, "new"))),  # it did not
    (25, 5, True, RetryWrite(saved(30, 5, "new"))),  # an earlier one of ours did
    (10, 5, True, RetryWrite(saved(30, 5, "old"))),  # rewound by hand, or a stale listing
    (
        40,
        5,
        True,
        AlreadyStored(saved(40, 5, "new")),
    ),  # an attempt of ours that found an SDK ahead
    (10, 5, False, FencedOff(5)),
    (20, 5, False, FencedOff(5)),
    (30, 5, False, FencedOff(5)),  # only we have our epoch, and we did not write
    (
        20,
        0,
        False,
        RetryWrite(saved(30, 5, "new")),
    ),  # an official SDK, no further than we are
    (30, 0, False, RetryWrite(saved(30, 5, "new"))),
    (10, 0, False, RetryWrite(saved(30, 5, "new"))),  # it went back: undone
    (40, 0, False, RetryWrite(saved(40, 5, "new"))),  # it is ahead: stamped, position kept
    (40, 0, True, RetryWrite(saved(40, 5, "new"))),
    (None, 0, False, RetryWrite(saved(30, 5, "new"))),
    (20, 4, False, RetryWrite(saved(30, 5, "new"))),
    (40, 4, False, RetryWrite(saved(40, 5, "new"))),
]


@pytest.mark.parametrize(("at", "epoch", "in_doubt", "action"), ADVANCING)
def test_the_next_step_of_an_advance(
    at: int | None, epoch: int, in_doubt: bool, action: object
) -> None:
    stored = saved(at, epoch, "new")
    assert step(saved(20, 5, "old"), saved(30, 5, "old"), stored, in_doubt) == action


def test_a_rewind_counts_after_a_refused_write() -> None:
    known, requested, stored = (
        saved(20, 5, "old"),
        saved(30, 5, "old"),
        saved(10, 5, "new"),
    )
    assert next_step(known, requested, stored, in_doubt=True, refused=True) == FencedOff(5)


def test_a_stale_listing_after_a_refusal_is_read_again() -> None:
    """Our own write without a response caused the refusal; the listing shows what we had before."""
    known, requested = saved(20, 5, "known"), saved(30, 5, "known")
    stale = saved(10, 5, "before")
    step = next_step(known, requested, stale, in_doubt=True, refused=True, former=["before"])
    assert step == RetryWrite(requested)


# We have epoch 5 and have not stamped yet; the listing had 20 with epoch 3.
STAMPING = [
    (20, 6, False, FencedOff(6)),
    (
        20,
        5,
        True,
        RetryWrite(saved(20, 5, "new")),
    ),  # the listing may be stale: a grant proves it
    (20, 5, False, FencedOff(5)),  # another owner with our epoch: the row lost its epoch
    (
        30,
        5,
        True,
        RetryWrite(saved(30, 5, "new")),
    ),  # an earlier attempt, over another position
    (
        30,
        3,
        False,
        RetryWrite(saved(30, 5, "new")),
    ),  # the previous owner advanced meanwhile
    (20, 3, True, RetryWrite(saved(20, 5, "new"))),  # ours had no effect
    (
        10,
        0,
        False,
        RetryWrite(saved(10, 5, "new")),
    ),  # we have handled nothing: its position counts
    (40, 0, True, RetryWrite(saved(40, 5, "new"))),
    (None, 4, False, RetryWrite(saved(None, 5, "new"))),
]


@pytest.mark.parametrize(("at", "epoch", "in_doubt", "action"), STAMPING)
def test_the_next_step_of_a_stamp(
    at: int | None, epoch: int, in_doubt: bool, action: object
) -> None:
    stored = saved(at, epoch, "new")
    assert step(None, saved(20, 5, "old"), stored, in_doubt) == action


# We raise the epoch from 5 to 7 at 20.
RESTAMPING = [
    (20, 7, True, AlreadyStored(saved(20, 7, "new"))),
    (20, 5, True, RetryWrite(saved(20, 7, "new"))),
    (40, 5, True, RetryWrite(saved(40, 7, "new"))),
    (20, 5, False, FencedOff(5)),  # refused, though only we have this epoch: moved by hand
    (20, 8, True, FencedOff(8)),
    (20, 6, False, RetryWrite(saved(20, 7, "new"))),
    (20, 0, False, RetryWrite(saved(20, 7, "new"))),
]


@pytest.mark.parametrize(("at", "epoch", "in_doubt", "action"), RESTAMPING)
def test_the_next_step_of_a_restamp(at: int, epoch: int, in_doubt: bool, action: object) -> None:
    stored = saved(at, epoch, "new")
    assert step(saved(20, 5, "old"), saved(20, 7, "old"), stored, in_doubt) == action


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("known", [None, saved(20, 5, "old")])
def test_a_deleted_checkpoint_is_written_again(known: Checkpoint | None, in_doubt: bool) -> None:
    requested = saved(30, 5, "old")
    assert step(known, requested, None, in_doubt) == RetryWrite(saved(30, 5, ""))


def test_no_step_passes_unhandled_events_or_a_later_owner() -> None:
    """The two invariants, and that a write is always over the stored etag, with our epoch."""
    places = [None, 10, 20, 25, 30, 40]
    combinations = 0
    for known_at, requested_at, stored_at in product([*places, "never"], places, places):
        for requested_epoch, stored_epoch, in_doubt, refused in product(
            (5, 7), range(9), (False, True), (False, True)
        ):
            if in_doubt or refused:
                known = None if known_at == "never" else saved(known_at, 5, "old")  # type: ignore[arg-type]
                requested = saved(requested_at, requested_epoch, "old")
                stored = saved(stored_at, stored_epoch, "new")
                action = next_step(known, requested, stored, in_doubt=in_doubt, refused=refused)
                check(known, requested, stored, in_doubt, refused, action)
                combinations += 1
    assert combinations == 7 * 6 * 6 * 2 * 9 * 3


def check(
    known: Checkpoint | None,
    requested: Checkpoint,
    stored: Checkpoint,
    in_doubt: bool,
    refused: bool,
    action: AlreadyStored | RetryWrite | FencedOff,
) -> None:
    if stored.epoch > requested.epoch or (stored.epoch == requested.epoch and not in_doubt):
        assert action == FencedOff(stored.epoch)
    match action:
        case AlreadyStored(checkpoint):
            assert in_doubt
            assert checkpoint == stored
            assert checkpoint.epoch == requested.epoch
            assert known is None or not is_ahead(requested, checkpoint)
        case RetryWrite(checkpoint) if checkpoint.etag == "old":
            # The same write again: only if it may still be granted.
            assert not refused
            assert checkpoint == requested
        case RetryWrite(checkpoint):
            assert (checkpoint.epoch, checkpoint.etag) == (requested.epoch, "new")
            # Not past a handled event: it is our position or a stored one ...
            assert same_position(checkpoint, requested) or same_position(checkpoint, stored)
            # ... and not back from what is stored.
            assert not is_ahead(stored, checkpoint)
        case FencedOff(epoch):
            assert epoch == stored.epoch


@pytest.mark.parametrize(
    ("stored", "erased"),
    [
        (None, True),
        (saved(20, 0), True),
        (saved(20, 4), True),
        (saved(20, 5), False),
        (saved(20, 6), False),
    ],
)
def test_an_erased_stamp_is_detected(stored: Checkpoint | None, erased: bool) -> None:
    assert is_erased(saved(20, 5), saved(30, 7), stored) == erased  # stamped by us with 5
    assert is_erased(None, saved(30, 5), stored) == erased


@pytest.mark.parametrize(
    ("position", "other", "ahead"),
    [
        ((5, "1"), (4, "9"), True),  # the sequence number counts
        ((4, "9"), (4, "1"), False),
        ((0, "0"), (None, None), True),  # zero is a position
        ((None, "0"), (None, None), True),
        ((None, None), (0, "0"), False),
        ((None, None), (None, None), False),
        ((None, "900"), (5, "800"), True),
        ((None, "1000"), (None, "900"), True),  # as numbers, not as texts
        ((5, "0"), (None, "-1"), True),
        ((None, "geo:2"), (None, "geo:1"), False),  # not comparable
        ((None, "geo:2"), (5, "800"), False),
        ((None, "²"), (None, "1"), False),
        ((5, None), (None, "800"), False),
    ],
)
def test_the_checkpoint_ahead_is_detected(
    position: tuple[int | None, str | None], other: tuple[int | None, str | None], ahead: bool
) -> None:
    checkpoint, other_checkpoint = Checkpoint(GROUP, "0", *position), Checkpoint(GROUP, "0", *other)
    assert is_ahead(checkpoint, other_checkpoint) == ahead
    assert not (is_ahead(checkpoint, other_checkpoint) and is_ahead(other_checkpoint, checkpoint))
