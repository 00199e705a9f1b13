"""A native reader under faults: no event is missed or returned twice, and failures are raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.reader import NativeReader
from pumphouse.errors import (
    AmqpError,
    ConnectionFailed,
    HubNotFound,
    LocalProtocolError,
    PumphouseError,
    ReaderEvicted,
)
from pumphouse.events import LATEST, Event, Position
from pumphouse.hub import epochs
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import ConsumerLink
from tests.client.native.connection_faults import BREAKS, READING, FaultInjector
from tests.client.native.transports import (
    DEADLINE_S,
    QUICK,
    TRANSPORTS,
    client_over,
    numbered,
    read,
    sequences,
)


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, tls_port=0, ws_port=0, fault_seed=11) as hub:
        yield hub


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_reading_has_no_gap_and_no_duplicate_under_any_fault(
    hub: EmbeddedHub, transport: str
) -> None:
    """Hundreds of faults, some of them before the first event."""
    rng = Random(transport)
    async with client_over(transport, hub) as client, client_over("tcp", hub) as calm:
        sender = await calm.sender("0")
        reader = await client.reader(ReaderOptions("0", position=LATEST, prefetch=50))
        seen: list[Event] = []
        sent = 0
        injector = FaultInjector(hub, rng, READING)
        while injector.count < BREAKS[transport]:
            sent += await sender.send(numbered(rng.randrange(40), start=sent))
            if batch := await reader.receive(rng.randrange(1, 30), 0.02):
                seen += batch
                injector.again()
        injector.stop()
        seen += await read(reader, sent - len(seen))
    assert [event.body for event in seen] == [b"%d" % number for number in range(sent)]


async def test_all_readers_of_a_client_resume() -> None:
    async with EmbeddedHub({"eh": 32}) as hub, client_over("tcp", hub) as client:
        partitions = (await client.properties()).partitions
        for partition in partitions:
            await (await client.sender(partition)).send(numbered(30))
        readers = [await client.reader(ReaderOptions(p, prefetch=7)) for p in partitions]
        for reader in readers:
            await read(reader, 5)
        hub.drop_connections()
        async with asyncio.timeout(DEADLINE_S):
            received = await asyncio.gather(*(read(reader, 25) for reader in readers))
        assert all(sequences(events) == list(range(5, 30)) for events in received)
        assert len(hub.server.connections) == 1, (
            "the client opens one new connection, not thirty-two"
        )


@pytest.mark.parametrize("filled", [0, 5])
async def test_latest_stays_resolved_after_a_reconnect(hub: EmbeddedHub, filled: int) -> None:
    async with client_over("tcp", hub) as client, client_over("tcp", hub) as other:
        sender = await other.sender("0")
        await sender.send(numbered(filled))
        reader = await client.reader(ReaderOptions("0", position=LATEST))
        # Events arrive while the connection is down.
        refusals = hub.faults.refuse(partition="0", group="$Default")
        hub.faults.drop(on="connect", times=3)
        for talk in list(hub.server.connections):
            if any(isinstance(node, ConsumerLink) for node in talk.links()):
                talk.drop()
        await sender.send(numbered(3, start=filled))
        hub.faults.cancel(refusals)
        assert sequences(await read(reader, 3)) == [filled, filled + 1, filled + 2]


async def test_buffered_events_survive_a_reconnect(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub) as client:
        await (await client.sender("0")).send(numbered(100))
        reader = await client.reader(ReaderOptions("0", prefetch=20))
        await read(reader, 1)
        async with asyncio.timeout(DEADLINE_S):
            while len(reader._buffer) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        kept = len(reader._buffer)
        sent_before = hub.namespace.hub("eh").partitions[0].events_sent
        hub.drop_connections()
        assert sequences(await read(reader, 99)) == list(range(1, 100))
        assert kept >= 10
        sent_again = hub.namespace.hub("eh").partitions[0].events_sent - sent_before
        assert sent_again <= 99 - kept, (
            "those that were kept did not come over the connection again"
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_reading_resumes_after_a_restart_with_data(tmp_path: Path, transport: str) -> None:
    ports = {"port": 0, "tls_port": 0, "ws_port": 0}
    seen: list[Event] = []
    sent = 0
    hub = EmbeddedHub({"eh": 1}, data=tmp_path / "data", **ports)  # type: ignore[arg-type]
    await hub.start()
    ports = {"port": hub.port, "tls_port": hub.tls_port or 0, "ws_port": hub.ws_port or 0}
    async with client_over(transport, hub, retry=RetryOptions(200, 0.01, 0.1)) as client:
        sender = await client.sender("0")
        reader = await client.reader(ReaderOptions("0", epoch=3))
        for _ in range(5):
            sent += await sender.send(numbered(50, start=sent))
            seen += await read(reader, 20)
            await hub.stop()
            sending = asyncio.create_task(sender.send(numbered(10, start=sent)))
            hub = EmbeddedHub(data=tmp_path / "data", **ports)  # type: ignore[arg-type]
            await hub.start()
            async with asyncio.timeout(DEADLINE_S):
                sent += await sending
        seen += await read(reader, sent - len(seen))
        assert [event.body for event in seen] == [b"%d" % number for number in range(sent)]
        assert [hub_reader.epoch for hub_reader in hub_readers(hub)] == [3], "the epoch is kept"
    await hub.stop()


def hub_readers(hub: EmbeddedHub) -> list[epochs.Reader]:
    nodes = [node for talk in hub.server.connections for node in talk.links()]
    return [node.reader for node in nodes if isinstance(node, ConsumerLink)]


async def test_a_hub_without_its_data_is_an_error() -> None:
    first = EmbeddedHub({"eh": 1}, root_key="key")
    await first.start()
    port = first.port
    async with client_over("tcp", first, retry=RetryOptions(200, 0.01, 0.1)) as client:
        reader = await client.reader(ReaderOptions("0"))
        await (await client.sender("0")).send(numbered(10))
        await read(reader, 10)
        await first.stop()
        async with EmbeddedHub({"eh": 1}, root_key="key", port=port):
            with pytest.raises(AmqpError, match="The supplied sequence number '9' is invalid"):
                await read(reader, 1)


# -- what is not retried --------------------------------------------------------------------------

PATIENT = RetryOptions(
    attempts=1000, first_s=600, most_s=600
)  # a single retry would exceed the test timeout


async def test_eviction_is_never_retried(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub, retry=PATIENT) as client:
        old = await client.reader(ReaderOptions("0", epoch=4, name="old"))
        new = await client.reader(ReaderOptions("0", epoch=7, name="new"))
        with pytest.raises(ReaderEvicted, match=r"New receiver 'new'.*'old'") as evicted:
            await old.receive(1, DEADLINE_S)
        assert evicted.value.epoch == 7
        with pytest.raises(ReaderEvicted, match="already exists") as refused:
            await client.reader(ReaderOptions("0", epoch=6))
        assert refused.value.epoch == 7
        with pytest.raises(ReaderEvicted, match="non-epoch receiver is not allowed") as refused:
            await client.reader(ReaderOptions("0"))
        assert refused.value.epoch == 7
        await (await client.sender("0")).send(numbered(1))
        assert len(await read(new, 1)) == 1
        with pytest.raises(ReaderEvicted):
            await old.receive(1, DEADLINE_S)


async def test_a_reader_that_reattaches_after_its_successor_is_refused(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub) as client, client_over("tcp", hub) as other:
        late = await client.reader(ReaderOptions("0", epoch=1))
        mine = client.connection.current
        assert mine is not None
        gate = hub.faults.drop(on="connect")
        mine.connection.transport.abort()
        await other.reader(ReaderOptions("0", epoch=2))
        hub.faults.cancel(gate)
        with pytest.raises(ReaderEvicted) as refused:
            await late.receive(1, DEADLINE_S)
        assert refused.value.epoch == 2


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:not-found", HubNotFound),
        ("com.microsoft:argument-error", AmqpError),
        ("com.microsoft:entity-disabled", AmqpError),
        ("amqp:not-allowed", AmqpError),
    ],
)
async def test_a_permanent_refusal_is_not_retried(
    hub: EmbeddedHub, condition: str, kind: type[PumphouseError]
) -> None:
    hub.faults.refuse(condition, "For good.", times=1)
    async with client_over("tcp", hub, retry=PATIENT) as client, asyncio.timeout(DEADLINE_S):
        with pytest.raises(kind, match="For good"):
            await client.reader(ReaderOptions("0"))
        with pytest.raises(AmqpError, match="between 0 and 1"):
            await client.reader(ReaderOptions("7"))
        with pytest.raises(AmqpError, match="The supplied offset '99' is invalid"):
            await client.reader(ReaderOptions("0", position=Position("offset", "99")))


async def test_exhausted_retries_raise_the_last_failure(hub: EmbeddedHub) -> None:
    hub.faults.refuse("com.microsoft:server-busy", "Come back later.")
    async with client_over("tcp", hub, retry=RetryOptions(3, 0.001, 0.01)) as client:
        with pytest.raises(ConnectionFailed, match=r"failed 4 times.*Come back later"):
            await client.reader(ReaderOptions("0"))
        assert hub.faults.struck["refuse"] == 4, "one attempt and three more"


async def test_a_link_that_always_breaks_is_not_reattached_forever(
    hub: EmbeddedHub,
) -> None:
    async with client_over("tcp", hub, retry=RetryOptions(5, 0.001, 10.0)) as client:
        await (await client.sender("0")).send(numbered(1))
        hub.faults.detach(description="Not today.", on="deliver")
        reader = await client.reader(ReaderOptions("0"))
        with pytest.raises(ConnectionFailed, match="Not today"):
            await read(reader, 1)
        assert hub.faults.struck["detach"] == 6


async def test_a_received_event_resets_the_count_of_failures(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub, retry=RetryOptions(2, 0.001, 10.0)) as client:
        sender = await client.sender("1")
        reader = await client.reader(ReaderOptions("1"))
        for number in range(10):
            hub.faults.detach(on="deliver", times=2)
            await sender.send(numbered(1))
            assert sequences(await read(reader, 1)) == [number]


# -- properties -----------------------------------------------------------------------------------


async def test_reads_of_properties_are_retried(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub) as client:
        await client.properties()
        for _ in range(30):
            asking = asyncio.create_task(client.partition_properties("0"))
            await asyncio.sleep(0)
            hub.drop_connections()
            async with asyncio.timeout(DEADLINE_S):
                assert (await asking).partition == "0"


# -- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_closing_is_bounded_if_the_hub_is_gone(hub: EmbeddedHub, transport: str) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(DEADLINE_S):
        async with client_over(
            transport, hub, retry=PATIENT, options=ConnectionOptions(close_s=0.2)
        ) as client:
            await client.reader(ReaderOptions("0"))
            sender = await client.sender()
            await hub.stop()
            asked = asyncio.create_task(client.properties())
            sending = asyncio.create_task(sender.send(numbered(3)))
            await asyncio.sleep(0.05)  # the retry delay has begun
        for task in (asked, sending):
            with pytest.raises(PumphouseError):
                await task
    assert asyncio.all_tasks() <= before


async def test_closing_ends_the_delay_before_a_retry(hub: EmbeddedHub) -> None:
    hub.faults.refuse("com.microsoft:server-busy", "Come back later.")
    async with asyncio.timeout(DEADLINE_S):
        async with client_over("tcp", hub, retry=PATIENT) as client:
            asking = asyncio.create_task(client.reader(ReaderOptions("0")))
            while not hub.faults.struck["refuse"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(LocalProtocolError, match="has been closed"):
            await asking


async def test_a_reattaching_reader_can_be_closed(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub, retry=PATIENT) as client:
        reader = await client.reader(ReaderOptions("0"))
        hub.faults.drop(on="connect")
        hub.drop_connections()
        assert await reader.receive(1, 0.05) == []
        async with asyncio.timeout(DEADLINE_S):
            await reader.close()
    assert isinstance(reader, NativeReader)


async def test_waiting_for_a_connection_can_be_cancelled(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub, retry=PATIENT) as client:
        await hub.stop()
        waiting = asyncio.create_task(client.properties())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_connection_that_never_opens_raises(hub: EmbeddedHub) -> None:
    text = hub.connection_string("eh")
    await hub.stop()
    with pytest.raises(ConnectionFailed, match="cannot connect to"):
        await NativeClient(text, retry=QUICK).__aenter__()
