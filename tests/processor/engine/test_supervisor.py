"""PartitionSupervisor: retries, pauses, cancelled awaits, resets during a term."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import EventsExpired, OwnershipLost, PoisonEvent
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.handling.test_handlers import HandlerHost
from tests.processor.support.fleet import HUB, Fleet
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import LoopClock, run

Work = Callable[[PartitionClient, list[Event]], Awaitable[None]]


# -- checkpoints by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["stop", "skip"])
def test_a_retried_batch_may_repeat_its_checkpoints(then: str) -> None:
    """Many handlers checkpoint event by event: a retry repeats the checkpoints too."""

    async def scenario() -> None:
        failed: list[Event] = []

        async def handler(partition: PartitionClient, batch: list[Event]) -> None:
            for event in batch:
                if event.body == b"5" and not failed:
                    failed.append(event)
                    raise ValueError("once")
                await partition.checkpoint(event)

        options = ProcessorOptions(poison=PoisonPolicy(then=then))
        async with HandlerHost(handler, options) as host:
            await host.send(*[b"%d" % number for number in range(10)])
            await host.until_checkpoint(9)
            assert host.kinds() == ["ValueError"]

    run(scenario())


# -- pausing --------------------------------------------------------------------------------------


class SlowMarks(MemoryStore):
    """A store in which stamping a checkpoint takes a while."""

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        await asyncio.sleep(2)
        return await super().list_checkpoints(group)


@pytest.mark.parametrize("pauses", [True, False])
def test_pause_and_resume_take_effect_while_a_pump_starts(pauses: bool) -> None:
    async def scenario() -> None:
        async with Fleet(1, store=SlowMarks(LoopClock())) as fleet:
            await fleet.send()
            host = await fleet.add("a")
            if not pauses:
                host.pause()
            await fleet.until(lambda: host.pumps, "a pump")
            await asyncio.sleep(0.5)
            (host.pause if pauses else host.resume)()
            await asyncio.sleep(60)
            assert len(fleet.record["0"]) == (0 if pauses else 10)

    run(scenario())


def test_the_error_callback_may_resume_a_poisoned_partition() -> None:
    async def scenario() -> None:
        calls: list[bytes] = []

        async def handler(partition: PartitionClient, batch: list[Event]) -> None:
            calls.append(batch[0].body)
            if len(calls) < 3:
                raise ValueError

        def resume(partition: str | None, error: Exception) -> None:
            if isinstance(error, PoisonEvent):
                host.engine.resume(partition)

        options = ProcessorOptions(poison=PoisonPolicy(retries=0))
        async with HandlerHost(handler, options, on_error=resume, report=resume) as host:
            await host.send(b"x")
            await host.until(lambda: len(calls) == 3)

    run(scenario())


# -- cancelled awaits -----------------------------------------------------------------------------


def test_a_handler_whose_awaited_task_is_cancelled_has_failed() -> None:
    """It does not end the partition: it is reported and retried by the poison policy."""

    async def scenario() -> None:
        async def handler(partition: PartitionClient, batch: list[Event]) -> None:
            other = asyncio.create_task(asyncio.sleep(60))
            other.cancel()
            await other

        options = ProcessorOptions(poison=PoisonPolicy(retries=1, then="skip"))
        async with HandlerHost(handler, options) as host:
            await host.send(b"x")
            await host.until(lambda: "PoisonEvent" in host.kinds())
            assert host.kinds() == ["RuntimeError", "RuntimeError", "PoisonEvent"]

    run(scenario())


def test_a_loop_whose_awaited_task_is_cancelled_is_reported_and_restarted() -> None:
    async def scenario() -> None:
        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            if not fleet.errors:
                other = asyncio.create_task(asyncio.sleep(60))
                other.cancel()
                await other

        async with Fleet(1) as fleet:
            await fleet.add("a", work=work)
            await fleet.send()
            await fleet.until(lambda: len(fleet.record["0"]) == 20, "it to be tried again")
            assert [type(failed) for _, _, failed in fleet.errors] == [RuntimeError]

    run(scenario())


# -- checkpoints that are reset meanwhile ---------------------------------------------------------


def test_a_recreated_hub_is_read_once_its_checkpoint_is_reset() -> None:
    """With `fail` the partition stops; the operator resets the checkpoint and resumes it."""

    async def scenario() -> None:
        async with Fleet(1, options=ProcessorOptions(on_expired="fail")) as fleet:
            host = await fleet.add("a")
            await fleet.send(10)
            await fleet.until_handled()
            fleet.hub.delete_hub(HUB)
            fleet.hub.create_hub(HUB, 1)
            sender = await fleet.client.sender("0")
            await sender.send([Event(b"new")] * 3)
            await fleet.until(
                lambda: any(isinstance(failed, EventsExpired) for _, _, failed in fleet.errors),
                "the report that the hub was re-created",
            )
            await asyncio.sleep(60)
            assert len(fleet.record["0"]) == 10
            (mark,) = await fleet.store.list_checkpoints(fleet.group)
            bare = replace(mark, sequence=None, offset=None, enqueued_ms=None)
            await fleet.store.update_checkpoint(bare, rewind=True)
            host.resume("0")
            await fleet.until(lambda: len(fleet.record["0"]) == 13, "the new events")
            assert fleet.sequences("0")[10:] == [0, 1, 2]

    run(scenario())


def test_an_ended_client_hands_out_nothing_more_and_wakes_its_waiters() -> None:
    """Its checkpoint was reset, and another task of the user has noticed that."""

    async def scenario() -> None:
        clients: list[PartitionClient] = []
        given: list[tuple[int, int]] = []

        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            if partition not in clients:
                clients.append(partition)
            given.extend((clients.index(partition), event.sequence or 0) for event in batch)

        async with Fleet(1) as fleet:
            await fleet.add("a", work=work, checkpoint=False)
            await fleet.send(3)
            await fleet.until_handled()
            await clients[0].checkpoint()
            (mark,) = await fleet.store.list_checkpoints(fleet.group)
            await fleet.store.update_checkpoint(replace(mark, sequence=0, offset="0"), rewind=True)
            await fleet.send(1)
            await fleet.until_handled()
            with pytest.raises(OwnershipLost):
                await clients[0].checkpoint()
            await asyncio.sleep(10)
            await fleet.send(1)
            await fleet.until_handled()
            assert given == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 4)]

    run(scenario())


def test_checkpoints_that_are_moved_often_do_not_make_a_partition_stuck() -> None:
    async def scenario() -> None:
        handled: list[int] = []

        async def serve(partition: PartitionClient) -> None:
            async for batch in partition.batches():
                handled.extend(event.sequence or 0 for event in batch)
                await partition.checkpoint()

        async with HubAndStore(1) as env:
            await env.send(*map(str, range(5)))
            engine = Engine(env.connection, serve, store=env.store, host="a", clock=env.clock)
            async with engine:
                await env.until_checkpoint(4)
                for moves in range(1, 6):
                    checkpoint = await env.checkpoint()
                    assert checkpoint is not None
                    moved = replace(checkpoint, sequence=2, offset=None, enqueued_ms=None)
                    await env.store.update_checkpoint(moved, rewind=True)
                    options = ReaderOptions("0", epoch=checkpoint.epoch)
                    await (await env.client.reader(options)).close()  # as the command does
                    await until(lambda moves=moves: handled.count(4) == 1 + moves)  # type: ignore[misc]
                    assert engine.state("0") == ""

    run(scenario())
