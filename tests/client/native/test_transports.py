"""The native client over every transport: TCP, TLS, WebSocket with and without TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.connection_string import parse_connection_string, read_connection_string
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.transports import tls_context
from pumphouse.client.routes import Route, route_for
from pumphouse.errors import ConnectionFailed, HubUntrusted, OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.websocket_transport import WebSocketTransport
from tests.client.native.test_connection import listening
from tests.client.native.transports import (
    DEADLINE_S,
    QUICK,
    TRANSPORTS,
    client_over,
    numbered,
    read,
    sequences,
)

ONCE = RetryOptions(attempts=0)


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 32}, tls_port=0, ws_port=0) as hub:
        yield hub


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_events_round_trip(hub: EmbeddedHub, transport: str) -> None:
    async with client_over(transport, hub) as client:
        large = [Event(bytes([number]) * 700_000) for number in range(4)]
        assert await (await client.sender("0")).send(numbered(3000) + large) == 3004
        reader = await client.reader(ReaderOptions("0"))
        events = await read(reader, 3004)
        assert sequences(events) == list(range(3004))
        assert [event.body for event in events[3000:]] == [event.body for event in large]
        assert (await client.properties()).name == "eh"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_all_partitions_over_one_connection(hub: EmbeddedHub, transport: str) -> None:
    async with client_over(transport, hub) as client:
        partitions = (await client.properties()).partitions
        async with asyncio.timeout(DEADLINE_S):
            readers = await asyncio.gather(*(client.reader(ReaderOptions(p)) for p in partitions))
            senders = await asyncio.gather(*(client.sender(p) for p in partitions))
            await asyncio.gather(*(sender.send(numbered(100)) for sender in senders))
            received = await asyncio.gather(*(read(reader, 100) for reader in readers))
        assert all(sequences(events) == list(range(100)) for events in received)
        assert len(hub.server.connections) == 1


@pytest.mark.parametrize("transport", ["ws", "wss"])
async def test_flow_control_passes_through_a_websocket(hub: EmbeddedHub, transport: str) -> None:
    async with client_over(transport, hub) as client:
        sender = await client.sender("0")
        assert sender.link_connection is not None
        assert isinstance(sender.link_connection.transport, WebSocketTransport)
        adapter = sender.link_connection.transport.adapter
        adapter.pause_writing()
        sending = asyncio.create_task(sender.send([Event(b"x")]))
        while not sender._room._waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sender.link_connection._outcomes == {}
        adapter.resume_writing()
        async with asyncio.timeout(DEADLINE_S):
            assert await sending == 1


# -- certificates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tls", "wss"])
async def test_an_untrusted_certificate_is_refused_without_a_retry(
    hub: EmbeddedHub, transport: str
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        patient = RetryOptions(attempts=1000, first_s=60, most_s=60)
        with pytest.raises(HubUntrusted, match=r"certificate that is not trusted.*ca_file=FILE"):
            await client_over(transport, hub, ca_file=None, retry=patient).__aenter__()


async def test_a_custom_ssl_context_is_used(hub: EmbeddedHub) -> None:
    context = ssl.create_default_context(cafile=hub.ca_file)
    async with client_over("tls", hub, ca_file=None, context=context) as client:
        assert (await client.properties()).name == "eh"


async def test_tls_to_a_plain_port_is_reported(hub: EmbeddedHub) -> None:
    text = hub.connection_string("eh").replace(";UseDevelopmentEmulator=true", "")
    with pytest.raises(HubUntrusted, match="does not speak TLS"):
        await NativeClient(text, ca_file=hub.ca_file, retry=QUICK).__aenter__()


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("x", "no certificate")])
def test_an_invalid_ca_file_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=f"cannot use ca_file .*ca.pem': .*{why}"):
        tls_context(path)


# -- invalid WebSocket servers --------------------------------------------------------------------


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def speak_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"AMQP\x00\x01\x00\x00\r\n\r\n")
    await writer.drain()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        (speak_http, "rejected WebSocket connection: HTTP 404|the response was 404"),
        (speak_nonsense, "did not receive a valid HTTP response"),
        (hang_up, "the connection was closed|did not receive a valid HTTP response"),
    ],
)
async def test_an_invalid_websocket_server_is_reported(peer: object, sentence: str) -> None:
    async with listening(peer) as port:  # type: ignore[arg-type]
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b"
        client = NativeClient(
            f"{text};UseDevelopmentEmulator=true", "eh", transport="websocket", retry=ONCE
        )
        with pytest.raises(ConnectionFailed, match=sentence) as failed:
            await client.__aenter__()
        await client.__aexit__()
        assert f"the WebSocket handshake with 127.0.0.1:{port}" in str(failed.value)


async def test_a_client_with_retries_waits_for_the_hub(hub: EmbeddedHub) -> None:
    text, port, key = hub.connection_string("eh"), hub.port, "key"
    await hub.stop()
    client = NativeClient(text, retry=QUICK)
    opening = asyncio.create_task(client.__aenter__())
    later = EmbeddedHub({"eh": 1}, port=port, root_key=key)
    await asyncio.sleep(0.02)
    async with asyncio.timeout(DEADLINE_S), later:
        await opening
        await client.__aexit__()


# -- routes ---------------------------------------------------------------------------------------

AZURE = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
LOCAL = f"{AZURE.replace('ns.servicebus.windows.net/', 'localhost')};UseDevelopmentEmulator=true"
HOST = "ns.servicebus.windows.net"


@pytest.mark.parametrize(
    ("text", "transport", "endpoint", "host", "port", "tls", "websocket"),
    [
        (AZURE, "tcp", None, HOST, 5671, True, False),
        (AZURE, "websocket", None, HOST, 443, True, True),
        (AZURE, "tcp", "sb://gate:99", "gate", 99, True, False),
        (AZURE, "websocket", "gate", "gate", 443, True, True),
        (LOCAL, "tcp", None, "localhost", 5672, False, False),
        (LOCAL, "websocket", None, "localhost", 80, False, True),
        (LOCAL, "websocket", "127.0.0.1:8080", "127.0.0.1", 8080, False, True),
        (LOCAL.replace("localhost", "localhost:7"), "websocket", None, "localhost", 7, False, True),
    ],
)
def test_the_route_of_an_address(
    text: str, transport: str, endpoint: str | None,
    host: str, port: int, tls: bool, websocket: bool,
) -> None:  # fmt: skip
    route = route_for(parse_connection_string(text), transport, endpoint)
    assert route == Route(host, port, parse_connection_string(text).host, tls, websocket)


def test_the_url_of_a_websocket() -> None:
    route = route_for(parse_connection_string(LOCAL), "websocket", "wss://[::1]:8080/other")
    assert route.url == "ws://[::1]:8080/other"
    assert (
        route_for(parse_connection_string(AZURE), "websocket").url
        == f"wss://{HOST}:443/$servicebus/websocket"
    )


@pytest.mark.parametrize(
    ("transport", "endpoint", "sentence"),
    [
        ("carrier pigeon", None, "transport must be one of tcp, websocket"),
        ("tcp", "sb://:9", "endpoint must be HOST"),
        ("tcp", "host:ninety", "endpoint must be HOST"),
    ],
)
def test_an_invalid_route_is_refused(transport: str, endpoint: str | None, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        route_for(parse_connection_string(AZURE), transport, endpoint)


def test_a_host_with_a_credential_is_enough() -> None:
    for text in (HOST, f"sb://{HOST}/", f" {HOST} "):
        parsed = read_connection_string(text, "eh", keyless=True)
        assert (parsed.host, parsed.port, parsed.authority) == (HOST, 5671, HOST)
        assert (parsed.hub, parsed.tls, parsed.key) == ("eh", True, "")
    with pytest.raises(OptionError, match="a host alone needs a credential"):
        read_connection_string(HOST, "eh")
    keyless = f"Endpoint=sb://{HOST};EntityPath=eh"
    assert read_connection_string(keyless, keyless=True).hub == "eh"
    with pytest.raises(OptionError, match="neither SharedAccessKey nor"):
        read_connection_string(read_connection_string(keyless, keyless=True))
