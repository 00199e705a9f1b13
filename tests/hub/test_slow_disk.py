"""Producers that are faster than the disk wait; memory stays bounded, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from pumphouse.amqp.performatives import Accepted
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.producer import CREDIT_TOLERANCE, SENDER_CREDIT
from pumphouse.hub.options import ServerOptions
from pumphouse.hub.storage import writer
from tests.hub.conftest import Connect
from tests.hub.connections.test_misbehaving_clients import check_served, connection_of
from tests.hub.peer import HUB, Peer, event, eventually

QUEUE_BYTES = 1 << 20
BATCH = event(bytes(100_000))


class Disk:
    """A disk whose writes wait while it is blocked."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.write_at = writer.write_at

    def write(self, fd: int, pieces: list[bytes], position: int) -> None:
        assert self.open.wait(60)
        self.write_at(fd, pieces, position)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(writer, "write_at", disk.write)
    yield disk
    disk.open.set()


@pytest.fixture
def queue_bytes() -> int:
    return QUEUE_BYTES


@pytest.fixture
async def hub(tmp_path: Path, disk: Disk, queue_bytes: int) -> AsyncIterator[EmbeddedHub]:
    options = ServerOptions(stop_s=0.2)
    async with EmbeddedHub(
        {HUB: 2}, data=tmp_path, sync="never", queue_bytes_max=queue_bytes, options=options
    ) as hub:
        yield hub
        disk.open.set()


def flood(peer: Peer, link_name: str, count: int) -> Callable[[], int]:
    """Send many deliveries without looking at the credit; returns how many are accepted."""
    link = next(link for link in peer.session.links.values() if link.name == link_name)
    for _ in range(count):
        link.send(BATCH, settled=False)  # type: ignore[attr-defined]
    peer.flush()
    return lambda: sum(peer.outcome(number) == Accepted() for number in range(count))


async def test_the_queue_to_the_disk_is_bounded(
    hub: EmbeddedHub, connect: Connect, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    bad, second, reader = await connect(), await connect(), await connect()
    await bad.sender()
    await second.sender(f"{HUB}/Partitions/1", "second")
    disk.open.clear()
    accepted = flood(bad, "out", 200)  # 20 MB
    connection = connection_of(hub, bad)
    await eventually(lambda: connection.must_wait, "the producer to wait")
    also_accepted = flood(second, "second", 5)
    await eventually(lambda: connection_of(hub, second).must_wait, "the other to wait")
    backlog = hub.namespace.storage.backlog
    assert QUEUE_BYTES <= backlog.held <= QUEUE_BYTES + len(BATCH) + writer.WRITE_OVERHEAD + 1000
    assert not connection.transport.is_reading()
    await reader.sync()  # connections that do not send are served
    assert accepted() == 0
    disk.open.set()
    await bad.until(lambda: accepted() == 200, "all outcomes")
    await second.until(lambda: also_accepted() == 5, "all outcomes")
    await eventually(lambda: backlog.held == 0)
    assert connection.transport.is_reading()
    assert hub.namespace.hub(HUB).partitions[0].log.next_sequence == 200
    lines = [record for record in caplog.records if "write_queue_full" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"]


async def test_a_producer_that_leaves_while_it_waits_is_forgotten(
    hub: EmbeddedHub, connect: Connect, disk: Disk
) -> None:
    bad = await connect()
    await bad.sender()
    disk.open.clear()
    flood(bad, "out", 50)
    connection = connection_of(hub, bad)
    await eventually(lambda: connection.must_wait, "the producer to wait")
    assert connection.slot.budget.held > len(BATCH)  # the delivery that waits
    connection.drop()  # the hub does not read, so it cannot notice that the client has gone
    await eventually(lambda: not hub.server.connections)
    assert hub.server.admission.total.held == 0
    disk.open.set()
    await check_served(await connect())


async def test_a_delivery_that_waits_is_dropped_with_its_hub(
    hub: EmbeddedHub, connect: Connect, disk: Disk
) -> None:
    bad = await connect()
    await bad.sender()
    hub.create_hub("other", 1)
    other = await connect()
    await other.sender("other", "other")
    disk.open.clear()
    flood(bad, "out", 50)
    await eventually(lambda: connection_of(hub, bad).must_wait)
    flood(other, "other", 1)
    await eventually(lambda: connection_of(hub, other).must_wait)
    hub.delete_hub("other")
    disk.open.set()
    await eventually(lambda: not connection_of(hub, other).must_wait)
    await check_served(await connect())


class TestCredit:
    """With small deliveries the queue is not full: the credit bounds their number."""

    @pytest.fixture
    def queue_bytes(self) -> int:
        return 64 * QUEUE_BYTES

    async def test_credit_returns_when_deliveries_are_stored(
        self, hub: EmbeddedHub, connect: Connect, disk: Disk
    ) -> None:
        peer = await connect()
        out = await peer.sender()
        assert out.credit == SENDER_CREDIT
        disk.open.clear()
        for _ in range(SENDER_CREDIT):
            out.send(event(b"x"), settled=False)
        await peer.sync()
        assert out.credit == 0
        disk.open.set()
        await peer.until(lambda: out.credit > SENDER_CREDIT // 2, "credit")

    async def test_a_producer_that_ignores_its_credit_is_detached(
        self, hub: EmbeddedHub, connect: Connect, disk: Disk, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, good = await connect(), await connect()
        out = await bad.sender()
        disk.open.clear()
        for _ in range(SENDER_CREDIT + CREDIT_TOLERANCE):
            out.send(event(b"x"), settled=False)
        await bad.sync()
        assert bad.detached(out) is None
        out.send(event(b"one too many"), settled=False)
        await bad.until(lambda: bad.detached(out), "a detach")
        error = bad.detached(out)
        assert error is not None
        assert error.condition == "amqp:link:transfer-limit-exceeded"
        assert f"at most {CREDIT_TOLERANCE} are accepted" in str(error.description)
        assert caplog.text.count("credit_exceeded") == 1
        disk.open.set()
        await check_served(good)

    async def test_settled_deliveries_use_credit_too(
        self, hub: EmbeddedHub, connect: Connect, disk: Disk
    ) -> None:
        peer = await connect()
        out = await peer.sender()
        disk.open.clear()
        for _ in range(SENDER_CREDIT):
            out.send(event(b"x"), settled=True)
        await peer.sync()
        assert out.credit == 0
        disk.open.set()
        await peer.until(lambda: out.credit > SENDER_CREDIT // 2, "credit")


@pytest.fixture
def _slow_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write takes ten milliseconds."""
    never, write_at = threading.Event(), writer.write_at

    def write_slowly(fd: int, pieces: list[bytes], position: int) -> None:
        never.wait(0.01)
        write_at(fd, pieces, position)

    monkeypatch.setattr(writer, "write_at", write_slowly)


@pytest.mark.usefixtures("_slow_writes")
@pytest.mark.parametrize("buffered", [False, True])
def test_the_official_client_never_exceeds_the_tolerance(
    buffered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ignores credit. Four threads send as fast as they can to a disk that is slow."""
    options: dict[str, Any] = {}
    if buffered:
        options = {"buffered_mode": True, "on_success": ignore, "on_error": fail}
    with EmbeddedHub({HUB: 2}, data=tmp_path, queue_bytes_max=100_000) as hub:
        connection = hub.connection_string(HUB)
        with EventHubProducerClient.from_connection_string(connection, **options) as client:
            send_batches(client, 2)  # the client creates its buffers without a lock
            threads = [threading.Thread(target=send_batches, args=(client, 25)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        partitions = hub.namespace.hub(HUB).partitions
        assert sum(partition.log.next_sequence for partition in partitions) == 2 + 4 * 25
    assert "credit_exceeded" not in caplog.text


def send_batches(client: EventHubProducerClient, count: int) -> None:
    for number in range(count):
        client.send_batch([EventData(bytes(60_000))], partition_id=str(number % 2))


def ignore(*args: object) -> None:
    """The outcome is checked by counting events."""


def fail(*args: object) -> None:
    raise AssertionError(args)
