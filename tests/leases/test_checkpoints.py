"""CheckpointWriter on every store: lost responses, later owners, SDKs and administrators."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.errors import (
    CheckpointRefused,
    OwnershipLost,
    StoreError,
    StoreMisused,
    StoreUnavailable,
)
from pumphouse.leases.checkpoints import ATTEMPTS, CheckpointWriter
from pumphouse.leases.flaky_store import Fault, FlakyStore, ScriptedFaults
from pumphouse.leases.model import Checkpoint, claim
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore
from pumphouse.leases.stores.memory import MemoryStore
from tests.leases.contract.calls import checkpoint_of, checkpoints, granted
from tests.leases.contract.stores import GROUP
from tests.leases.sdk_writes import update_checkpoint_as_sdk


def new_writer(store: CheckpointStore, epoch: int = 5) -> CheckpointWriter:
    return CheckpointWriter(store, GROUP, "0", epoch)


async def stamped(store: CheckpointStore, epoch: int = 5) -> CheckpointWriter:
    writer = new_writer(store, epoch)
    await writer.stamp()
    return writer


async def position_of(store: CheckpointStore) -> tuple[int | None, int]:
    stored = (await checkpoints(store))["0"]
    return stored.sequence, stored.epoch


async def write_by_hand(store: CheckpointStore, at: int | None, epoch: int = 0) -> None:
    """Overwrite the checkpoint as an official SDK (without an epoch) or an administrator does."""
    stored = (await checkpoints(store)).get("0") or Checkpoint(GROUP, "0")
    offset = None if at is None else str(at)
    checkpoint_of(
        await store.update_checkpoint(
            replace(stored, sequence=at, offset=offset, epoch=epoch), rewind=True
        )
    )


# -- without a lease ------------------------------------------------------------------------------


async def test_nothing_is_written_after_the_lease_expired(store: CheckpointStore) -> None:
    leased = [True]
    writer = CheckpointWriter(store, GROUP, "0", 5, lambda: leased[0])
    await writer.stamp()
    await writer.advance(3, "3")
    leased[0] = False
    with pytest.raises(OwnershipLost):
        await writer.advance(4, "4")
    with pytest.raises(OwnershipLost):
        await writer.advance(3, "3")  # although it is stored already
    with pytest.raises(OwnershipLost):
        await writer.restamp(6)
    assert await position_of(store) == (3, 5)


async def test_a_lease_that_expires_between_attempts_ends_them(store: CheckpointStore) -> None:
    asked = iter([True, True, True, False])  # the stamp, the call, its first try, its second
    flaky = FlakyStore(store)
    writer = CheckpointWriter(flaky, GROUP, "0", 5, lambda: next(asked))
    await writer.stamp()
    flaky.plan = ScriptedFaults(["before"])
    with pytest.raises(OwnershipLost):
        await writer.advance(3, "3")
    assert await position_of(store) == (None, 5)


# -- stamping -------------------------------------------------------------------------------------


async def test_the_first_stamp_is_bare(store: CheckpointStore) -> None:
    stored = await new_writer(store).stamp()
    assert not stored.has_position
    assert await position_of(store) == (None, 5)


async def test_a_stamp_keeps_the_position(store: CheckpointStore) -> None:
    await write_by_hand(store, 20, epoch=3)
    stored = await new_writer(store).stamp()
    assert (stored.sequence, stored.offset, stored.epoch) == (20, "20", 5)
    assert await position_of(store) == (20, 5)


async def test_a_stamp_after_a_stale_listing_keeps_the_stored_position(
    store: CheckpointStore,
) -> None:
    """The previous owner wrote between our listing and our stamp."""
    before = await stamped(store, 4)
    listed = await before.advance(20, "20")
    await before.advance(30, "30")
    assert (await new_writer(store).stamp(listed)).sequence == 30
    assert await position_of(store) == (30, 5)


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_stamp_with_a_lost_response_is_confirmed(
    store: CheckpointStore, fault: Fault
) -> None:
    await write_by_hand(store, 20, epoch=3)
    flaky = FlakyStore(store, ScriptedFaults([fault]))
    writer = new_writer(flaky)
    assert (await writer.stamp()).sequence == 20
    assert await position_of(store) == (20, 5)
    await writer.advance(21, "21")
    assert await position_of(store) == (21, 5)


async def test_a_restarted_pump_with_the_same_epoch_continues(
    store: CheckpointStore,
) -> None:
    await (await stamped(store)).advance(20, "20")
    assert (await new_writer(store).stamp()).sequence == 20


async def test_a_restarted_pump_verifies_a_stale_listing(
    store: CheckpointStore,
) -> None:
    """Found by the simulation: the pump started from a stale position and repeated events."""
    writer = await stamped(store)
    await writer.advance(10, "10")
    listed = (await checkpoints(store))["0"]
    await writer.advance(20, "20")
    assert (await new_writer(store).stamp(listed)).sequence == 20


async def test_a_stamp_never_overwrites_a_later_owner(store: CheckpointStore) -> None:
    await stamped(store, 6)
    with pytest.raises(OwnershipLost) as lost:
        await new_writer(store, 5).stamp()
    assert (lost.value.held_epoch, lost.value.epoch) == (5, 6)
    with pytest.raises(OwnershipLost):
        await new_writer(store, 5).stamp(Checkpoint(GROUP, "0", 1, "1", 3, etag="old"))
    assert await position_of(store) == (None, 6)


async def test_a_second_writer_with_the_same_epoch_is_detected(store: CheckpointStore) -> None:
    """Two owners have one epoch because an SDK rewrote the row: the second one is refused."""
    listed = Checkpoint(GROUP, "0", 1, "1", 3, etag="old")
    await stamped(store, 5)
    with pytest.raises(OwnershipLost) as lost:
        await new_writer(store, 5).stamp(listed)
    assert lost.value.epoch == 5  # so it raises its own epoch above that


# -- advancing ------------------------------------------------------------------------------------


async def test_an_advance_is_written(store: CheckpointStore) -> None:
    writer = await stamped(store)
    for at in (0, 1, 7, 7, 2**40):
        assert (await writer.advance(at, str(at), 1000 + at)).sequence == at
    stored = (await checkpoints(store))["0"]
    assert (stored.sequence, stored.offset, stored.enqueued_ms) == (2**40, str(2**40), 1000 + 2**40)


async def test_an_advance_never_goes_back(store: CheckpointStore) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    with pytest.raises(CheckpointRefused, match="go back from 20 to 19"):
        await writer.advance(19, "19")
    assert await position_of(store) == (20, 5)


async def test_an_advance_needs_a_stamp(store: CheckpointStore) -> None:
    with pytest.raises(StoreMisused, match="not stamped"):
        await new_writer(store).advance(1, "1")
    with pytest.raises(StoreMisused, match="not stamped"):
        await new_writer(store).restamp(9)


async def test_an_owner_is_fenced_off_by_the_next(store: CheckpointStore) -> None:
    old = await stamped(store, 5)
    await old.advance(20, "20")
    new = await stamped(store, 6)
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            await old.advance(21, "21")
    assert await position_of(store) == (20, 6)
    await new.advance(22, "22")
    with pytest.raises(OwnershipLost):
        await old.restamp(9)
    assert await position_of(store) == (22, 6)


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after"] * 2])
async def test_an_advance_with_a_lost_response_is_confirmed(
    store: CheckpointStore, faults: list[Fault]
) -> None:
    flaky = FlakyStore(store)
    writer = await stamped(flaky)
    flaky.plan = ScriptedFaults(faults)
    assert (await writer.advance(20, "20")).sequence == 20
    assert await position_of(store) == (20, 5)
    await writer.advance(21, "21")
    assert await position_of(store) == (21, 5)


async def test_after_a_lost_response_a_later_owner_is_not_overwritten(
    store: CheckpointStore,
) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    flaky = FlakyStore(store, ScriptedFaults(["before"]))
    writer._store = flaky
    await stamped(store, 6)
    with pytest.raises(OwnershipLost):
        await writer.advance(21, "21")
    assert await position_of(store) == (20, 6)


async def test_a_store_without_responses_raises(store: CheckpointStore) -> None:
    """StoreError reaches the caller; a later call continues from what is stored."""
    for epoch, at, arrived in ((5, 20, False), (7, 40, True)):
        flaky = FlakyStore(store)
        writer = await stamped(flaky, epoch)
        before = (await position_of(store))[0]
        faults: list[Fault] = ["after", "failed"] if arrived else ["before"] * ATTEMPTS
        flaky.plan = ScriptedFaults(faults)
        with pytest.raises(StoreError):
            await writer.advance(at, "x")
        assert (await position_of(store))[0] == (at if arrived else before)
        await writer.advance(at + 10, "y")
        assert await position_of(store) == (at + 10, epoch)


async def test_a_cancelled_advance_is_in_doubt(store: CheckpointStore) -> None:
    arrived = asyncio.Event()

    class Slow(FlakyStore):
        async def update_checkpoint(
            self, checkpoint: Checkpoint, *, rewind: bool = False
        ) -> CheckpointOutcome:
            await super().update_checkpoint(checkpoint, rewind=rewind)
            arrived.set()
            return await asyncio.Future()

    writer = await stamped(store)
    writer._store = Slow(store)
    writing = asyncio.create_task(writer.advance(20, "20"))
    await arrived.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    writer._store = store
    await writer.advance(21, "21")
    assert await position_of(store) == (21, 5)


async def test_a_stale_listing_does_not_end_the_term(store: CheckpointStore) -> None:
    """The second read is stale: the refused etag shows that, and it reads again."""
    flaky = FlakyStore(store)
    writer = await stamped(flaky)
    await flaky.list_checkpoints(GROUP)
    flaky.plan = ScriptedFaults(["after", "stale"])
    assert (await writer.advance(20, "20")).sequence == 20
    flaky.plan = ScriptedFaults(["before", "stale"])
    assert (await writer.advance(21, "21")).sequence == 21
    assert await position_of(store) == (21, 5)


# -- other writers --------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [None, 10, 20, 25])
async def test_a_checkpoint_of_an_sdk_behind_us_is_overwritten(
    store: CheckpointStore, theirs: int | None
) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    await write_by_hand(store, theirs)
    await writer.advance(25, "25")
    assert await position_of(store) == (25, 5)


async def test_a_checkpoint_of_an_sdk_ahead_of_us_is_kept_and_stamped(
    store: CheckpointStore,
) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    await write_by_hand(store, 40)
    assert (await writer.advance(25, "25")).sequence == 40
    assert await position_of(store) == (40, 5)
    for at in (30, 40):  # we repeat what they have handled: our own position does not go back
        assert (await writer.advance(at, str(at))).sequence == 40
    await writer.advance(41, "41")
    assert await position_of(store) == (41, 5)


@pytest.mark.parametrize("at", [10, 40])
async def test_a_checkpoint_moved_by_hand_ends_the_term(store: CheckpointStore, at: int) -> None:
    """Its pump starts again from there, instead of overwriting it."""
    writer = await stamped(store)
    await writer.advance(20, "20")
    await write_by_hand(store, at, epoch=5)
    with pytest.raises(OwnershipLost) as lost:
        await writer.advance(21, "21")
    assert lost.value.epoch == 5
    assert await position_of(store) == (at, 5)
    assert (await new_writer(store, 6).stamp()).sequence == at


@pytest.mark.parametrize("at", [10, 20, 40])
async def test_a_moved_checkpoint_is_found_without_a_new_position(
    store: CheckpointStore, at: int
) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    assert (await writer.confirm()).sequence == 20
    assert not writer.is_fenced_off
    await write_by_hand(store, at, epoch=5)
    with pytest.raises(OwnershipLost):
        await writer.confirm()
    assert writer.is_fenced_off
    assert await position_of(store) == (at, 5)


async def test_the_checkpoint_of_a_re_created_hub_moves_to_its_beginning(
    store: CheckpointStore,
) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20", 1000)
    await writer.restart(-1, "-1")
    stored = (await checkpoints(store))["0"]
    assert (stored.sequence, stored.offset, stored.enqueued_ms) == (-1, "-1", None)
    await writer.advance(0, "0", 2000)
    assert await position_of(store) == (0, 5)


async def test_a_later_owner_prevents_a_restart(store: CheckpointStore) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    await new_writer(store, 6).stamp()
    with pytest.raises((StoreUnavailable, CheckpointRefused)):
        await writer.restart(-1, "-1")
    assert await position_of(store) == (20, 6)


async def test_a_raised_epoch_is_stamped(store: CheckpointStore) -> None:
    writer = await stamped(store)
    await writer.advance(20, "20")
    assert (await writer.restamp(9)).sequence == 20
    assert await position_of(store) == (20, 9)
    await writer.advance(21, "21")
    with pytest.raises(StoreMisused, match="must rise"):
        await writer.restamp(9)
    with pytest.raises(OwnershipLost):
        await new_writer(store, 8).stamp()
    assert await position_of(store) == (21, 9)


async def test_a_raised_epoch_without_a_response_is_stamped_later(store: CheckpointStore) -> None:
    flaky = FlakyStore(store)
    writer = await stamped(flaky)
    await writer.advance(20, "20")
    flaky.plan = ScriptedFaults(["before"] * ATTEMPTS)
    with pytest.raises(StoreError):
        await writer.restamp(9)
    assert await position_of(store) == (20, 5)
    await writer.advance(
        20, "20"
    )  # nothing new was handled, but earlier owners are not fenced off yet
    assert await position_of(store) == (20, 9)
    await write_by_hand(store, 40)
    assert (await writer.advance(21, "21")).sequence == 40
    flaky.plan = ScriptedFaults(["before"] * ATTEMPTS)
    with pytest.raises(StoreError):
        await writer.restamp(11)
    await writer.advance(22, "22")  # a position ahead of ours is kept
    assert await position_of(store) == (40, 11)


async def test_an_erased_stamp_does_not_admit_an_earlier_owner(
    store: CheckpointStore,
) -> None:
    """The checkpoint no longer shows the later owner; the row does."""
    row = await granted(store, claim(None, "0", "old", epoch_known=4))
    old = await stamped(store, row.epoch)
    await old.advance(20, "20")
    row = await granted(store, claim(row, "0", "new"))
    new = await stamped(store, row.epoch)
    await write_by_hand(store, 15)
    with pytest.raises(OwnershipLost) as lost:
        await old.advance(21, "21")
    assert (lost.value.owner, lost.value.epoch) == ("new", 6)
    assert await position_of(store) == (15, 0)
    await new.advance(22, "22")
    assert await position_of(store) == (22, 6)


async def test_attempts_are_bounded() -> None:
    """A writer that interferes with each attempt ends them with an error."""
    store = MemoryStore()

    class Fought(FlakyStore):
        async def list_checkpoints(self, group: object) -> list[Checkpoint]:
            update_checkpoint_as_sdk(store, Checkpoint(GROUP, "0", 1, "1"))
            return await store.list_checkpoints(GROUP)

    writer = await stamped(store)
    writer._store = Fought(store, ScriptedFaults(["before"] * 100))
    with pytest.raises(StoreError, match=f"in {ATTEMPTS} attempts"):
        await writer.advance(20, "20")


async def test_concurrent_calls_write_one_after_another(store: CheckpointStore) -> None:
    writer = await stamped(store)
    await asyncio.gather(*(writer.advance(at, str(at)) for at in range(10)))
    assert await position_of(store) == (9, 5)


def test_the_repr_shows_the_position() -> None:
    assert repr(new_writer(MemoryStore())) == "<CheckpointWriter 0 epoch 5 | not stamped>"
