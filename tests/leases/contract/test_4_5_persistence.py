"""Clauses 4 and 5: no row is deleted, and none is kept or returned by reference."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, replace

import pytest

from pumphouse.errors import CheckpointRefused, StoreMisused
from pumphouse.leases.model import Checkpoint, Granted, Refused, claim, release, renew, stamp
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import (
    checkpoint_of,
    checkpoints,
    first,
    granted,
    kept,
    members,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP, StoreBackend


async def test_a_released_row_keeps_its_epoch(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    row = await first(store, host="a")
    row = await granted(store, claim(row, "0", "b"))
    await granted(store, release(row))
    await backend.pass_time(backend.tick_s)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) == ("", 2)
    taken = await granted(store, claim(listed, "0", "c"))
    assert taken.epoch == 3


async def test_listed_epochs_of_checkpoints_are_the_stored_ones(
    store: CheckpointStore,
) -> None:
    """With both in one listing, a claim needs no second request."""
    await first(store, "0", "a")
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 3)))
    for sequence, epoch in ((7, 3), (7, 5)):
        reported = (await store.list_ownership(GROUP)).epochs
        stored = {each.partition: each.epoch for each in await store.list_checkpoints(GROUP)}
        assert reported is None or reported == stored
        moved = replace(stored_checkpoint, sequence=sequence, offset=str(sequence), epoch=epoch)
        stored_checkpoint = checkpoint_of(await store.update_checkpoint(moved))
    assert ((await store.list_ownership(GROUP)).epochs or {"0": 5}) == {"0": 5}


async def test_a_released_row_is_still_a_row(store: CheckpointStore) -> None:
    await granted(store, release(await first(store)))
    assert isinstance(await write(store, claim(None, "0", "b")), Refused)


async def test_rows_outlive_the_handle_that_wrote_them(backend: StoreBackend) -> None:
    async with backend.open() as store:
        row = await first(store)
        stored_checkpoint = checkpoint_of(
            await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
        )
        await store.beat(GROUP, "a")
    async with backend.open() as store:
        assert kept((await rows(store))["0"]) == kept(row)
        assert await checkpoints(store) == {"0": stored_checkpoint}
        assert list(await members(store)) == ["a"]
        await granted(store, renew(row))


async def test_a_release_does_not_change_the_checkpoint(store: CheckpointStore) -> None:
    row = await first(store)
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
    )
    await granted(store, release(row))
    assert await checkpoints(store) == {"0": stored_checkpoint}


async def test_a_bare_stamp_is_kept(store: CheckpointStore) -> None:
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 4)))
    read_back = (await checkpoints(store))["0"]
    assert read_back == stored_checkpoint
    assert not read_back.has_position
    assert read_back.epoch == 4


# -- checkpoints do not go back -------------------------------------------------------------------


async def test_a_checkpoint_that_goes_back_is_refused_where_the_store_can_detect_it(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 3))
    )
    for back in (
        Checkpoint(GROUP, "0", 4, "40", 3, stored_checkpoint.etag),
        Checkpoint(GROUP, "0", None, "40", 3, stored_checkpoint.etag),
        Checkpoint(GROUP, "0", 9, "90", 2, stored_checkpoint.etag),
    ):
        if backend.sees_checkpoints:
            with pytest.raises(CheckpointRefused, match="partition 0"):
                await store.update_checkpoint(back)
            assert await checkpoints(store) == {"0": stored_checkpoint}
    same = await store.update_checkpoint(stored_checkpoint)
    assert isinstance(same, Granted)


async def test_an_administrator_may_rewind(store: CheckpointStore) -> None:
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 3))
    )
    back = Checkpoint(GROUP, "0", 1, "10", 3, stored_checkpoint.etag)
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(back, rewind=True))
    assert await checkpoints(store) == {"0": stored_checkpoint}
    assert stored_checkpoint.sequence == 1


async def test_a_rewind_needs_the_current_etag(
    store: CheckpointStore,
) -> None:
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 3))
    )
    newer = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 6, "60", 3, stored_checkpoint.etag))
    )
    back = Checkpoint(GROUP, "0", 1, "10", 3, stored_checkpoint.etag)
    assert isinstance(await store.update_checkpoint(back, rewind=True), Refused)
    assert await checkpoints(store) == {"0": newer}


# -- members --------------------------------------------------------------------------------------


async def test_members_come_and_go(store: CheckpointStore) -> None:
    for name in ("host-a", "host-b", "vm with spaces/and:signs"):
        await store.beat(GROUP, name)
    await store.beat(GROUP, "host-a")
    assert sorted(await members(store)) == ["host-a", "host-b", "vm with spaces/and:signs"]
    await store.leave(GROUP, "host-a")
    await store.leave(GROUP, "vm with spaces/and:signs")
    await store.leave(GROUP, "absent")
    assert list(await members(store)) == ["host-b"]
    await store.beat(GROUP, "host-a")
    assert sorted(await members(store)) == ["host-a", "host-b"]


async def test_a_member_may_have_a_limit(store: CheckpointStore) -> None:
    await store.beat(GROUP, "host-a", 4)
    await store.beat(GROUP, "host-b")
    read_back = await members(store)
    assert (read_back["host-a"].max_partitions, read_back["host-b"].max_partitions) == (4, None)
    await store.beat(GROUP, "host-a")
    await store.beat(GROUP, "host-b", 7)
    read_back = await members(store)
    assert (read_back["host-a"].max_partitions, read_back["host-b"].max_partitions) == (None, 7)


async def test_members_and_owners_are_listed_separately(store: CheckpointStore) -> None:
    await store.beat(GROUP, "host-b")
    await first(store, host="a")
    listing = await store.list_ownership(GROUP)
    assert [row.owner for row in listing.ownerships] == ["a"]
    assert [member.name for member in listing.members] == ["host-b"]
    assert await store.list_checkpoints(GROUP) == []


# -- copies ---------------------------------------------------------------------------------------


async def test_returned_rows_are_frozen(store: CheckpointStore) -> None:
    await first(store)
    checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    row = (await rows(store))["0"]
    with pytest.raises(FrozenInstanceError):
        row.owner = "me"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        (await checkpoints(store))["0"].sequence = 5  # type: ignore[misc]


async def test_editing_a_returned_row_changes_nothing(store: CheckpointStore) -> None:
    """By object.__setattr__, as a careless test would."""
    row = await first(store)
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    listed, read_back = (await rows(store))["0"], (await checkpoints(store))["0"]
    for each in (row, listed):
        object.__setattr__(each, "owner", "other")
    for seen in (stored_checkpoint, read_back):
        object.__setattr__(seen, "sequence", 99)
    assert (await rows(store))["0"].owner == "a"
    assert (await checkpoints(store))["0"].sequence is None
    everything = await store.list_checkpoints(GROUP)
    everything.clear()
    assert len(await store.list_checkpoints(GROUP)) == 1


async def test_a_store_does_not_keep_the_rows_it_receives(store: CheckpointStore) -> None:
    requested = claim(None, "0", "a")
    claims = [requested]
    await store.claim_ownership(GROUP, claims)
    object.__setattr__(requested, "owner", "other")
    claims.clear()
    assert (await rows(store))["0"].owner == "a"


async def test_claims_changed_during_the_call_are_written_unchanged_or_not_at_all(
    store: CheckpointStore,
) -> None:
    claims = [claim(None, "0", "a"), claim(None, "1", "a")]
    writing = asyncio.ensure_future(store.claim_ownership(GROUP, claims))
    await asyncio.sleep(0)
    claims[:] = [claim(None, "5", "other")]
    try:
        assert len(await writing) == 2
    except StoreMisused:
        assert await rows(store) == {}
    else:
        assert sorted(await rows(store)) == ["0", "1"]
