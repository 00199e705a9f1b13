"""The state of a partition in its row: written soon after it changes, and read by operators."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.events import Event
from pumphouse.leases.model import Granted, request_resume
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.handling.test_handlers import BAD, HandlerHost
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import run

STOPPING = ProcessorOptions(
    checkpoints=CheckpointPolicy(every_events=1), poison=PoisonPolicy(retries=0, then="stop")
)


async def state(host: HandlerHost, partition: str = "0") -> str | None:
    rows = (await host.engine.store.list_ownership(host.engine.group)).ownerships
    return next((row.state for row in rows if row.partition == partition), None)


async def until_state(host: HandlerHost, expected: str) -> None:
    async with asyncio.timeout(600):
        while await state(host) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.25)


def test_a_partition_that_poison_has_stopped_reports_it_and_resumes_on_request() -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        fixed: list[bool] = []

        async def handler(partition: PartitionClient, batch: list[Event]) -> None:
            for event in batch:
                if event.body == BAD and not fixed:
                    raise ValueError("bad")
                handled.append(event.body)

        async with HandlerHost(handler, STOPPING) as host:
            await host.send(b"1", BAD, b"3")
            await host.until(lambda: "PoisonEvent" in host.kinds())
            started_s = host.clock.monotonic()
            await until_state(host, "stopped")
            assert host.clock.monotonic() - started_s < STOPPING.renew_s
            assert await state(host, "1") == ""
            fixed.append(True)
            await asyncio.sleep(60)
            assert set(handled) == {b"1"}
            listing = await host.engine.store.list_ownership(host.engine.group)
            row = next(row for row in listing.ownerships if row.partition == "0")
            (outcome,) = await host.engine.store.claim_ownership(
                host.engine.group, [request_resume(row)]
            )
            assert isinstance(outcome, Granted)
            await host.until_checkpoint(2)
            await until_state(host, "")
            assert handled[-2:] == [BAD, b"3"]
            assert host.engine.leases.held["0"].row.epoch == row.epoch

    run(scenario())


def test_a_handler_that_does_not_return_makes_its_partition_stuck() -> None:
    async def scenario() -> None:
        released = asyncio.Event()

        async def handler(partition: PartitionClient, batch: list[Event]) -> None:
            await released.wait()

        async with HandlerHost(handler, STOPPING) as host:
            await host.send(b"1")
            await until_state(host, "stuck")
            released.set()
            await until_state(host, "")

    run(scenario())


def test_a_pump_that_cannot_start_makes_its_partition_stuck() -> None:
    async def scenario() -> None:
        broken = [True]

        async def serve(partition: PartitionClient) -> None:
            if broken:
                raise RuntimeError("cannot open")
            await partition.wait_until_stopping()

        async with Fleet(1) as fleet:
            host = await fleet.add("a")
            host._serve = serve
            await fleet.until(lambda: host.state("0") == "stuck", "the state")
            broken.clear()
            await fleet.until(lambda: host.state("0") == "", "the end of the state")

    run(scenario())


def test_a_paused_partition_reports_it() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            host = await fleet.add("a")
            await fleet.until(lambda: len(host.owned) == 2, "both partitions")
            host.pause("1")
            await asyncio.sleep(5)
            assert {p: row.state for p, row in (await fleet.rows()).items()} == {
                "0": "",
                "1": "paused",
            }
            host.resume("1")
            await asyncio.sleep(5)
            assert (await fleet.rows())["1"].state == ""

    run(scenario())


@pytest.mark.parametrize(("work_s", "expected"), [(8.0, "behind"), (0.1, "")])
def test_a_handler_slower_than_the_events_arrive_is_behind(work_s: float, expected: str) -> None:
    async def scenario() -> None:
        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            await asyncio.sleep(work_s * len(batch))

        async with Fleet(1, options=ProcessorOptions(batch_events_max=1)) as fleet:
            host = await fleet.add("a", work=work)
            await fleet.until(lambda: host.owned, "a partition")
            for _ in range(40):
                await fleet.send(2)
                await asyncio.sleep(5)
            assert (await fleet.rows())["0"].state == expected

    run(scenario())
