"""Starts of a host whose hub, or store, does not respond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from pumphouse.client.native.client import NativeClient
from pumphouse.errors import ConnectionFailed, StoreUnavailable
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.hosting.group import ProcessorGroup
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HUB, HubAndStore
from tests.processor.support.virtual_time import LoopClock, run

KEY = "c2VjcmV0"
CONNECTION = (
    "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;"
    f"UseDevelopmentEmulator=true;EntityPath={HUB}"
)


@asynccontextmanager
async def silent_hub() -> AsyncGenerator[str, None]:
    """The connection string of a hub that accepts connections and sends nothing."""
    opened: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield CONNECTION.format(server.sockets[0].getsockname()[1])
        for writer in opened:
            writer.close()


async def serve(partition: object) -> None: ...


async def on_batch(partition: object, batch: object) -> None: ...


async def on_message(context: object, event: object) -> None: ...


class Nothing:
    """An event processor that does nothing."""

    async def open(self, context: object) -> None: ...

    async def close(self, context: object, reason: object) -> None: ...

    async def process_events(self, context: object, messages: object) -> None: ...

    async def process_error(self, context: object, error: object) -> None: ...


async def start_pull(connection: str) -> None:
    async with Processor(connection, store=MemoryStore()):
        pass


async def start_push(connection: str) -> None:
    await EventProcessorHost("a", connection, store=MemoryStore()).start(on_message)


async def start_serve(connection: str) -> None:
    await Processor(connection, store=MemoryStore()).run(serve)


async def start_handler(connection: str) -> None:
    await Processor(connection, store=MemoryStore()).run(handler=on_batch)


async def start_class(connection: str) -> None:
    await EventProcessorHost("a", connection, store=MemoryStore()).register(Nothing)


async def start_fixed(connection: str) -> None:
    processor = FixedPartitionProcessor(connection, partitions=1, store=MemoryStore())
    processor.on_batch(on_batch)
    await processor.start()


async def start_group(connection: str) -> None:
    group = ProcessorGroup(connection.rpartition(";")[0], store=MemoryStore(), host="a")
    group.pull(HUB, serve)
    async with group:
        pass


Start = Callable[[str], Coroutine[Any, Any, None]]
STARTS: list[Start] = [
    start_pull,
    start_serve,
    start_handler,
    start_push,
    start_class,
    start_fixed,
    start_group,
]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("start", STARTS)
def test_a_start_at_a_silent_hub_ends_after_a_minute(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with silent_hub() as connection:
            started_s = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionFailed, match="did not respond within 60 s") as failed:
                await start(connection)
            assert asyncio.get_running_loop().time() - started_s == pytest.approx(60, abs=0.1)
            texts = [str(failed.value), *getattr(failed.value, "__notes__", ())]
            assert "127.0.0.1" in texts[0] or "eh/$Default" in texts[-1]
            assert "connecting" not in {task.get_name() for task in asyncio.all_tasks()}

    run(scenario())
    (warning,) = warnings(caplog)
    assert warning.startswith("connect_failed address=127.0.0.1:")
    assert_retries_are_announced(warning)
    assert "did not open the connection within 10 s" in warning


def assert_retries_are_announced(warning: str) -> None:
    """The delays of eight retries are 0.2 s, 0.4 s ... 25.6 s."""
    assert " failures=1 retries=8 retries_wait_s=51 " in warning
    assert "further attempts follow" in warning


@pytest.mark.parametrize("start", STARTS)
def test_the_first_failed_attempt_at_a_closed_port_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with silent_hub() as connection:
            pass
        with pytest.raises(ConnectionFailed, match="connection refused"):
            await start(connection)

    run(scenario())
    (warning,) = warnings(caplog)
    assert warning.startswith("connect_failed address=127.0.0.1:")
    assert_retries_are_announced(warning)
    assert "connection refused" in warning


def test_a_hub_that_returns_during_a_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pumphouse.client")

    async def scenario() -> None:
        async with HubAndStore(1, root_key=KEY) as env:
            port, connection = env.hub.port, env.connection
        starting = asyncio.create_task(start_pull(connection))
        await asyncio.sleep(1)
        async with HubAndStore(1, port=port, root_key=KEY):
            await starting

    run(scenario())
    opened = [r.getMessage() for r in caplog.records if " failures=" in r.getMessage()]
    assert [message.split()[0] for message in opened] == ["connect_failed", "connection_opened"]


class MuteClient(NativeClient):
    """Connects, and gets no response to a request."""

    async def properties(self) -> Any:
        await asyncio.Event().wait()


class SilentStore(MemoryStore):
    async def __aenter__(self) -> Self:
        await asyncio.Event().wait()
        return self


def test_a_hub_that_responds_to_no_request_ends_the_start() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = Engine(
                lambda: MuteClient(env.connection), serve, store=env.store, clock=env.clock
            )
            with pytest.raises(
                ConnectionFailed, match=f"hub '{HUB}' at .*did not respond within 60 s"
            ):
                await engine.start()

    run(scenario())


def test_a_store_that_does_not_open_ends_the_start() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = Engine(env.connection, serve, store=SilentStore(LoopClock()), host="a")
            with pytest.raises(StoreUnavailable, match="store did not respond within 60 s"):
                await engine.start()

    run(scenario())
