"""A query as a tenant, driven as Spark drives it: sharing, handing over, where it starts."""

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
from pumphouse.spark.options import read_source
from pumphouse.spark.source import AllPartitionsDriver

from .conftest import Hub
from .tenants.house import PARTITIONS, House, house_of, in_order, repeats, together
from .tenants.microbatch import Folder, Row, until

pytestmark = pytest.mark.timeout(300)

QUICK = ProcessorOptions(interval_s=0.2, lease_s=4.0, renew_s=0.5)


@pytest.fixture
def house(hub: Hub, tmp_path: Path) -> Iterator[House]:
    with house_of(hub, tmp_path) as found:
        yield found


# -- alone ----------------------------------------------------------------------------------------


def test_a_tenant_that_is_alone_reads_everything(house: House) -> None:
    house.send()
    folder = Folder()
    alone = house.query(folder, "alone")
    alone.drain(40)
    assert set(folder.rows) == house.everything()
    assert len(folder.rows) == 40
    # Also of the last batch, since Spark has asked for another one after it.
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    alone.stop()
    assert house.leases.owners() == dict.fromkeys(PARTITIONS, "")


def test_a_stop_and_a_start_go_on_where_they_were(house: House) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "same")
    first.drain(40)
    first.stop()
    house.send()
    house.query(folder, "same").drain(80)
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)


def test_a_name_that_was_made_up_is_kept_for_the_next_run(house: House) -> None:
    house.send()
    folder = Folder()
    first = house.query(folder, "")
    first.drain(40)
    name = first.tenant.host
    first.crash()
    house.send()
    again = house.query(folder, "")
    again.drain(80)
    assert again.tenant.host == name
    assert not repeats(folder)


def test_new_partitions_are_taken_and_read(house: House) -> None:
    house.send()
    folder = Folder()
    alone = house.query(folder, "alone")
    alone.drain(40)
    house.hub.house.grow_hub(house.hub.name, 6)
    house.hub.send("late", partition="5")
    alone.drain(41)
    assert ("5", 0) in folder.rows


# -- two queries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ["steady", "balanced", "greedy"])
def test_two_queries_share_and_hand_over_at_a_batch_border(house: House, assignment: str) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one", assignment=assignment)
    first.drain(40)
    house.send()
    second = house.query(two, "two", assignment=assignment)
    together(first, second, done=lambda: len(first.owned()) == len(second.owned()) == 2)
    house.send()
    together(first, second, done=lambda: len(one.rows) + len(two.rows) >= 120)
    assert {*one.rows, *two.rows} == house.everything()
    assert not repeats(one, two)
    assert in_order(one)
    assert in_order(two)
    assert sorted(Counter(house.leases.owners().values()).items()) == [("one", 2), ("two", 2)]


def test_a_batch_under_way_holds_a_hand_over_up(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one")
    assert first.plan()
    second = house.query(two, "two", leaseDuration="60s")  # so long an owner has to finish
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(second.step)
        until(lambda: len(first.told()["leaving"]) == 2)
        asked = set(first.told()["leaving"])
        first.run()
        assert asked <= first.owned()  # that it is done, Spark has not said yet
        first.step()
        asking.result()
    until(lambda: second.owned() == asked)
    assert {one: mark.sequence for one, mark in house.leases.checkpoints().items()} == (
        dict.fromkeys(PARTITIONS, 9)
    )
    second.drain(0)
    assert two.rows == []


# -- beside a processor ---------------------------------------------------------------------------


class Beside:
    """A plain processor in a thread, which checkpoints every batch."""

    def __init__(self, house: House, host: str) -> None:
        self.rows: list[Row] = []
        self._house, self._host, self._leave = house, host, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(60)

    async def _run(self) -> None:
        async with (
            open_store(self._house.store) as store,
            Processor(
                self._house.hub.connection, store=store, host=self._host, options=QUICK
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


def test_a_processor_and_a_query_hand_over_both_ways(house: House) -> None:
    house.send()
    folder = Folder()
    query = house.query(folder, "query")
    query.drain(40)
    beside = Beside(house, "plain")
    try:
        together(query, done=lambda: Counter(house.leases.owners().values())["plain"] == 2)
        house.send()
        together(query, done=lambda: len(folder.rows) + len(beside.rows) >= 80)
        assert len(query.owned()) == 2
    finally:
        beside.stop()
    house.send()
    together(query, done=lambda: len(folder.rows) + len(beside.rows) >= 120)
    assert {*folder.rows, *beside.rows} == house.everything()
    assert len(folder.rows) + len(beside.rows) == 120  # a clean move repeats nothing
    assert len(query.owned()) == 4


# -- fixed ----------------------------------------------------------------------------------------


def test_fixed_takes_so_many_and_keeps_them(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    fixed = {"assignment": "fixed:2", "cycleInterval": "100ms"}
    first = house.query(one, "one", **fixed)
    together(first, done=lambda: len(first.owned()) == 2)
    kept = first.owned()
    second = house.query(two, "two")
    together(first, second, done=lambda: len(second.owned()) == 2)
    together(first, second, done=lambda: {*one.rows, *two.rows} == house.everything())
    assert first.owned() == kept
    first.stop()
    together(second, done=lambda: second.told()["owns"] != {})
    assert {host for host in house.leases.owners().values()} == {"one", "two"}
    again = house.query(one, "one", **fixed)
    together(again, second, done=lambda: len(again.owned()) == 2)
    assert again.owned() == kept
    assert not repeats(one, two)


def test_a_standby_takes_over(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    fixed = {"assignment": "fixed:4", "cycleInterval": "100ms"}
    first = house.query(one, "one", **fixed)
    first.drain(40)
    standby = house.query(two, "two", **fixed)
    assert standby.step() == []
    assert standby.owned() == set()
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    first.crash()
    house.send()
    together(standby, done=lambda: len(two.rows) == 40)
    assert {*one.rows, *two.rows} == house.everything()


def test_without_checkpoints_what_comes_starts_at_the_starting_position(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    none = {"tenantCheckpoints": "false", "assignment": "fixed:4", "cycleInterval": "100ms"}
    first = house.query(one, "one", **none)
    first.drain(40)
    assert house.leases.sequences() == dict.fromkeys(PARTITIONS, None)
    first.stop()
    again = house.query(one, "one", **none)  # what it has read, Spark knows
    together(again, done=lambda: len(again.owned()) == 4)
    assert again.step() == []
    again.crash()
    other = house.query(two, "two", **none)
    together(other, done=lambda: len(two.rows) == 40)
    assert set(two.rows) == house.everything()


# -- where it starts, and what it was before ------------------------------------------------------


def test_latest_is_written_down_at_once(house: House) -> None:
    house.send()
    one, two = Folder(), Folder()
    first = house.query(one, "one", startingPosition="latest")
    assert first.step() == []
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    first.crash()
    house.send()
    second = house.query(two, "two", startingPosition="latest")
    together(second, done=lambda: len(two.rows) == 40)
    assert {number for _, number in two.rows} == set(range(10, 20))


def test_a_query_that_shared_with_nobody_becomes_a_tenant(house: House) -> None:
    house.send()
    folder = Folder(offsets=['{"sensors": {"0": 4, "1": 10, "2": 10, "3": 10}}'], committed=1)
    query = house.query(folder, "query")
    query.drain(6)
    assert sorted(folder.rows) == [("0", number) for number in range(4, 10)]


def test_a_journal_of_a_tenant_is_refused_to_a_query_for_all(house: House) -> None:
    given = {"connectionString": house.hub.connection}
    driver = AllPartitionsDriver(read_source(given, streaming=True, now_ms=0))
    try:
        with pytest.raises(OptionError, match="shared its consumer group"):
            driver.latest({"sensors": {"0": 1}, "@tenancy": {"host": "a", "stretches": {}}}, 10)
    finally:
        driver.close()


def test_a_store_that_is_away_at_the_start_fails_the_query(house: House) -> None:
    query = house.query(Folder(), "one", store="sqlite:///proc/no/such/place.db")
    with pytest.raises(PumphouseError):
        query.step()


def test_marks_are_looked_up_if_tasks_do_not_tell(house: House) -> None:
    house.send()
    folder = Folder()
    alone = house.query(folder, "alone", taskFeedback="false")
    alone.drain(40)
    until(lambda: house.leases.sequences() == dict.fromkeys(PARTITIONS, 9))
    assert all(mark.offset for mark in house.leases.checkpoints().values())


def test_the_folder_of_spark_tells_of_a_commit_before_the_next_trigger(
    house: House, tmp_path: Path
) -> None:
    house.send()
    one, two = Folder(), Folder()
    place = tmp_path / "checkpoint"
    first = house.query(one, "one", checkpointLocation=str(place))
    first.step()
    for name, text in (("offsets", f"v1\n{{}}\n{one.offsets[0]}"), ("commits", "v1\n{}")):
        (place / name).mkdir(parents=True)
        (place / name / "0").write_text(text)
    second = house.query(two, "two")
    together(second, done=lambda: len(second.owned()) == 2)
    second.drain(0)
    assert two.rows == []
    first.stop()  # and the last batch of a run
    assert house.leases.sequences() == dict.fromkeys(PARTITIONS, 9)


def test_leases_are_renewed_while_a_batch_runs_for_longer(house: House) -> None:
    house.send()
    folder = Folder()
    alone = house.query(folder, "alone", leaseDuration="2s", renewInterval="200ms")
    assert alone.plan()
    epochs = alone.told()["owns"]
    time.sleep(3)  # the batch takes longer than the lease lasts
    alone.run()
    assert alone.told()["owns"] == epochs
    assert len(folder.rows) == 40
