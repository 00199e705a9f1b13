"""MemoryStore raises on misuse that other stores do not detect; a lost race is refused."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from pumphouse.clock import MovableClock
from pumphouse.errors import PumphouseError, StoreMisused
from pumphouse.leases.model import (
    Checkpoint,
    Ownership,
    Refused,
    aged,
    claim,
    confirm,
    hand_over,
    nominate,
    raise_epoch,
    release,
    renew,
)
from pumphouse.leases.rules import row_fault
from pumphouse.leases.stores.memory import MEMBER_KEPT_S, MemoryStore
from tests.leases.contract.calls import (
    checkpoints,
    first,
    granted,
    members,
    refused,
    row_of,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP, Clock
from tests.leases.sdk_writes import claim_as_sdk, update_checkpoint_as_sdk

HELD = Ownership("0", "a", 5, "etag")
FREE = replace(HELD, owner="")
ASKED = nominate(HELD, "b", 30.0)
OVERDUE = replace(ASKED, deadline_s=-1.0)
HANDED = replace(hand_over(ASKED, 10.0), etag="etag")
FOREIGN = Ownership("0", "sdk", 0, "etag")

RIGHT = [
    (None, claim(None, "0", "a")),
    (None, claim(None, "0", "a", epoch_known=9)),
    (HELD, renew(HELD, 4.0)),
    (HELD, release(HELD)),
    (HELD, claim(HELD, "0", "b")),  # it has expired in the claimer's listing
    (HELD, claim(HELD, "0", "a")),  # a host of the same name was restarted
    (HELD, nominate(HELD, "b", 30.0)),
    (HELD, nominate(HELD, "b", 0.0)),
    (HELD, raise_epoch(HELD, 9)),
    (FREE, claim(FREE, "0", "b")),
    (FREE, claim(FREE, "0", "a")),
    (FREE, release(FREE)),
    (ASKED, renew(ASKED)),
    (ASKED, renew(aged(ASKED, 10.0))),
    (ASKED, hand_over(ASKED)),
    (ASKED, hand_over(ASKED, 10.0)),
    (HANDED, confirm(HANDED)),
    (HANDED, release(HANDED)),
    (HANDED, claim(HANDED, "0", "c")),  # b has not confirmed it
    (aged(HANDED, 11.0), claim(aged(HANDED, 11.0), "0", "c")),
    (ASKED, release(ASKED)),
    (ASKED, raise_epoch(ASKED, 9)),
    (ASKED, claim(ASKED, "0", "c")),  # its owner has expired
    (OVERDUE, claim(OVERDUE, "0", "b")),
    (OVERDUE, hand_over(OVERDUE)),
    (OVERDUE, renew(OVERDUE)),
    (OVERDUE, nominate(OVERDUE, "c", 30.0)),  # b has died
    (FOREIGN, nominate(FOREIGN, "a", 30.0)),
    (FOREIGN, claim(FOREIGN, "0", "a", epoch_known=9)),
]

WRONG = [
    (None, Ownership("0", "a", 0), "no epoch"),
    (None, Ownership("0", "", 1), "no owner"),
    (None, Ownership("0", "a", 1, successor="b", deadline_s=30.0), "has a successor"),
    (None, Ownership("", "a", 1), "no partition"),
    (None, Ownership("0", "a", -1), "epoch is -1"),
    (HELD, replace(HELD, epoch=4), "fall from 5 to 4"),
    (HELD, replace(HELD, owner="", epoch=4), "fall from 5 to 4"),
    (HELD, replace(HELD, owner="b"), "from a to b, but the epoch does not rise"),
    (HELD, replace(HELD, owner="b", epoch=4), "does not rise"),
    (FREE, replace(FREE, owner="a"), "from (none) to a, but the epoch does not rise"),
    (
        HELD,
        replace(HELD, owner="b", epoch=6, successor="c", deadline_s=1.0),
        "c stays its successor",
    ),
    (FREE, nominate(FREE, "b", 30.0), "it has a successor but no owner"),
    (HELD, nominate(HELD, "a", 30.0), "a would succeed itself"),
    (HELD, nominate(HELD, "b", -1.0), "deadline in the past"),
    (HELD, replace(HELD, successor="b"), "both a successor and a deadline, or neither"),
    (HELD, replace(HELD, deadline_s=30.0), "both a successor and a deadline, or neither"),
    (None, Ownership("0", "a", 1, deadline_s=30.0), "both a successor and a deadline, or neither"),
    (HANDED, renew(HANDED), "both a successor and a deadline, or neither"),
    (ASKED, replace(hand_over(ASKED, 10.0), owner="c"), "c would confirm a hand-over"),
    (HELD, replace(claim(HELD, "0", "b"), deadline_s=10.0), "b would confirm a hand-over"),
    (HELD, replace(release(HELD), deadline_s=10.0), "it has a deadline but no owner"),
    (HELD, nominate(HELD, "b", math.inf), "deadline is inf"),
    (HELD, nominate(HELD, "b", math.nan), "deadline is nan"),
    (HELD, renew(HELD, -1.0), "rate is -1"),
    (HELD, renew(HELD, math.nan), "rate is nan"),
    (HELD, renew(HELD, math.inf), "rate is inf"),
    (ASKED, replace(ASKED, successor="", deadline_s=None), "drop the successor b before"),
    (ASKED, nominate(ASKED, "c", 30.0), "drop the successor b before"),
    (
        OVERDUE,
        replace(OVERDUE, successor="", deadline_s=None),
        "drop the successor b, which may claim it",
    ),
    (aged(ASKED, 10.0), renew(ASKED), "postpone the deadline of b by 10.0 s"),
    (aged(ASKED, 10.0), raise_epoch(ASKED, 9), "postpone the deadline of b by 10.0 s"),
]


@pytest.mark.parametrize(("stored", "requested"), RIGHT)
def test_a_valid_row_may_follow(stored: Ownership | None, requested: Ownership) -> None:
    assert row_fault(stored, requested) is None


@pytest.mark.parametrize(("stored", "requested", "words"), WRONG)
def test_an_invalid_row_is_refused_with_its_fault(
    stored: Ownership | None, requested: Ownership, words: str
) -> None:
    fault = row_fault(stored, requested)
    assert fault is not None
    assert words in fault


def test_a_renewal_may_postpone_a_deadline_within_the_limit() -> None:
    assert row_fault(aged(ASKED, 4.9), renew(ASKED)) is None
    assert row_fault(aged(ASKED, 5.1), renew(ASKED)) is not None
    assert row_fault(aged(ASKED, 5.1), renew(ASKED), put_off_s_max=6.0) is None


# -- the store ------------------------------------------------------------------------------------


async def test_a_misuse_writes_nothing() -> None:
    store = MemoryStore()
    row = await first(store)
    with pytest.raises(
        StoreMisused, match=r"partition 0: the epoch would fall from 1 to 0"
    ) as raised:
        await store.claim_ownership(GROUP, [claim(None, "1", "a"), replace(row, epoch=0)])
    assert isinstance(raised.value, AssertionError)
    assert isinstance(raised.value, PumphouseError)
    assert list(await rows(store)) == ["0"]


async def test_the_loser_of_a_race_is_refused_whatever_it_wrote() -> None:
    store = MemoryStore()
    row = await first(store)
    newer = await granted(store, claim(row, "0", "b"))
    await refused(store, replace(row, epoch=0))
    await refused(store, replace(row, owner="c"))
    await refused(store, claim(None, "0", "c"))
    assert (await rows(store))["0"].etag == newer.etag


async def test_two_claims_of_one_partition_in_one_call_are_refused() -> None:
    store = MemoryStore()
    with pytest.raises(StoreMisused, match="same partition"):
        await store.claim_ownership(GROUP, [claim(None, "0", "a"), claim(None, "0", "b")])


async def test_claims_changed_during_the_call_are_refused() -> None:
    store = MemoryStore()
    claims = [claim(None, "0", "a")]
    writing = asyncio.ensure_future(store.claim_ownership(GROUP, claims))
    await asyncio.sleep(0)
    claims.clear()
    with pytest.raises(StoreMisused, match="changed"):
        await writing
    assert await rows(store) == {}


async def test_a_row_edited_by_force_during_the_call_is_refused() -> None:
    store = MemoryStore()
    requested = claim(None, "0", "a")
    writing = asyncio.ensure_future(store.claim_ownership(GROUP, [requested]))
    await asyncio.sleep(0)
    object.__setattr__(requested, "owner", "b")
    with pytest.raises(StoreMisused, match="changed"):
        await writing


async def test_a_renewal_counts_from_its_call_though_other_code_blocks_the_loop() -> None:
    """The store lets other tasks run before it writes. One of them may block for a while."""
    clock = Clock()
    store = MemoryStore(clock)
    requested = await granted(store, nominate(await first(store, host="a"), "b", 30.0))
    asyncio.get_running_loop().call_soon(setattr, clock, "time", clock.time + 20)
    renewed = await granted(store, renew(requested))
    clock.time += 10
    with pytest.raises(StoreMisused, match=r"aged\(row, elapsed_s\)"):
        await write(store, renew(renewed))


async def test_an_owner_must_not_postpone_its_successors_deadline() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    row = await granted(store, nominate(await first(store, host="a"), "b", 30.0))
    clock.time += 10
    with pytest.raises(StoreMisused, match=r"aged\(row, elapsed_s\)"):
        await write(store, renew(row))
    await granted(store, renew(aged(row, 10)))
    assert (await rows(store))["0"].deadline_s == 20


async def test_ages_count_by_the_given_clock() -> None:
    clock = MovableClock()
    store = MemoryStore(clock)
    await first(store)
    clock.advance(3600)
    assert (await rows(store))["0"].age_s >= 3600


async def test_a_member_without_beats_for_a_day_is_removed() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    await store.beat(GROUP, "gone")
    clock.time += MEMBER_KEPT_S
    await store.beat(GROUP, "here")
    assert sorted(await members(store)) == ["gone", "here"]
    clock.time += 1
    await store.beat(GROUP, "here")
    assert sorted(await members(store)) == ["here"]


def test_the_repr_shows_rows_and_writes() -> None:
    async def fill() -> MemoryStore:
        store = MemoryStore()
        await granted(store, renew(await first(store)))
        return store

    assert repr(asyncio.run(fill())) == "<MemoryStore | 1 rows | 2 writes>"


# -- what an official SDK does to the rows --------------------------------------------------------


async def test_a_claim_of_an_sdk_keeps_only_the_owner() -> None:
    store = MemoryStore()
    row = await granted(store, nominate(await first(store, host="a"), "b", 30.0))
    assert isinstance(claim_as_sdk(store, GROUP, Ownership("0", "sdk")), Refused)
    taken = row_of(claim_as_sdk(store, GROUP, replace(row, owner="sdk")))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch, listed.successor, listed.deadline_s) == ("sdk", 0, "", None)
    assert listed.etag == taken.etag
    back = await granted(store, claim(listed, "0", "a", epoch_known=1))
    assert back.epoch == 2


async def test_a_checkpoint_of_an_sdk_overwrites_ours() -> None:
    store = MemoryStore()
    await store.update_checkpoint(Checkpoint(GROUP, "0", 20, "20", 5))
    update_checkpoint_as_sdk(store, Checkpoint(GROUP, "0", 10, "10", 5))
    checkpoint = (await checkpoints(store))["0"]
    assert (checkpoint.sequence, checkpoint.epoch) == (10, 0)
