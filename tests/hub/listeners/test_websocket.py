"""AMQP over WebSocket: the official clients with and without TLS, the handshake and the frames."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress

import pytest
from azure.eventhub.exceptions import EventHubError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from pumphouse.hub.connection import WRITE_HIGH_WATER, HubConnection
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners import listeners, websocket
from pumphouse.hub.listeners.websocket import ANONYMOUS_FRAME_BYTES_MAX, PATH
from pumphouse.hub.server import LINES_PER_MINUTE
from pumphouse.websocket_transport import FRAME_BYTES_MAX, MESSAGE_BYTES
from tests.hub.listeners.official_clients import (
    javascript_round_trip,
    over_websocket,
    round_trip,
    send,
)

DEADLINE_S = 20.0
HEADER = b"AMQP\x03\x01\x00\x00"

pytestmark = [
    # The official client turns TLS off in a way that aiohttp has deprecated.
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 1}, ws_port=0) as hub:
        yield hub


@pytest.fixture
async def both() -> AsyncIterator[EmbeddedHub]:
    """A hub whose WebSocket port accepts TLS too."""
    async with EmbeddedHub({"eh": 1}, ws_port=0, tls_port=0) as hub:
        yield hub


def open_websocket(
    hub: EmbeddedHub, path: str = PATH, protocol: str | None = "amqp", tls: bool = False
) -> AbstractAsyncContextManager[ClientConnection]:
    return connect(
        f"{'wss' if tls else 'ws'}://localhost:{hub.ws_port}{path}",
        subprotocols=[Subprotocol(protocol)] if protocol is not None else None,
        ssl=ssl.create_default_context(cafile=hub.ca_file) if tls else None,
        host="127.0.0.1",
        proxy=None,
    )


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition without an event of its own."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def the_connection(hub: EmbeddedHub) -> HubConnection:
    await until(lambda: hub.server.connections)
    [connection] = hub.server.connections
    return connection


async def close_code(client: ClientConnection) -> int | None:
    """The code with which the hub closes the WebSocket."""
    async with asyncio.timeout(DEADLINE_S):
        with suppress(ConnectionClosed):
            while True:
                await client.recv()
    return client.close_code


# -- the official client --------------------------------------------------------------------------


async def check_round_trip(
    hub: EmbeddedHub, sdk_name: str, content: list[bytes], tls: bool = False
) -> None:
    """Send to a hub of its own, and read it back."""
    name = f"{sdk_name}-{'wss' if tls else 'ws'}"
    hub.create_hub(name, 1)
    connection = hub.connection_string(name, tls=tls)
    assert await round_trip(sdk_name, connection, content, over_websocket(hub)) == content, name


async def test_the_official_client_sends_and_receives(hub: EmbeddedHub) -> None:
    """The clients run one after the other. The asyncio client blocks the event loop of the hub, and
    the blocking client waits for its handshake for one second only."""
    # More than aiohttp accepts in one message, so it must be split.
    content = [b"%d" % number + b"x" * 900_000 for number in range(6)]
    for sdk_name in ("sync", "aio"):
        await check_round_trip(hub, sdk_name, content)


async def test_one_port_serves_clients_with_and_without_tls(both: EmbeddedHub) -> None:
    content = [b"hello", b"x" * 900_000]
    for sdk_name in ("sync", "aio"):  # see above
        async with asyncio.TaskGroup() as checks:
            for tls in (False, True):
                checks.create_task(check_round_trip(both, sdk_name, content, tls))


async def test_the_official_javascript_client_sends_and_receives(both: EmbeddedHub) -> None:
    assert both.ca_file is not None
    connection = both.connection_string("eh", tls=True).replace("127.0.0.1", "localhost")
    by_websocket = connection.replace(f":{both.tls_port};", f":{both.ws_port};")
    assert await javascript_round_trip(by_websocket, both.ca_file, websocket=True) == "hello"


async def test_a_client_without_the_authority_refuses_the_certificate(both: EmbeddedHub) -> None:
    options = over_websocket(both)
    del options["connection_verify"]
    with pytest.raises(EventHubError, match="certificate verify failed"):
        await send("sync", both.connection_string("eh", tls=True), [b"hello"], options)


# -- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, f"{PATH}/", f"{PATH}?sb-hc-action=connect"])
@pytest.mark.parametrize("protocol", ["amqp", "AMQPWSB10"])
async def test_both_subprotocol_names_are_accepted(
    path: str, protocol: str, hub: EmbeddedHub
) -> None:
    async with open_websocket(hub, path, protocol) as client:
        assert client.subprotocol == protocol
        await client.send(HEADER)
        assert (await client.recv(decode=False))[:8] == HEADER


@pytest.mark.parametrize(
    ("path", "protocol", "status"), [("/", "amqp", 404), (PATH, None, 400), (PATH, "mqtt", 400)]
)
async def test_a_handshake_with_another_path_or_subprotocol_is_refused(
    path: str, protocol: str | None, status: int, hub: EmbeddedHub
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with open_websocket(hub, path, protocol):
            pass
    assert refused.value.response.status_code == status
    assert hub.server.connections == set()


@pytest.mark.parametrize(
    ("data", "response"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /" + b"x" * 20_000, b"HTTP/1.1 414"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200, b"HTTP/1.1 431"),
        (HEADER + b"\r\n\r\n", b""),
        (b"\xff" * 100 + b"\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\n" + b"a: %s\r\n" % (b"x" * 8000) * 9, b""),
    ],
)
async def test_an_invalid_handshake_is_refused(
    data: bytes, response: bytes, hub: EmbeddedHub
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.ws_port)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.read())[: len(response) or None] == response
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("data", [b"", b"GET /$servicebus/websocket HTTP/1.1\r\n", b"\x16\x03\x01"])
@pytest.mark.parametrize("has_tls", [False, True])
async def test_an_incomplete_handshake_times_out(
    data: bytes, has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(listeners, "HANDSHAKE_S", 0.05)
    async with EmbeddedHub(ws_port=0, tls_port=0 if has_tls else None) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.ws_port)
        writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_stopping_hub_does_not_wait_for_handshakes(both: EmbeddedHub) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", both.ws_port) for _ in range(3)]
    silent[1][1].write(b"GET /")
    silent[2][1].write(b"\x16\x03\x01")
    async with asyncio.timeout(5):
        await both.stop()
        for reader, writer in silent:
            with suppress(ConnectionResetError):  # its bytes may not have been read
                assert await reader.read() == b""
            writer.close()
            with suppress(ConnectionResetError):
                await writer.wait_closed()


# -- pages in a browser ---------------------------------------------------------------------------


async def upgrade(hub: EmbeddedHub, headers: dict[str, str], tls: bool = False) -> int:
    """The status of a WebSocket handshake with these headers."""
    fields = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "amqp",
        **headers,
    }
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    context = ssl.create_default_context(cafile=hub.ca_file) if tls else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", hub.ws_port, ssl=context, server_hostname="localhost" if tls else None
    )
    writer.write(f"GET {PATH} HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        status = (await reader.readline()).split()[1]
    writer.transport.abort()
    return int(status)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost", "Origin": "http://evil.example"},
        {"Host": "localhost", "Origin": "https://localhost:3000"},  # another local program
        {"Host": "localhost", "Origin": "null"},
        {"Host": "localhost", "Origin": ""},
        {"Host": "localhost", "Sec-Fetch-Site": "cross-site"},
        {"Host": "localhost", "Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},  # DNS rebinding
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "10.1.2.3"},
        {"Host": ""},
        {},
    ],
)
async def test_pages_of_other_sites_are_refused(headers: dict[str, str], hub: EmbeddedHub) -> None:
    assert await upgrade(hub, headers) == 403
    assert hub.server.connections == set()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "hub.example"])
@pytest.mark.parametrize("port", ["", ":8080"])  # it may be forwarded
async def test_the_names_of_the_hub_are_accepted(host: str, port: str, tls: bool) -> None:
    async with EmbeddedHub(ws_port=0, host_names=["Hub.example"], tls_port=0) as hub:
        scheme = "https" if tls else "http"
        assert await upgrade(hub, {"Host": host + port}, tls) == 101
        same_origin = {"Host": host + port, "Origin": f"{scheme}://{host}{port}"}
        assert await upgrade(hub, same_origin, tls) == 101


async def test_over_tls_the_certificate_decides_about_the_name(both: EmbeddedHub) -> None:
    """A client has compared the name with the certificate; the origin is checked all the same."""
    assert await upgrade(both, {"Host": "hub.example"}, tls=True) == 101
    cross = {"Host": "hub.example", "Origin": "https://evil.example"}
    assert await upgrade(both, cross, tls=True) == 403


async def test_the_address_of_the_connection_is_a_name_of_the_hub() -> None:
    """A hub that listens on all addresses is reached under any of them."""
    async with EmbeddedHub(ws_port=0, host="0.0.0.0") as hub:
        assert await upgrade(hub, {"Host": f"127.0.0.1:{hub.ws_port}"}) == 101
        assert await upgrade(hub, {"Host": f"{socket.gethostname()}:{hub.ws_port}"}) == 101
        assert await upgrade(hub, {"Host": "0.0.0.1"}) == 403


# -- frames ---------------------------------------------------------------------------------------


async def test_amqp_frames_may_span_websocket_messages(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(HEADER[:3])
        await client.send([HEADER[3:4], b"", HEADER[4:]])  # one message in three fragments
        assert (await client.recv(decode=False))[:8] == HEADER


async def test_a_ping_is_answered(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client, asyncio.timeout(DEADLINE_S):
        await (await client.ping(b"ping"))


@pytest.mark.parametrize("tls", [False, True])
async def test_text_messages_are_refused(tls: bool, both: EmbeddedHub) -> None:
    async with open_websocket(both, tls=tls) as client:
        await client.send("text")
        assert await close_code(client) == 1003
    await until(lambda: not both.server.connections)


async def test_a_frame_above_the_limit_is_refused(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        with suppress(ConnectionClosed):  # the close may arrive while it is sending
            await client.send(b"\x00" * (ANONYMOUS_FRAME_BYTES_MAX + 1))
        assert await close_code(client) == 1009


async def test_an_authenticated_client_may_send_larger_frames(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(HEADER)
        connection = await the_connection(hub)
        connection.on_authenticated()
        await client.send(b"")  # the limit holds from the next frame on
        heartbeats = b"\x00\x00\x00\x08\x02\x00\x00\x00"
        await client.send(heartbeats * (FRAME_BYTES_MAX // 8))
        with suppress(ConnectionClosed):  # the close may arrive while it is sending
            await client.send(heartbeats * (FRAME_BYTES_MAX // 8 + 1))
        assert await close_code(client) == 1009


async def test_an_incomplete_frame_counts_in_the_budget(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        connection = await the_connection(hub)
        head = b"\x82\xff" + (100_000).to_bytes(8, "big") + bytes(4)  # masked with zeros
        client.transport.write(head + bytes(90_000))
        await until(lambda: connection.slot.budget.held >= 90_000)
        client.transport.write(bytes(10_000))  # not AMQP: the hub closes
        assert await close_code(client) is not None
    await until(lambda: hub.server.admission.total.held == 0)


async def test_an_amqp_violation_closes_the_websocket(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(b"HTTP/1.1 ")
        assert await close_code(client) == 1001
    await until(lambda: not hub.server.connections)


async def test_a_closed_websocket_removes_the_connection(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(HEADER)
        await the_connection(hub)
    await until(lambda: not hub.server.connections)


async def test_a_broken_websocket_removes_the_connection(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(HEADER)
        await the_connection(hub)
        client.transport.abort()
        await until(lambda: not hub.server.connections)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_stopping_hub_closes_websockets(tls: bool, both: EmbeddedHub) -> None:
    async with open_websocket(both, tls=tls) as client:
        await client.send(HEADER)
        await the_connection(both)
        async with asyncio.timeout(5):
            await both.stop()
        assert await close_code(client) == 1001


async def test_a_client_that_does_not_read_does_not_delay_the_stop(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        await client.send(HEADER)
        await the_connection(hub)
        client.transport.pause_reading()
        async with asyncio.timeout(5):
            await hub.stop()
        client.transport.abort()


# -- bounds ---------------------------------------------------------------------------------------


async def test_sent_messages_have_a_bounded_size(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        connection = await the_connection(hub)
        content = bytes(range(256)) * 1000
        connection.transport.write(content)
        connection.transport.writelines([content, b"", memoryview(content)])
        received: list[bytes] = []
        async with asyncio.timeout(DEADLINE_S):
            while sum(map(len, received)) < 3 * len(content):
                received.append(await client.recv(decode=False))
        assert b"".join(received) == content * 3
        assert max(map(len, received)) == MESSAGE_BYTES


@pytest.mark.parametrize("tls", [False, True])
async def test_writing_pauses_for_a_client_that_does_not_read(tls: bool, both: EmbeddedHub) -> None:
    async with open_websocket(both, tls=tls) as client:
        connection = await the_connection(both)
        client.transport.pause_reading()
        piece, written = b"x" * 256 * 1024, 0
        async with asyncio.timeout(DEADLINE_S):
            while connection.writable:
                connection.transport.write(piece)
                written += len(piece)
                await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + 2 * len(piece)
        assert not connection.transport.is_reading()
        client.transport.resume_reading()
        received = 0
        async with asyncio.timeout(DEADLINE_S):
            while received < written:
                received += len(await client.recv(decode=False))
        await until(lambda: connection.writable and connection.transport.is_reading())


async def test_the_connection_has_the_clients_address(hub: EmbeddedHub) -> None:
    async with open_websocket(hub) as client:
        connection = await the_connection(hub)
        assert connection.peer == client.local_address
        for expected in (hub.server.options.anonymous_bytes_max, WRITE_HIGH_WATER):
            low, high = connection.transport.get_write_buffer_limits()
            assert (high, low < high) == (expected, True)
            connection.on_authenticated()


async def test_refused_handshakes_do_not_fill_the_log(
    hub: EmbeddedHub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    for _ in range(LINES_PER_MINUTE + 5):
        with pytest.raises(InvalidStatus):
            async with open_websocket(hub, "/other"):
                pass
    lines = [record.getMessage() for record in caplog.records]
    refused = [line for line in lines if line.startswith("websocket_refused ")]
    assert len(refused) == LINES_PER_MINUTE
    assert refused[-1].endswith(" count=1")
