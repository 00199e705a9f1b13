"""A query as a tenant, driven as Spark drives it: crashing, losing, being evicted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import Event
from pumphouse.leases.model import Granted, claim, release
from pumphouse.leases.store_url import open_store
from pumphouse.spark.source import read_task_partition
from pumphouse.spark.tenancy.lodging import Lodging

from .conftest import Hub
from .tenants.house import PARTITIONS, House, house_of, repeats, together
from .tenants.microbatch import COLUMNS, Folder, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def house(hub: Hub, tmp_path: Path) -> Iterator[House]:
    with house_of(hub, tmp_path) as found:
        yield found


# -- crashes --------------------------------------------------------------------------------------


def test_a_replay_reads_exactly_the_same_range(house: House) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "same")
    assert first.plan()
    before = first.read()
    first.crash()
    house.send()
    again = house.query(folder, "same")
    assert sorted(folder.rows) == sorted(before)
    again.drain(80)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_a_crash_between_commit_and_checkpoint_repeats_nothing(house: House) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "same")
    first.step()
    assert len(folder.rows) == 40
    assert house.leases.sequences() == dict.fromkeys(PARTITIONS, None)
    first.crash()
    house.send()
    for _ in range(2):  # once more before anything is read: the journal is older than the epoch
        again = house.query(folder, "same")
        again.plan()
        again.crash()
        folder.offsets = folder.offsets[: folder.committed]
    house.query(folder, "same").drain(80)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_a_replay_that_was_committed_is_not_read_again_after_another_crash(house: House) -> None:
    """Its journal has the epoch of the first run, and was read under that of the second."""
    house.send()
    folder = Folder()
    house.query(folder, "same").plan()
    for _ in range(2):
        house.queries[-1].crash()
        again = house.query(folder, "same")  # replays the batch, and Spark commits it
    assert len(folder.rows) == 40
    house.send()
    again.drain(80)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_what_was_taken_during_a_crash_is_not_read_again(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one")
    assert first.plan()
    first.read()
    first.crash()
    second = house.query(two, "two")
    second.drain(40)  # as soon as the lease of the first has run out
    again = house.query(one, "one")
    assert one.rows == []
    lost = {each["partition"]: each for each in again.told()["lost"]}
    assert lost.keys() == set(PARTITIONS)
    assert "two has it" in lost["0"]["why"]
    assert lost["0"]["left"] == [0, 10]
    house.send()
    together(again, second, done=lambda: len(one.rows) + len(two.rows) >= 80)
    together(again, second, done=lambda: len(again.owned()) == 2)
    assert {*one.rows, *two.rows} == house.everything()
    assert not repeats(one, two)


def test_what_was_taken_during_a_crash_is_left_out_and_the_rest_goes_on(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "same")
    assert first.plan()
    first.crash()
    asyncio.run(take(house, "2", "thief"))
    again = house.query(folder, "same")  # replays what was journalled
    assert set(folder.rows) == {row for row in house.everything() if row[0] != "2"}
    assert (
        "partition 2 is not ours any more: thief has it (epoch 2); "
        "events 0 to 9 are left to its owner"
    ) in caplog.text
    house.send()
    until(lambda: bool(again.step()))
    assert {number for one, number in folder.rows if one == "0"} == set(range(20))
    asyncio.run(give_up(house, "2"))  # it has handled nothing, so all of it is ours again
    again.drain(80)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_what_nobody_took_is_replayed_though_the_lease_has_run_out(house: House) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "same")
    assert first.plan()
    first.crash()
    until(lambda: all(row.expired(4.0) for row in house.leases.rows().values()))
    house.query(folder, "same").drain(40)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_what_was_not_taken_up_again_is_not_taken_for_read(house: House) -> None:
    """Spark has committed a batch, and some of it was never read: a later run must know."""
    house.send()
    folder = Folder()
    first = house.query(folder, "same", assignment="fixed:4", cycleInterval="100ms")
    until(lambda: first.plan() or len(first.owned()) == 4)
    until(lambda: len(first.owned()) == 4)
    if len(folder.offsets) > folder.committed:
        first.run()
    first.drain(40)
    house.send()
    assert first.plan()
    first.crash()
    fewer = house.query(
        folder, "same", assignment="fixed:1", cycleInterval="100ms", leaseDuration="1s",
        renewInterval="200ms",
    )  # fmt: skip
    (kept,) = fewer.owned()
    assert {one for one, _ in folder.rows[40:]} == {kept}
    fewer.crash()
    wide = house.query(folder, "same", assignment="fixed:4", cycleInterval="100ms")
    wide.drain(80)
    assert set(folder.rows) == house.everything()


# -- losing ---------------------------------------------------------------------------------------


def test_a_query_that_was_frozen_beyond_its_lease_loses_and_goes_on(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one")
    first.step()
    assert len(one.rows) == 40
    second = house.query(two, "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)  # the lease of the first has run out
    assert house.leases.owners() == dict.fromkeys(PARTITIONS, "two")
    taken = house.leases.checkpoints()
    house.send()
    assert first.step() == []  # its checkpoint is refused, and it plans nothing
    lost = {each["partition"]: each["why"] for each in first.told()["lost"]}
    assert lost == {one: f"two has it (epoch {mark.epoch})" for one, mark in taken.items()}
    assert {one: mark.epoch for one, mark in house.leases.checkpoints().items()} == {
        one: mark.epoch for one, mark in taken.items()
    }
    together(first, second, done=lambda: len(first.owned()) == 2)
    together(first, second, done=lambda: {*one.rows, *two.rows} == house.everything())
    assert len(repeats(one, two)) == 40  # the batch whose commit it could not say


async def insist(lodging: Lodging, sequence: int) -> list[str]:
    """Checkpoint with what it knows, and once more past its own fence: what came of both."""
    last = Event(b"", sequence=sequence, offset=str(sequence))
    tries = (
        lodging.client.write_checkpoint(last),
        lodging.client._writer.advance(sequence, last.offset, 0),
    )
    return [type(await each).__name__ for each in map(caught, tries)]


async def caught(work: Coroutine[Any, Any, object]) -> object:
    try:
        return await work
    except PumphouseError as failed:
        return failed


def test_who_has_lost_its_lease_cannot_checkpoint_nor_fence_out(house: House) -> None:
    house.send()
    first = house.query(Folder(), "one")
    assert first.plan()
    lodging = first.tenant.book.lodgings["2"]
    second = house.query(two := Folder(), "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    marks, rows = house.leases.checkpoints(), house.leases.epochs()
    found = first.tenant.wait(insist(lodging, 1000))
    assert found == ["OwnershipLost", "OwnershipLost"]
    assert house.leases.checkpoints() == marks
    assert house.leases.epochs() == rows
    house.send()
    second.drain(80)
    assert set(two.rows) == house.everything()


def test_a_batch_planned_before_the_loss_is_not_read_after_it(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one")
    assert first.plan()
    second = house.query(two, "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)
    assert first.run() == []
    assert "two has it" in first.told()["lost"][0]["why"]
    assert set(two.rows) == house.everything()


# -- evicted readers ------------------------------------------------------------------------------


def read_with(
    connection: str, partition: str, epoch: int, leave: threading.Event
) -> threading.Thread:
    """A reader of that epoch, attached until it is told to leave."""
    attached = threading.Event()

    async def attach() -> None:
        async with open_client(connection) as client:
            reader = await client.reader(ReaderOptions(partition, epoch=epoch, name="stranger"))
            attached.set()
            await asyncio.to_thread(leave.wait)
            await reader.close()

    thread = threading.Thread(target=lambda: asyncio.run(attach()))
    thread.start()
    assert attached.wait(30)
    return thread


def test_a_stranger_with_a_higher_epoch_is_outbid(house: House) -> None:
    house.send()
    folder, leave = Folder(), threading.Event()
    alone = house.query(folder, "alone")
    assert alone.plan()
    thread = read_with(house.hub.connection, "2", 1000, leave)
    try:
        alone.run()
        assert house.leases.rows()["2"].epoch == 1001
    finally:
        leave.set()
        thread.join(30)
    assert set(folder.rows) == house.everything()
    alone.drain(40)
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))


def test_a_task_leaves_what_another_host_has_taken(house: House) -> None:
    """The other host holds the row and reads; our task finds out when the hub refuses it."""
    house.send()
    folder, leave = Folder(), threading.Event()
    alone = house.query(folder, "alone")
    assert alone.plan()
    parts = alone.driver.parts(alone.offset(-1), alone.offset(0), COLUMNS)
    asyncio.run(take(house, "2", "thief"))
    thread = read_with(house.hub.connection, "2", 1000, leave)
    try:
        found = [len(list(read_task_partition(part))) for part in parts]
    finally:
        leave.set()
        thread.join(30)
    assert found == [1, 1, 0, 1]
    (lost,) = alone.told()["lost"]
    assert lost["partition"] == "2"
    assert "thief has it" in lost["why"]


async def give_up(house: House, partition: str) -> None:
    async with open_store(house.store) as store:
        rows = (await store.list_ownership(house.leases.group)).ownerships
        row = next(row for row in rows if row.partition == partition)
        await store.claim_ownership(house.leases.group, [release(row)])


async def take(house: House, partition: str, host: str) -> None:
    async with open_store(house.store) as store:
        for _ in range(50):  # the owner renews at the same time
            rows = (await store.list_ownership(house.leases.group)).ownerships
            row = next(row for row in rows if row.partition == partition)
            (outcome,) = await store.claim_ownership(
                house.leases.group, [claim(row, partition, host)]
            )
            if isinstance(outcome, Granted):
                return
    raise AssertionError("the row could not be taken")


def test_a_client_without_an_epoch_is_refused_by_name(house: House) -> None:
    """An official client, say: it is told which query reads there."""
    house.send(100)
    alone = house.query(Folder(), "watch-1", arrowBatchRows="10")
    assert alone.plan()
    parts = alone.driver.parts(alone.offset(-1), alone.offset(0), COLUMNS)
    reading = read_task_partition(parts[2])
    next(reading)  # the task is in the middle of it

    async def attach() -> None:
        async with open_client(house.hub.connection) as client:
            await client.reader(ReaderOptions("2", epoch=None, name="plain"))

    with pytest.raises(ReaderEvicted, match="'watch-1' is connected; receiver 'plain'"):
        asyncio.run(attach())
    assert sum(some.num_rows for some in reading) == 90
