"""Processor, the pull API, and its options."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import HubNotFound, OptionError, OwnershipLost
from pumphouse.events import EARLIEST, LATEST, Event, Position
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.processor.term import StopReason
from tests.processor.support.fleet import HUB, Fleet
from tests.processor.support.virtual_time import run

DEADLINE_S = 60.0


async def take(processor: Processor, count: int) -> list[PartitionClient]:
    taken: list[PartitionClient] = []
    async with asyncio.timeout(DEADLINE_S):
        async for partition in processor.partitions():
            taken.append(partition)
            if len(taken) == count:
                break
    return taken


async def first(partition: PartitionClient) -> list[Event]:
    """The next batch; the loop ends then, so the partition is given up."""
    async with asyncio.timeout(DEADLINE_S):
        async for batch in partition.batches():
            return batch
    return []


# -- pulling --------------------------------------------------------------------------------------


def test_partitions_are_yielded_as_they_are_claimed() -> None:
    async def scenario() -> None:
        async with Fleet(3) as fleet:
            await fleet.send(5)
            processor = Processor(
                fleet.connection, store=fleet.store, host="host-a", clock=fleet.clock
            )
            assert repr(processor) == "<Processor host-a | owns nothing | 0 pumps | unsettled>"
            async with processor:
                clients = await take(processor, 3)
                assert sorted(partition.id for partition in clients) == ["0", "1", "2"]
                assert [event.sequence for event in await first(clients[0])] == [0, 1, 2, 3, 4]
                await fleet.until(lambda: processor.settled, "rest")
                assert repr(processor) == "<Processor host-a | owns 0 1 2 | 3 pumps | settled>"
            assert {partition.reason for partition in clients[1:]} == {StopReason.SHUTDOWN}

    run(scenario())


def test_the_iteration_ends_when_the_processor_stops() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock
            ) as processor, asyncio.TaskGroup() as tasks:  # fmt: skip

                async def serve() -> int:
                    return len([partition async for partition in processor.partitions()])

                serving = tasks.create_task(serve())
                await fleet.until(lambda: len(processor.owned) == 2, "both")
                await processor.stop()
            assert serving.result() == 2

    run(scenario())


def test_a_partition_whose_loop_was_left_is_offered_again_behind_the_checkpoint() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.send(10)
            options = ProcessorOptions(batch_events_max=4)
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock, options=options
            ) as processor:
                (partition,) = await take(processor, 1)
                async for batch in partition.batches():
                    await partition.checkpoint(batch[1])
                    break
                (again,) = await take(processor, 1)
                assert again is not partition
                assert [event.sequence for event in await first(again)] == [2, 3, 4, 5]
                assert await first(partition) == [], "a client that ended stays ended"

    run(scenario())


def test_the_current_batch_is_finished_before_the_row_is_released() -> None:
    """I2: a release waits for the loop to ask for the next batch."""

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.send(10)
            in_hand, done = asyncio.Event(), asyncio.Event()
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock
            ) as processor, asyncio.TaskGroup() as tasks:  # fmt: skip

                async def serve() -> None:
                    (partition,) = await take(processor, 1)
                    async for _ in partition.batches():
                        in_hand.set()
                        await done.wait()
                        await partition.checkpoint()

                tasks.create_task(serve())
                await in_hand.wait()
                stopping = tasks.create_task(processor.stop())
                await asyncio.sleep(5)
                assert (await fleet.rows())["0"].owner == processor.host
                done.set()
                await stopping
                assert (await fleet.rows())["0"].owner == ""
                assert (await fleet.checkpoints())["0"] == 9

    run(scenario())


def test_batches_cannot_be_iterated_twice_at_once() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.send(1)
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock
            ) as processor:
                (partition,) = await take(processor, 1)
                async for _ in partition.batches():
                    with pytest.raises(OptionError, match="being read already"):
                        await first(partition)
                    break

    run(scenario())


def test_a_checkpoint_cannot_pass_the_last_event_handed_out() -> None:
    """I5."""

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.send(10)
            options = ProcessorOptions(batch_events_max=3)
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock, options=options
            ) as processor:
                (partition,) = await take(processor, 1)
                await partition.checkpoint()  # nothing was handed out: no effect
                batches = partition.batches()
                batch = await anext(batches)
                with pytest.raises(OptionError, match="not handed out yet"):
                    await partition.checkpoint(replace(batch[-1], sequence=3))
                with pytest.raises(OptionError, match="without a sequence number"):
                    await partition.checkpoint(Event(b"made up"))
                for wrong, kind in ((batch, "list"), (3, "int"), ("3", "str")):
                    given: Any = wrong
                    with pytest.raises(OptionError, match=f"needs an event .got a {kind}."):
                        await partition.checkpoint(given)
                await batches.aclose()

    run(scenario())


def test_a_lost_partition_cannot_be_checkpointed() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.send(1)
            async with Processor(
                fleet.connection, store=fleet.store, clock=fleet.clock
            ) as processor:
                (partition,) = await take(processor, 1)
                async for _ in partition.batches():
                    processor.engine.leases.lose("0")
                    assert partition.reason is StopReason.LOST
                    with pytest.raises(OwnershipLost):
                        await partition.checkpoint()
                assert (await fleet.checkpoints())["0"] is None

    run(scenario())


# -- pausing, limits and positions ----------------------------------------------------------------


def test_a_paused_partition_stays_ours() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            host = await fleet.add("a")
            await fleet.until_even()
            host.pause("0")
            await fleet.send()
            await fleet.until(lambda: len(fleet.record["1"]) == 10, "the other one")
            await asyncio.sleep(120)
            assert fleet.record["0"] == []
            assert host.owned == ("0", "1")
            host.resume("0")
            await fleet.until_handled()
            host.pause()
            await fleet.send()
            await asyncio.sleep(60)
            host.resume()
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_a_paused_partition_can_be_handed_over() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            (await fleet.add("a")).pause()
            await fleet.until_even()
            await fleet.send()
            await fleet.add("b")
            await fleet.until_even()
            moved = fleet.hosts["b"].owned[0]
            await fleet.until(lambda: len(fleet.record[moved]) == 10, "b to handle it")

    run(scenario())


def test_a_host_owns_at_most_max_partitions() -> None:
    async def scenario() -> None:
        async with Fleet(8) as fleet:
            few = replace(fleet.options, max_partitions=2)
            await fleet.add("a", options=few)
            await asyncio.sleep(60)
            assert len(fleet.hosts["a"].owned) == 2
            await fleet.add("b")
            await fleet.send()
            await fleet.until_handled()
            await fleet.until(lambda: fleet.counts() == {"a": 2, "b": 6}, "b to take the rest")
            await asyncio.sleep(120)
            assert fleet.counts() == {"a": 2, "b": 6}
            fleet.check_clean()

    run(scenario())


def test_partitions_added_at_run_time_are_served() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            for name in ("a", "b"):
                await fleet.add(name)
            await fleet.send()
            await fleet.until_handled()
            fleet.hub.grow_hub(HUB, 6)
            fleet.partitions += ["2", "3", "4", "5"]
            await fleet.until(lambda: sum(fleet.counts().values()) == 6, "the others to be owned")
            sender = await fleet.client.sender("5")
            await sender.send([Event(b"first")])
            await fleet.until(lambda: fleet.sequences("5") == [0], "an event of a new partition")
            await fleet.until_even()
            assert fleet.counts() == {"a": 3, "b": 3}

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, list(range(10))),
        ({"start": EARLIEST}, list(range(10))),
        ({"start": Position("sequence", "6")}, [7, 8, 9]),
        ({"start": LATEST, "starts": {"0": Position("sequence", "7", True)}}, [7, 8, 9]),
        ({"starts": lambda partition: Position("sequence", "8")}, [9]),
    ],
    ids=["default", "earliest", "default given", "per partition", "asked for"],
)
def test_the_start_position_without_a_checkpoint(
    settings: dict[str, Any], expected: list[int]
) -> None:
    """I15: the position is fixed before the first event is requested."""

    async def scenario() -> None:
        async with Fleet(1, options=ProcessorOptions(**settings)) as fleet:
            await fleet.send(10)
            await fleet.add("a")
            await fleet.until(lambda: fleet.sequences("0")[-1:] == [9], "the last one")
            assert fleet.sequences("0") == expected

    run(scenario())


def test_the_checkpoint_takes_precedence_over_the_start_position() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.add("a")
            await fleet.send(10)
            await fleet.until_handled()
            await fleet.leave("a")
            await fleet.send(10)
            await fleet.add("a", options=ProcessorOptions(start=LATEST))
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_batches_have_bounds() -> None:
    async def scenario() -> None:
        sizes: list[list[int]] = []

        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            sizes.append([len(event.body) for event in batch])

        options = ProcessorOptions(batch_events_max=4, batch_bytes_max=100)
        async with Fleet(1, options=options) as fleet:
            sender = await fleet.client.sender("0")
            bodies = [40, 40, 40, 300, 5, 5, 5, 5, 5, 5]
            await sender.send([Event(b"x" * size) for size in bodies])
            fleet.sent = len(bodies)
            await fleet.add("a", work=work)
            await fleet.until_handled()
            assert [size for batch in sizes for size in batch] == bodies
            assert all(len(batch) <= 4 for batch in sizes)
            assert all(sum(batch) <= 100 or len(batch) == 1 for batch in sizes)

    run(scenario())


def test_an_empty_batch_is_delivered_after_max_wait() -> None:
    async def scenario() -> None:
        empty: list[float] = []

        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            if not batch:
                empty.append(asyncio.get_running_loop().time())

        async with Fleet(1, options=ProcessorOptions(max_wait_s=7.0)) as fleet:
            await fleet.add("a", work=work)
            await fleet.until(lambda: len(empty) == 4, "empty batches")
            gaps = [later - sooner for sooner, later in pairwise(empty)]
            assert all(6.9 <= gap <= 8 for gap in gaps)

    run(scenario())


@pytest.mark.parametrize(
    ("policy", "at_least"),
    [(CheckpointPolicy(every_events=7), 97), (CheckpointPolicy(every_s=5.0), 99)],
)
def test_checkpoints_by_policy(policy: CheckpointPolicy, at_least: int) -> None:
    async def scenario() -> None:
        options = ProcessorOptions(checkpoints=policy, batch_events_max=5)
        async with Fleet(1, options=options) as fleet:
            await fleet.add("a", checkpoint=False)
            await fleet.send(103)
            await fleet.until_handled()
            await asyncio.sleep(30)
            assert ((await fleet.checkpoints())["0"] or 0) >= at_least
            await fleet.leave("a")
            assert (await fleet.checkpoints())["0"] == 102, "all of it, on a clean stop"

    run(scenario())


# -- starting -------------------------------------------------------------------------------------


async def test_a_missing_hub_is_reported_at_start() -> None:
    async with EmbeddedHub({"eh": 1}) as hub:
        text = hub.connection_string("eh").replace("EntityPath=eh", "EntityPath=nowhere")
        with pytest.raises(HubNotFound, match="nowhere"):
            await Processor(text, store=MemoryStore()).__aenter__()


async def test_a_processor_starts_once() -> None:
    async with EmbeddedHub({"eh": 1}) as hub:
        processor = Processor(hub.connection_string("eh"), store=MemoryStore())
        await processor.stop()
        with pytest.raises(OptionError, match="was not started"):
            await processor.run()
        async with processor:
            with pytest.raises(OptionError, match="was started already"):
                await processor.__aenter__()


UNUSED = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh"


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown strategy 'best'"):
        Processor(UNUSED, store=MemoryStore(), strategy="best")


# -- in real time, in a file ----------------------------------------------------------------------


async def test_hosts_share_a_sqlite_file(tmp_path: Path) -> None:
    options = ProcessorOptions(interval_s=0.1, renew_s=0.1, lease_s=60.0)
    store = SqliteStore(tmp_path / "leases.db")
    async with Fleet(6, store=store, options=options) as fleet:
        await fleet.add("a")
        await fleet.send()
        await fleet.until_even()
        await fleet.add("b")
        await fleet.until_even()
        await fleet.send()
        await fleet.leave("a")
        await fleet.send()
        await fleet.until_handled()
        fleet.check_clean()


async def test_a_plain_on_error_does_not_run_on_the_event_loop() -> None:
    names: list[str] = []

    async def fail(partition: PartitionClient) -> None:
        raise ValueError("no")

    def record(partition: str | None, error: Exception) -> None:
        names.append(threading.current_thread().name)

    async with EmbeddedHub({"eh": 1}) as hub:
        processor = Processor(hub.connection_string("eh"), store=MemoryStore(), on_error=record)
        async with processor, asyncio.timeout(60):
            serving = asyncio.ensure_future(processor.run(fail))
            while not names:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            serving.cancel()
            await asyncio.wait([serving])
    assert names[0].startswith("pumphouse on_error")
