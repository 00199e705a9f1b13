"""Accepting connections: limits, descriptors, and clients that stay silent."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.client.native.client import NativeClient
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.limits.admission import Admission, Slot
from pumphouse.hub.listeners import http, listener
from pumphouse.hub.listeners.listener import RESERVE, is_low
from pumphouse.hub.options import ServerOptions
from tests.hub.listeners.http_client import HttpClient
from tests.hub.peer import DEADLINE_S, HUB, Peer, eventually

HEADER = b"AMQP\x03\x01\x00\x00"
SILENT = 30


def limited(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("connections_limited")]


@contextmanager
def silent_clients(*ports: int | None, count: int = SILENT, data: bytes = b"") -> Iterator[None]:
    """Sockets that send a few bytes at most."""
    with ExitStack() as stack:
        for port in ports:
            for _ in range(count):
                address = ("127.0.0.1", port or 0)
                sock = stack.enter_context(closing(socket.create_connection(address, DEADLINE_S)))
                sock.sendall(data)
        yield


# -- limits of connections ------------------------------------------------------------------------


class TestLimits:
    @pytest.fixture
    async def hub(self) -> AsyncIterator[EmbeddedHub]:
        options = ServerOptions(connections_max=8, connections_per_address_max=8, stop_s=0.2)
        async with EmbeddedHub({HUB: 1}, options=options, tls_port=0, ws_port=0) as hub:
            yield hub

    async def test_authenticated_connections_fill_the_limit(
        self, hub: EmbeddedHub, caplog: pytest.LogCaptureFixture
    ) -> None:
        peers = [await Peer.connect(hub) for _ in range(8)]
        for _ in range(20):
            with pytest.raises(ConnectionError):
                await self.header_from(hub.port)
        assert len(limited(caplog)) == 1
        assert "limit=address" in limited(caplog)[0]
        assert "action=refused" in limited(caplog)[0]
        await peers[0].sync()
        await peers.pop().close()
        await eventually(lambda: len(hub.server.admission) == 7)
        peers.append(await Peer.connect(hub))
        for peer in peers:
            await peer.drop()

    async def header_from(self, port: int) -> bytes:
        """What the hub responds to an AMQP header."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(DEADLINE_S):
                writer.write(HEADER)
                return await reader.readexactly(8)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError from None
        finally:
            writer.transport.abort()

    @pytest.mark.parametrize("data", [b"", b"A", b"\x16", b"GET "])
    async def test_silent_clients_keep_no_other_out(self, hub: EmbeddedHub, data: bytes) -> None:
        """They fill all slots, on every port; a new client is served at once on each."""
        peer = await Peer.connect(hub)
        loop = asyncio.get_running_loop()
        with silent_clients(hub.port, hub.tls_port, hub.ws_port, data=data):
            start = loop.time()
            assert await self.header_from(hub.port) == HEADER
            await self.check_tls(hub)
            other = await Peer.connect(hub, Login())
            assert loop.time() - start < hub.server.options.handshake_s / 2  # none has timed out
            await other.drop()
        await peer.sync()  # the authenticated one has kept its slot
        await peer.drop()
        await eventually(lambda: len(hub.server.admission) == 0, "all slots to be released")

    async def check_tls(self, hub: EmbeddedHub) -> None:
        context = ssl.create_default_context(cafile=hub.ca_file)
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", hub.tls_port, ssl=context, server_hostname="localhost"
            )
            writer.write(HEADER)
            assert await reader.readexactly(8) == HEADER
            writer.transport.abort()

    async def test_connections_of_all_ports_count_together(self, hub: EmbeddedHub) -> None:
        with silent_clients(hub.port, hub.tls_port, hub.ws_port, count=4):
            await eventually(lambda: len(hub.server.admission) == 8)


async def test_silent_http_clients_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(http.LIMITS, connections_max=4, per_address_max=4)
    monkeypatch.setattr(http, "LIMITS", limits)
    loop = asyncio.get_running_loop()
    async with EmbeddedHub(http_port=0) as hub, HttpClient(hub) as first:
        start = loop.time()
        await first.get("/health")
        with silent_clients(hub.http_port, count=3, data=b"GET /"):
            for _ in range(3):
                await first.get("/health")  # it was served last, so the others make room
                async with HttpClient(hub) as other:
                    await other.get("/health")
        await first.get("/health")
        assert loop.time() - start < http.REQUEST_S / 2


# -- descriptors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "reserve", "files_max", "low"),
    [
        (900, RESERVE, 1024, False),
        (959, RESERVE, 1024, False),
        (960, RESERVE, 1024, True),
        (960, RESERVE // 2, 1024, False),  # of the HTTP port
        (992, RESERVE // 2, 1024, True),
        (47, RESERVE, 64, False),  # a quarter of a small limit
        (48, RESERVE, 64, True),
        (55, RESERVE // 2, 64, False),
        (56, RESERVE // 2, 64, True),
        (10**6, RESERVE, None, False),
    ],
)
def test_a_reserve_of_descriptors_is_kept(
    descriptor: int, reserve: int, files_max: int | None, low: bool
) -> None:
    assert is_low(descriptor, reserve, files_max) is low


HUB_WITH_FEW_DESCRIPTORS = """
import asyncio, json, logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ServerOptions

async def main():
    options = ServerOptions(handshake_s=60.0)
    async with EmbeddedHub({"eh": 1}, root_key="k", data=sys.argv[1], http_port=0,
                           options=options) as hub:
        print(json.dumps([hub.port, hub.http_port]), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


def test_a_hub_without_descriptors_warns_once_and_serves_its_clients(tmp_path: Path) -> None:
    """Silent sockets take all descriptors but the reserve; producers and HTTP still work."""
    process = subprocess.Popen(
        [sys.executable, "-c", HUB_WITH_FEW_DESCRIPTORS, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port, http_port = json.loads(process.stdout.readline())
        with silent_clients(port, count=300):
            use_hub(port, http_port)
    finally:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in errors
    assert errors.count("limit=descriptors") == 1
    assert len(errors.splitlines()) <= 2, errors[:2000]
    assert process.returncode == 0


def use_hub(port: int, http_port: int) -> None:
    """Send with the official client, which needs a segment on disk, and ask for the health."""
    from urllib.request import urlopen

    from azure.eventhub import EventData, EventHubProducerClient

    connection = (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=k;UseDevelopmentEmulator=true;EntityPath=eh"
    )
    with EventHubProducerClient.from_connection_string(connection) as producer:
        for _ in range(3):
            producer.send_batch([EventData(b"x")], partition_id="0")
    with urlopen(f"http://localhost:{http_port}/health", timeout=DEADLINE_S) as response:
        assert response.status == 200


async def test_a_failed_accept_is_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "RETRY_S", 0.001)
    connected: list[Slot] = []

    def factory(slot: Slot) -> asyncio.Protocol:
        connected.append(slot)
        return asyncio.Protocol()

    admission = Admission(ServerOptions().admission_limits)
    port = listener.Listener(factory, admission)
    await port.start("127.0.0.1", 0)
    waiting = admission.admit("a", 0.0)
    full = FullSocket()
    for _ in range(50):
        port.accept_ready(full)
        await eventually(lambda: full.fileno() in readers(port), "the next attempt")
    assert caplog.text.count("accept_failed") == 1
    assert waiting is not None
    assert waiting.released  # a silent client makes room
    port.loop.remove_reader(full)
    with silent_clients(port.port, count=1):
        await eventually(lambda: connected)
    await port.stop()
    full.close()


class FullSocket(socket.socket):
    """A listening socket for which the process has no descriptors."""

    def accept(self) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")


def readers(port: listener.Listener) -> set[int]:
    return {key.fd for key in port.loop._selector.get_map().values()}  # type: ignore[attr-defined]


async def test_a_host_name_listens_on_all_its_addresses() -> None:
    sockets = await listener.listening_sockets("localhost", 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    assert {sock.getsockname()[0] for sock in sockets} <= {"127.0.0.1", "::1"}
    listener.close_all(sockets)


async def test_a_port_in_use_is_refused() -> None:
    (taken,) = await listener.listening_sockets("127.0.0.1", 0)
    with taken, pytest.raises(OSError, match="in use"):
        await listener.listening_sockets("127.0.0.1", taken.getsockname()[1])


async def test_replies_are_sent_without_delay() -> None:
    async with EmbeddedHub({"eh": 1}) as hub, NativeClient(hub.connection_string("eh")) as client:
        await client.properties()
        (connection,) = hub.server.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
