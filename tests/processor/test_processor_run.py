"""Processor.run(serve): one supervised call per partition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from pumphouse.errors import OptionError, OwnershipLost, PumphouseError, StoreUnavailable
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run


def new_processor(env: HubAndStore, name: str = "host-a", **more: Any) -> Processor:
    return Processor(env.connection, store=env.store, host=name, clock=env.clock, **more)


@pytest.mark.parametrize(
    "error", [ValueError("x"), StoreUnavailable("away"), OwnershipLost("0", 1)], ids=repr
)
@pytest.mark.parametrize("moment", ["before the loop", "in the loop"])
def test_an_exception_ends_only_its_own_partition(error: Exception, moment: str) -> None:
    async def scenario() -> None:
        handled: defaultdict[str, list[bytes]] = defaultdict(list)
        calls: defaultdict[str, int] = defaultdict(int)
        errors: list[tuple[str | None, Exception]] = []

        async def serve(partition: PartitionClient) -> None:
            calls[partition.id] += 1
            fails = partition.id == "0" and calls["0"] == 1
            if fails and moment == "before the loop":
                raise error
            async for batch in partition.batches():
                if fails:
                    raise error
                handled[partition.id] += [event.body for event in batch]
                await partition.checkpoint()

        async with HubAndStore(3) as env:
            processor = new_processor(
                env, on_error=lambda partition, raised: errors.append((partition, raised))
            )
            running = asyncio.create_task(processor.run(serve))
            for partition in env.partitions:
                await env.send("a", partition=partition)
            await until(lambda: len(handled) == 3)
            for partition in env.partitions:
                await env.send("b", partition=partition)
            await until(lambda: all(len(bodies) == 2 for bodies in handled.values()))
            await processor.stop()
            await running
        assert dict(handled) == {partition: [b"a", b"b"] for partition in env.partitions}
        assert calls == {"0": 2, "1": 1, "2": 1}
        assert errors == [("0", error)]

    run(scenario())


def test_a_partition_that_moves_ends_its_call_and_no_other() -> None:
    """A routine hand-over, with a serve that checkpoints as the documentation shows."""

    async def scenario() -> None:
        ended: list[tuple[str, str, str | None]] = []
        errors: list[Exception] = []

        def serve_as(host: str) -> Any:
            async def serve(partition: PartitionClient) -> None:
                async for _ in partition.batches():
                    await partition.checkpoint()
                ended.append((host, partition.id, partition.reason))

            return serve

        async with HubAndStore(4) as env:
            hosts = [
                new_processor(env, name, on_error=lambda _, error: errors.append(error))
                for name in ("host-a", "host-b")
            ]
            running = [asyncio.create_task(hosts[0].run(serve_as("host-a")))]
            await until(lambda: len(hosts[0].owned) == 4)
            running.append(asyncio.create_task(hosts[1].run(serve_as("host-b"))))
            await until(lambda: [len(host.owned) for host in hosts] == [2, 2])
            assert [(host, reason) for host, _, reason in ended] == [("host-a", "hand-off")] * 2
            for host in hosts:
                await host.stop()
            await asyncio.gather(*running)
        assert len(ended) == 6
        assert errors == []

    run(scenario())


def test_cancelling_run_stops_the_processor() -> None:
    async def scenario() -> None:
        async def serve(partition: PartitionClient) -> None:
            async for _ in partition.batches():
                pass

        async with HubAndStore(2) as env:
            processor = new_processor(env)
            running = asyncio.create_task(processor.run(serve))
            await until(lambda: len(processor.owned) == 2)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
            rows = (await env.store.list_ownership(env.group)).ownerships
            assert {row.owner for row in rows} == {""}

    run(scenario())


def test_partitions_that_were_claimed_before_run_are_served_too() -> None:
    async def scenario() -> None:
        served: list[str] = []

        async def serve(partition: PartitionClient) -> None:
            served.append(partition.id)
            async for _ in partition.batches():
                pass

        async with HubAndStore(2) as env, new_processor(env) as processor:
            await until(lambda: len(processor.owned) == 2 and processor.settled)
            running = asyncio.create_task(processor.run(serve))
            await until(lambda: sorted(served) == ["0", "1"])
            await processor.stop()
            await running

    run(scenario())


def test_partitions_and_run_exclude_each_other() -> None:
    async def scenario() -> None:
        async def serve(partition: PartitionClient) -> None:
            async for _ in partition.batches():
                pass

        async with HubAndStore(1) as env, new_processor(env) as processor:
            async for _ in processor.partitions():
                break
            with pytest.raises(OptionError, match="only one of them"):
                await processor.run(serve)
            processor = new_processor(env, group="missing")
            with pytest.raises(PumphouseError, match="missing"):
                await processor.run(serve)
            with pytest.raises(OptionError, match=r"run\(serve\) already"):
                async for _ in processor.partitions():
                    pass

    run(scenario())


def test_code_that_returns_early_is_reported_and_called_again() -> None:
    async def scenario() -> None:
        calls = 0
        errors: list[Exception] = []

        async def serve(partition: PartitionClient) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                await partition.wait_until_stopping()

        async with HubAndStore(1) as env:
            processor = new_processor(env, on_error=lambda partition, error: errors.append(error))
            running = asyncio.create_task(processor.run(serve))
            await until(lambda: calls == 2)
            await processor.stop()
            await running
        (error,) = errors
        assert "returned, though this host owns the partition" in str(error)

    run(scenario())


def test_a_plain_serve_is_reported_with_what_to_do() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        plain: Any = lambda partition: None  # noqa: E731
        async with HubAndStore(1) as env:
            processor = new_processor(env, on_error=lambda partition, error: errors.append(error))
            running = asyncio.create_task(processor.run(plain))
            await until(lambda: errors)
            await processor.stop()
            await running
        assert isinstance(errors[0], OptionError)
        assert "define it with `async def`" in str(errors[0])

    run(scenario())


def test_a_stopped_processor_says_that_it_cannot_run_again() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            processor = new_processor(env)

            async def serve(partition: PartitionClient) -> None:
                async for _ in partition.batches():
                    pass

            running = asyncio.create_task(processor.run(serve))
            await until(lambda: processor.owned)
            await processor.stop()
            await running
            with pytest.raises(OptionError, match="host-a has stopped; make a new one"):
                await processor.run(serve)

    run(scenario())


async def test_stop_in_another_event_loop_is_refused() -> None:
    refusal = r"stop\(\) of host-a was called in another event"
    async with (
        HubAndStore(1) as env,
        Processor(env.connection, store=env.store, host="host-a") as processor,
    ):
        with pytest.raises(OptionError, match=refusal):
            await asyncio.to_thread(lambda: asyncio.run(processor.stop()))
        assert not processor.engine.ended
