"""Tenants that share partitions and hand them over; called as Spark calls them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.leases.store_url import open_store
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.processor import Processor
from pumphouse.spark.driver.all_partitions import AllPartitionsDriver
from pumphouse.spark.options import read_source
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.microbatch import CheckpointFolder, Row
from tests.spark.tenancy.support.shared_group import (
    PARTITIONS,
    SharedGroup,
    duplicates,
    is_in_order,
    run_together,
    shared_group,
)

pytestmark = [pytest.mark.needs(SHARING), pytest.mark.timeout(300)]

QUICK = ProcessorOptions(interval_s=0.2, lease_s=4.0, renew_s=0.5)


@pytest.fixture
def group(hub: Hub, tmp_path: Path) -> Iterator[SharedGroup]:
    with shared_group(hub, tmp_path) as group:
        yield group


# -- one query ------------------------------------------------------------------------------------


def test_a_single_tenant_reads_all_partitions(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    alone = group.query(folder, "alone")
    alone.drain(40)
    assert set(folder.rows) == group.all_rows()
    assert len(folder.rows) == 40
    # Of the last batch too, since Spark has planned another one after it.
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    alone.stop()
    assert group.leases.owners() == dict.fromkeys(PARTITIONS, "")


def test_a_restart_resumes_after_the_last_batch(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "same")
    first.drain(40)
    first.stop()
    group.send()
    group.query(folder, "same").drain(80)
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)


def test_a_generated_host_name_is_kept_for_the_next_run(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    first = group.query(folder, "")
    first.drain(40)
    name = first.host.name
    first.crash()
    group.send()
    again = group.query(folder, "")
    again.drain(80)
    assert again.host.name == name
    assert not duplicates(folder)


def test_new_partitions_are_claimed_and_read(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    alone = group.query(folder, "alone")
    alone.drain(40)
    group.hub.embedded.grow_hub(group.hub.name, 6)
    group.hub.send("late", partition="5")
    alone.drain(41)
    assert ("5", 0) in folder.rows


# -- two queries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ["steady", "balanced", "greedy"])
def test_two_queries_share_and_hand_over_between_batches(
    group: SharedGroup, assignment: str
) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one", assignment=assignment)
    first.drain(40)
    group.send()
    second = group.query(two, "two", assignment=assignment)
    run_together(first, second, done=lambda: len(first.owned()) == len(second.owned()) == 2)
    group.send()
    run_together(first, second, done=lambda: len(one.rows) + len(two.rows) >= 120)
    assert {*one.rows, *two.rows} == group.all_rows()
    assert not duplicates(one, two)
    assert is_in_order(one)
    assert is_in_order(two)
    assert sorted(Counter(group.leases.owners().values()).items()) == [("one", 2), ("two", 2)]


def test_a_batch_in_flight_delays_a_hand_over(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one")
    assert first.plan()
    second = group.query(two, "two", leaseDuration="60s")  # the time that an owner has to finish
    with ThreadPoolExecutor(1) as pool:
        stepping = pool.submit(second.step)
        until(lambda: len(first.report()["leaving"]) == 2)
        requested = set(first.report()["leaving"])
        first.run()
        assert requested <= first.owned()  # Spark has not planned the next batch yet
        first.step()
        stepping.result()
    until(lambda: second.owned() == requested)
    assert group.leases.sequences() == dict.fromkeys(PARTITIONS, 9)
    second.drain(0)
    assert two.rows == []


# -- a query and a processor ----------------------------------------------------------------------


class ProcessorThread:
    """A processor in a thread, which checkpoints every batch."""

    def __init__(self, group: SharedGroup, host: str) -> None:
        self.rows: list[Row] = []
        self._group, self._host, self._leave = group, host, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(60)

    async def _run(self) -> None:
        async with (
            open_store(self._group.store) as store,
            Processor(
                self._group.hub.connection, store=store, host=self._host, options=QUICK
            ) as processor,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._wait(processor))
            async for partition in processor.partitions():
                tasks.create_task(self._serve(partition))

    async def _wait(self, processor: Processor) -> None:
        await asyncio.to_thread(self._leave.wait)
        await processor.stop()

    async def _serve(self, partition: object) -> None:
        async for batch in partition.batches():  # type: ignore[attr-defined]
            self.rows += [(partition.id, event.sequence) for event in batch]  # type: ignore[attr-defined]
            await partition.checkpoint()  # type: ignore[attr-defined]


def test_a_processor_and_a_query_hand_over_to_each_other(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    query = group.query(folder, "query")
    query.drain(40)
    processor_thread = ProcessorThread(group, "plain")
    try:
        run_together(query, done=lambda: Counter(group.leases.owners().values())["plain"] == 2)
        group.send()
        run_together(query, done=lambda: len(folder.rows) + len(processor_thread.rows) >= 80)
        assert len(query.owned()) == 2
    finally:
        processor_thread.stop()
    group.send()
    run_together(query, done=lambda: len(folder.rows) + len(processor_thread.rows) >= 120)
    assert {*folder.rows, *processor_thread.rows} == group.all_rows()
    assert len(folder.rows) + len(processor_thread.rows) == 120  # a hand-over repeats nothing
    assert len(query.owned()) == 4


# -- fixed ----------------------------------------------------------------------------------------


def test_fixed_claims_its_number_and_keeps_them(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    fixed = {"assignment": "fixed:2", "cycleInterval": "100ms"}
    first = group.query(one, "one", **fixed)
    run_together(first, done=lambda: len(first.owned()) == 2)
    kept = first.owned()
    second = group.query(two, "two")
    run_together(first, second, done=lambda: len(second.owned()) == 2)
    run_together(first, second, done=lambda: {*one.rows, *two.rows} == group.all_rows())
    assert first.owned() == kept
    first.stop()
    run_together(second, done=lambda: second.report()["owns"] != {})
    assert set(group.leases.owners().values()) == {"one", "two"}
    again = group.query(one, "one", **fixed)
    run_together(again, second, done=lambda: len(again.owned()) == 2)
    assert again.owned() == kept
    assert not duplicates(one, two)


def test_a_standby_query_takes_over(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    fixed = {"assignment": "fixed:4", "cycleInterval": "100ms"}
    first = group.query(one, "one", **fixed)
    first.drain(40)
    standby = group.query(two, "two", **fixed)
    assert standby.step() == []
    assert standby.owned() == set()
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    first.crash()
    group.send()
    run_together(standby, done=lambda: len(two.rows) == 40)
    assert {*one.rows, *two.rows} == group.all_rows()


def test_without_checkpoints_a_claimed_partition_starts_at_the_starting_position(
    group: SharedGroup,
) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    none = {"tenantCheckpoints": "false", "assignment": "fixed:4", "cycleInterval": "100ms"}
    first = group.query(one, "one", **none)
    first.drain(40)
    assert group.leases.sequences() == dict.fromkeys(PARTITIONS, None)
    first.stop()
    again = group.query(one, "one", **none)  # Spark's journal has its positions
    run_together(again, done=lambda: len(again.owned()) == 4)
    assert again.step() == []
    again.crash()
    other = group.query(two, "two", **none)
    run_together(other, done=lambda: len(two.rows) == 40)
    assert set(two.rows) == group.all_rows()


# -- start positions and commits ------------------------------------------------------------------


def test_a_start_at_latest_is_checkpointed_at_once(group: SharedGroup) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    first = group.query(one, "one", startingPosition="latest")
    assert first.step() == []
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    first.crash()
    group.send()
    second = group.query(two, "two", startingPosition="latest")
    run_together(second, done=lambda: len(two.rows) == 40)
    assert {number for _, number in two.rows} == set(range(10, 20))


def test_a_query_that_read_all_partitions_becomes_a_tenant(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder(
        offsets=['{"sensors": {"0": 4, "1": 10, "2": 10, "3": 10}}'], committed=1
    )
    query = group.query(folder, "query")
    query.drain(6)
    assert sorted(folder.rows) == [("0", number) for number in range(4, 10)]


def test_the_journal_of_a_tenant_is_refused_by_a_query_for_all_partitions(
    group: SharedGroup,
) -> None:
    given = {"connectionString": group.hub.connection}
    driver = AllPartitionsDriver(read_source(given, streaming=True, now_ms=0))
    try:
        with pytest.raises(OptionError, match="shared its consumer group"):
            driver.latest_offset(
                {"sensors": {"0": 1}, "@tenancy": {"host": "a", "stretches": {}}}, 10
            )
    finally:
        driver.close()


def test_an_unavailable_store_fails_the_start_of_a_query(group: SharedGroup) -> None:
    query = group.query(CheckpointFolder(), "one", store="sqlite:///proc/no/such/place.db")
    with pytest.raises(PumphouseError):
        query.step()


def test_positions_are_read_from_the_hub_if_tasks_do_not_report_them(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    alone = group.query(folder, "alone", taskFeedback="false")
    alone.drain(40)
    until(lambda: group.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    assert all(row.offset for row in group.leases.checkpoints().values())


def test_a_commit_is_seen_in_the_checkpoint_folder_before_the_next_trigger(
    group: SharedGroup, tmp_path: Path
) -> None:
    group.send()
    one, two = CheckpointFolder(), CheckpointFolder()
    location = tmp_path / "checkpoint"
    first = group.query(one, "one", checkpointLocation=str(location))
    first.step()
    for name, text in (("offsets", f"v1\n{{}}\n{one.offsets[0]}"), ("commits", "v1\n{}")):
        (location / name).mkdir(parents=True)
        (location / name / "0").write_text(text)
    second = group.query(two, "two")
    run_together(second, done=lambda: len(second.owned()) == 2)
    second.drain(0)
    assert two.rows == []
    first.stop()  # of the last batch of a run too
    assert group.leases.sequences() == dict.fromkeys(PARTITIONS, 9)


def test_leases_are_renewed_while_a_long_batch_runs(group: SharedGroup) -> None:
    group.send()
    folder = CheckpointFolder()
    alone = group.query(folder, "alone", leaseDuration="2s", renewInterval="200ms")
    assert alone.plan()
    epochs = alone.report()["owns"]
    time.sleep(3)  # the batch takes longer than the lease lasts
    alone.run()
    assert alone.report()["owns"] == epochs
    assert len(folder.rows) == 40
