"""Cancelling `run()` stops the host, in every processor API."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

Started = tuple[Callable[[], Awaitable[None]], Engine]


async def ignore(*args: object) -> None:
    """Handle nothing."""


async def start_pull(fixture: HubAndStore) -> Started:
    processor = Processor(fixture.connection, store=fixture.store, clock=fixture.clock)
    await processor.__aenter__()
    return processor.run, processor.engine


async def start_push(fixture: HubAndStore) -> Started:
    host = EventProcessorHost("a", fixture.connection, store=fixture.store, clock=fixture.clock)
    await host.start(ignore)
    assert host.engine is not None
    return host.run, host.engine


async def start_fixed(fixture: HubAndStore) -> Started:
    processor = FixedPartitionProcessor(
        fixture.connection, partitions=4, store=fixture.store, clock=fixture.clock
    )
    processor.on_batch(ignore)
    await processor.start()
    return processor.run, processor.engine


@pytest.mark.parametrize("start", [start_pull, start_push, start_fixed])
def test_cancelling_run_stops_the_host(start: Callable[[HubAndStore], Awaitable[Started]]) -> None:
    async def scenario() -> None:
        async with HubAndStore() as fixture:
            run_host, engine = await start(fixture)
            running = asyncio.ensure_future(run_host())
            await until(lambda: len(engine.owned) == 4)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            rows = await fixture.store.list_ownership(fixture.group)
            assert {row.owner for row in rows.ownerships} == {""}
            assert (engine.owned, engine.pumps) == ((), 0)

    run(scenario())


def test_a_handler_finishes_its_batch_when_run_is_cancelled() -> None:
    async def scenario() -> None:
        begun, handled = asyncio.Event(), list[Any]()

        async def handle(partition: PartitionClient, batch: list[Event]) -> None:
            begun.set()
            await asyncio.sleep(5)
            handled.extend(event.body for event in batch)

        async with HubAndStore(1) as fixture:
            processor = FixedPartitionProcessor(
                fixture.connection, partitions=1, store=fixture.store, clock=fixture.clock
            )
            processor.on_batch(handle)
            await processor.start()
            running = asyncio.ensure_future(processor.run())
            await fixture.send("a", "b")
            await begun.wait()
            running.cancel()
            await asyncio.wait([running])
            assert handled == [b"a", b"b"]
            await fixture.until_checkpoint(1)

    run(scenario())


LIMIT_S = 60.0


async def test_ctrl_c_stops_the_hosts_of_every_api(tmp_path: Path) -> None:
    """asyncio.run cancels the main task, then raises KeyboardInterrupt."""
    hubs = ("pull", "push", "fixed")
    async with EmbeddedHub(dict.fromkeys(hubs, 1)) as hub:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.processor.support.interrupted_hosts",
            str(tmp_path / "leases.db"), *map(hub.connection_string, hubs),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            async with asyncio.timeout(LIMIT_S):
                assert await program.stdout.readline() == b"claimed\n"
                program.send_signal(signal.SIGINT)
                _, errors = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        assert errors.decode().strip().endswith("KeyboardInterrupt"), errors.decode()
        assert b"never retrieved" not in errors
        assert b"Task was destroyed" not in errors
        async with (
            SqliteStore(tmp_path / "leases.db") as store,
            open_client(hub.connection_string(hubs[0])) as client,
        ):
            for name in hubs:
                listing = await store.list_ownership(Group(client.namespace, name))
                assert [row.owner for row in listing.ownerships] == [""]
