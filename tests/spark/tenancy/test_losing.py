"""A tenant that crashes, loses partitions or is evicted; called as Spark calls it."""

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
from pumphouse.processor.partition import PartitionClient
from pumphouse.spark.source import read_task_partition
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.microbatch import COLUMNS, CheckpointFolder
from tests.spark.tenancy.support.shared_group import (
    PARTITIONS,
    SharedGroup,
    duplicates,
    run_together,
    shared_group,
)

pytestmark = [pytest.mark.needs(SHARING), pytest.mark.timeout(300)]


@pytest.fixture
def group(hub: Hub, tmp_path: Path) -> Iterator[SharedGroup]:
    with shared_group(hub, tmp_path) as group:
        yield group


# -- crashes --------------------------------------------------------------------------------------


def test_a_replay_reads_exactly_the_same_range(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same")
    assert first.plan()
    before = first.read()
    first.crash()
    group.send()
    again = group.query(folder, "same")
    assert sorted(folder.rows) == sorted(before)
    again.drain(80)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_crash_between_commit_and_checkpoint_reads_nothing_twice(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same")
    first.step()
    assert len(folder.rows) == 40
    assert group.leases.sequences() == dict.fromkeys(PARTITIONS, None)
    first.crash()
    group.send()
    for _ in range(2):  # the second crash comes before anything is read
        again = group.query(folder, "same")
        again.plan()
        again.crash()
        folder.offsets = folder.offsets[: folder.committed]
    group.query(folder, "same").drain(80)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_committed_replay_is_not_read_again_after_another_crash(group: SharedGroup) -> None:
    """Its journal has the epoch of the first run, and it was read with that of the second."""
    group.send()
    folder = CheckpointFolder()
    group.query(folder, "same").plan()
    for _ in range(2):
        group.queries[-1].crash()
        again = group.query(folder, "same")  # replays the batch, and Spark commits it
    assert len(folder.rows) == 40
    group.send()
    again.drain(80)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_partition_taken_after_a_crash_is_not_read_again(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one")
    assert first.plan()
    first.read()
    first.crash()
    second = group.query(two, "two")
    second.drain(40)  # after the lease of the first has expired
    again = group.query(one, "one")
    assert one.rows == []
    lost = {each["partition"]: each for each in again.report()["lost"]}
    assert lost.keys() == set(PARTITIONS)
    assert "two owns it" in lost["0"]["why"]
    assert lost["0"]["left"] == [0, 10]
    group.send()
    run_together(again, second, done=lambda: len(one.rows) + len(two.rows) >= 80)
    run_together(again, second, done=lambda: len(again.owned()) == 2)
    assert {*one.rows, *two.rows} == group.all_rows()
    assert not duplicates(one, two)


def test_a_partition_taken_after_a_crash_is_skipped_and_the_others_are_replayed(
    group: SharedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same")
    assert first.plan()
    first.crash()
    asyncio.run(claim_for(group, "2", "thief"))
    again = group.query(folder, "same")  # replays the journalled batch
    assert set(folder.rows) == {row for row in group.all_rows() if row[0] != "2"}
    taken = 'partition_taken partition=2 why="thief owns it (epoch 2)" skipped=0-9'
    assert any(taken in message for message in caplog.messages)
    group.send()
    until(lambda: bool(again.step()))
    assert {number for name, number in folder.rows if name == "0"} == set(range(20))
    asyncio.run(release_row(group, "2"))  # it has handled nothing: all of it is ours again
    again.drain(80)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_batch_is_replayed_after_the_lease_has_expired_if_no_host_took_it(
    group: SharedGroup,
) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same")
    assert first.plan()
    first.crash()
    until(lambda: all(row.expired(4.0) for row in group.leases.rows().values()))
    group.query(folder, "same").drain(40)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_range_that_a_replay_skipped_is_read_by_a_later_run(group: SharedGroup) -> None:
    """Spark has committed a batch of which some ranges were not read."""
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same", assignment="fixed:4", cycleInterval="100ms")
    until(lambda: first.plan() or len(first.owned()) == 4)
    until(lambda: len(first.owned()) == 4)
    if len(folder.offsets) > folder.committed:
        first.run()
    first.drain(40)
    group.send()
    assert first.plan()
    first.crash()
    fewer = group.query(
        folder, "same", assignment="fixed:1", cycleInterval="100ms", leaseDuration="1s",
        renewInterval="200ms",
    )  # fmt: skip
    (kept,) = fewer.owned()
    assert {name for name, _ in folder.rows[40:]} == {kept}
    fewer.crash()
    wide = group.query(folder, "same", assignment="fixed:4", cycleInterval="100ms")
    wide.drain(80)
    assert set(folder.rows) == group.all_rows()


# -- lost leases-----------------------------------------------------------------------------------


def test_a_query_that_was_frozen_beyond_its_lease_loses_its_partitions_and_continues(
    group: SharedGroup,
) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one")
    first.step()
    assert len(one.rows) == 40
    second = group.query(two, "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)  # the lease of the first has expired
    assert group.leases.owners() == dict.fromkeys(PARTITIONS, "two")
    taken = group.leases.checkpoints()
    group.send()
    assert first.step() == []  # its checkpoint is refused, and it plans nothing
    lost = {each["partition"]: each["why"] for each in first.report()["lost"]}
    assert lost == {name: f"two owns it (epoch {row.epoch})" for name, row in taken.items()}
    assert {name: row.epoch for name, row in group.leases.checkpoints().items()} == {
        name: row.epoch for name, row in taken.items()
    }
    run_together(first, second, done=lambda: len(first.owned()) == 2)
    run_together(first, second, done=lambda: {*one.rows, *two.rows} == group.all_rows())
    assert len(duplicates(one, two)) == 40  # the batch that was never checkpointed


async def checkpoint_twice(term: PartitionClient, sequence: int) -> list[str]:
    """Write a checkpoint, and write it past the client's own check; both outcomes."""
    last = Event(b"", sequence=sequence, offset=str(sequence))
    attempts = (
        term.write_checkpoint(last),
        term._checkpoint.writer.advance(sequence, last.offset, 0),
    )
    return [type(await each).__name__ for each in map(result_or_error, attempts)]


async def result_or_error(work: Coroutine[Any, Any, object]) -> object:
    try:
        return await work
    except PumphouseError as failed:
        return failed


def test_a_host_without_its_lease_cannot_write_checkpoints(group: SharedGroup) -> None:
    group.send()
    first = group.query(CheckpointFolder(), "one")
    assert first.plan()
    term = first.host.batches.partition("2").term
    second = group.query(two := CheckpointFolder(), "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    checkpoints, epochs = group.leases.checkpoints(), group.leases.epochs()
    outcomes = first.host.wait(checkpoint_twice(term, 1000))
    assert outcomes == ["OwnershipLost", "OwnershipLost"]
    assert group.leases.checkpoints() == checkpoints
    assert group.leases.epochs() == epochs
    group.send()
    second.drain(80)
    assert set(two.rows) == group.all_rows()


def test_a_batch_planned_before_the_loss_is_not_read_after_it(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one")
    assert first.plan()
    second = group.query(two, "two", assignment="greedy")
    first.freeze(6.0)
    second.drain(40)
    assert first.run() == []
    assert "two owns it" in first.report()["lost"][0]["why"]
    assert set(two.rows) == group.all_rows()


# -- evicted readers ------------------------------------------------------------------------------


def read_with(
    connection: str, partition: str, epoch: int, leave: threading.Event
) -> threading.Thread:
    """Attach a reader with this epoch until `leave` is set."""
    attached = threading.Event()

    async def attach() -> None:
        async with open_client(connection) as client:
            reader = await client.reader(ReaderOptions(partition, epoch=epoch, name="other"))
            attached.set()
            await asyncio.to_thread(leave.wait)
            await reader.close()

    thread = threading.Thread(target=lambda: asyncio.run(attach()))
    thread.start()
    assert attached.wait(30)
    return thread


def test_the_epoch_is_raised_above_a_reader_that_owns_no_lease(group: SharedGroup) -> None:
    group.send()
    folder, leave = CheckpointFolder(), threading.Event()
    alone = group.query(folder, "alone")
    assert alone.plan()
    thread = read_with(group.hub.connection, "2", 1000, leave)
    try:
        alone.run()
        assert group.leases.rows()["2"].epoch == 1001
    finally:
        leave.set()
        thread.join(30)
    assert set(folder.rows) == group.all_rows()
    alone.drain(40)
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))


def test_a_task_leaves_a_partition_that_another_host_has_taken(group: SharedGroup) -> None:
    """The other host owns the row and reads; the hub refuses the reader of our task."""
    group.send()
    folder, leave = CheckpointFolder(), threading.Event()
    alone = group.query(folder, "alone")
    assert alone.plan()
    tasks = alone.driver.tasks(alone.offset(-1), alone.offset(0), COLUMNS)
    asyncio.run(claim_for(group, "2", "thief"))
    thread = read_with(group.hub.connection, "2", 1000, leave)
    try:
        batches = [len(list(read_task_partition(task))) for task in tasks]
    finally:
        leave.set()
        thread.join(30)
    assert batches == [1, 1, 0, 1]
    (lost,) = alone.report()["lost"]
    assert lost["partition"] == "2"
    assert "thief owns it" in lost["why"]


async def release_row(group: SharedGroup, partition: str) -> None:
    async with open_store(group.store) as store:
        rows = (await store.list_ownership(group.leases.group)).ownerships
        row = next(row for row in rows if row.partition == partition)
        await store.claim_ownership(group.leases.group, [release(row)])


async def claim_for(group: SharedGroup, partition: str, host: str) -> None:
    async with open_store(group.store) as store:
        for _ in range(50):  # the owner renews at the same time
            rows = (await store.list_ownership(group.leases.group)).ownerships
            row = next(row for row in rows if row.partition == partition)
            (outcome,) = await store.claim_ownership(
                group.leases.group, [claim(row, partition, host)]
            )
            if isinstance(outcome, Granted):
                return
    raise AssertionError("the row could not be taken")


def test_a_client_without_an_epoch_is_refused_with_the_name_of_the_query(
    group: SharedGroup,
) -> None:
    """For example an official client."""
    group.send(100)
    alone = group.query(CheckpointFolder(), "watch-1", arrowBatchRows="10")
    assert alone.plan()
    tasks = alone.driver.tasks(alone.offset(-1), alone.offset(0), COLUMNS)
    reading = read_task_partition(tasks[2])
    next(reading)  # the task has read a part of it

    async def attach() -> None:
        async with open_client(group.hub.connection) as client:
            await client.reader(ReaderOptions("2", epoch=None, name="plain"))

    with pytest.raises(ReaderEvicted, match="'watch-1' is connected; receiver 'plain'"):
        asyncio.run(attach())
    assert sum(batch.num_rows for batch in reading) == 90
