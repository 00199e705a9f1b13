"""The launch token over HTTP, and the limits of the page's web server."""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from pumphouse.dashboard.server import client_log, protocol
from pumphouse.dashboard.server.app import STREAMS_MAX, Dashboard
from pumphouse.dashboard.server.guard import HEAD_BYTES_MAX
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.page_client import PATIENCE_S, PageClient, until
from tests.dashboard.page_options import first, options


async def test_the_printed_address_sets_a_cookie_that_opens_everything(
    hub: EmbeddedHub, store: str
) -> None:
    async with Dashboard(options(hub, store)) as page:
        stranger = PageClient(page.port)
        assert re.fullmatch(rf"http://127\.0\.0\.1:{page.port}/\?token=[\w-]{{32}}", page.url)
        path = page.url.removeprefix(page.address.rstrip("/"))
        response = await stranger.get(path)
        assert (response.status, b"<title>Pumphouse" in response.body) == (200, True)
        cookie, *attributes = response.headers["set-cookie"].split("; ")
        assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict"]
        about = await stranger.get("/api/about", cookie=cookie)
        assert about.status == 200
        assert page.access.launch_token not in about.body.decode()
        assert "set-cookie" not in (await stranger.get("/fleet", cookie=cookie)).headers


@pytest.mark.parametrize("path", ["/", "/fleet", "/api/about", "/stream/fleet", "/static/main.js"])
async def test_nothing_is_served_without_the_token(hub: EmbeddedHub, store: str, path: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = await PageClient(page.port).get(path, **headers)
            assert response.status == 401
            assert b"open the address that the command has printed" in response.body
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["content-security-policy"]
        assert (await PageClient(page.port).get(f"{path}?token=wrong")).status == 401


async def test_a_page_without_a_token_is_open(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store, token="")) as page:
        assert page.url == page.address
        assert (await PageClient(page.port).get("/api/about")).status == 200


async def test_a_given_token_is_used(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store, token="sixteen-letters-")) as page:
        assert page.url.endswith("/?token=sixteen-letters-")
        assert (await PageClient(page.port, "sixteen-letters-").get("/fleet")).status == 200


async def test_the_token_is_in_no_log_and_no_repr(
    hub: EmbeddedHub, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Dashboard(options(hub, store)) as page:
            client = PageClient(page.port, page.access.launch_token)
            path = page.url.removeprefix(page.address.rstrip("/"))
            assert (await client.get(path)).status == 200
            assert (await client.get(path, host="evil.example")).status == 421
            assert (await client.get(f"/nowhere{path}")).status == 404
            await first(client, "/stream/fleet", "fleet")
            logged = caplog.text + repr(page) + repr(page.options)
    assert "evil" not in caplog.text
    assert page.access.launch_token not in logged
    assert page.access.change_token not in logged


# -- limits ---------------------------------------------------------------------------------------


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes and read until the page closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(data)
            return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost:",
        b"POST /api/send HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n{",
        b"GET /static/theme.js HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n{",
        b"GET /static/theme.js HTTP/1.1\r\nHost: {host}\r\n\r\nGET / HT",
    ],
)
async def test_half_a_request_is_dropped(
    hub: EmbeddedHub, store: str, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_S", 0.1)
    async with Dashboard(options(hub, store, token="")) as page:
        await exchange(page.port, half.replace(b"{host}", f"127.0.0.1:{page.port}".encode()))


async def test_silent_connections_keep_no_browser_out(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS_MAX", 3)
    async with Dashboard(options(hub, store)) as page, silent_connections(page, 3) as silent:
        client = PageClient(page.port, page.access.launch_token)
        assert (await client.get("/fleet")).status == 200
        assert await has_ended(silent[0])
        assert not [reader for reader in silent[1:] if reader.at_eof()]


async def test_refused_requests_do_not_keep_a_connection(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS_MAX", 2)
    async with Dashboard(options(hub, store)) as page:
        known, writer = await keep_alive(page, page.access.launch_token)
        stranger, stranger_writer = await keep_alive(page, "wrong")
        async with silent_connections(page, 1):
            assert await has_ended(stranger)
            assert not known.at_eof()
        writer.close()
        stranger_writer.close()


async def test_a_stream_is_not_closed_in_favour_of_others(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS_MAX", 2)
    async with Dashboard(options(hub, store, update_s=0.05)) as page:
        client = PageClient(page.port, page.access.launch_token)
        async with aclosing(client.messages("/stream/fleet")) as messages:
            await anext(messages)
            async with silent_connections(page, 2) as silent:
                assert await has_ended(silent[0])
                names = {(await anext(messages))[0] for _ in range(3)}
                assert "fleet" in names


async def test_a_connection_is_refused_if_all_others_are_served(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS_MAX", 1)
    async with Dashboard(options(hub, store, update_s=0.05)) as page:
        client = PageClient(page.port, page.access.launch_token)
        async with aclosing(client.messages("/stream/fleet")) as messages:
            await anext(messages)
            assert await exchange(page.port, b"") in (b"", b"reset")
            assert (await anext(messages))[0] == "fleet"


@asynccontextmanager
async def silent_connections(page: Dashboard, count: int) -> AsyncIterator[list[StreamReader]]:
    """Connections that send nothing; the page has accepted them one after the other."""
    opened = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection("127.0.0.1", page.port))
            port = opened[-1][1].get_extra_info("sockname")[1]
            await until(lambda port=port: port in client_ports(page), "it is accepted")  # type: ignore[misc]
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def keep_alive(page: Dashboard, token: str) -> tuple[StreamReader, StreamWriter]:
    """A connection that has had one response and stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    head = f"Host: 127.0.0.1:{page.port}\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"GET /fleet HTTP/1.1\r\n{head}\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        received = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", received)
        assert length is not None
        await reader.readexactly(int(length[1]))
    return reader, writer


async def has_ended(reader: StreamReader) -> bool:
    """Wait for the end of a connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_client_that_does_not_read_its_stream_is_dropped(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_S", 0.1)
    async with Dashboard(options(hub, store, update_s=0.05)) as page:
        _, writer = await asyncio.open_connection("127.0.0.1", page.port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        token = page.access.launch_token
        head = f"Host: 127.0.0.1:{page.port}\r\nAuthorization: Bearer {token}\r\n"
        request = f"GET /static/vendor/uPlot.iife.min.js HTTP/1.1\r\n{head}\r\n"
        writer.write(request.encode() * 500)  # more responses than the buffers of sockets hold
        await until(lambda: server_connections(page) == 1, "the connection is open")
        await until(lambda: server_connections(page) == 0, "the connection is dropped")
        writer.close()


def server_connections(page: Dashboard) -> int:
    return len(client_ports(page))


def client_ports(page: Dashboard) -> list[int]:
    assert page._server is not None
    connections = page._server.server_state.connections
    timed = [each for each in connections if isinstance(each, protocol.TimedProtocol)]
    return [each.client[1] for each in timed if each.client is not None]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"400"),
        (b"Transfer-Encoding: chunked", b"400"),
        (b"a:\r\n" * 100 + b"a:", b"400"),
        (b"Content-Length: 2\r\nContent-Length: 3", b"400"),
        (b"Content-Length: 2\r\nContent-Length: 2", b"400"),
        (b"content-length:2\r\nCONTENT-LENGTH: 2", b"400"),
        (b"Content-Length: 2, 2", b"400"),
        (b"Content-Length: 2,\r\n 2", b"400"),
        (b"Content-Length: x", b"400"),
        (b"Transfer-Encoding: gzip", b"400"),
        (b"Host: other", b"400"),
        (b"A: " + b"b" * HEAD_BYTES_MAX, b"400"),  # complete in one piece
    ],
)
async def test_an_ambiguous_or_large_head_is_refused(
    hub: EmbeddedHub, store: str, head: bytes, status: bytes
) -> None:
    async with Dashboard(options(hub, store)) as page:
        host = f"Host: 127.0.0.1:{page.port}".encode()
        response = await exchange(
            page.port, b"POST /api/send HTTP/1.1\r\n" + host + b"\r\n" + head + b"\r\n\r\n{}"
        )
        assert response.split(b" ")[1] == status


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: close, upgrade\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\0\r\n\r\n", b" 400 "),
        (UPGRADE, b" 421 "),
        (CHUNKED + b"number\r\n", b" 400 "),
        (CHUNKED.replace(b"POST", b"HEAD"), b" 400 "),  # its response has no body
    ],
)
async def test_invalid_requests_do_not_fill_the_log(
    hub: EmbeddedHub,
    store: str,
    request_bytes: bytes,
    status: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client_log, "PERIOD_S", 3600.0)
    async with Dashboard(options(hub, store)) as page:
        caplog.clear()
        for _ in range(client_log.LINES_MAX + 5):
            assert status in (await exchange(page.port, request_bytes))[:20]
        logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert "Traceback" not in caplog.text
    assert {text.split(" ")[0] for text in logged} == {"http_request_invalid"}
    assert set(Counter(logged).values()) == {client_log.LINES_MAX}


async def test_data_during_the_last_response_is_not_an_error_of_the_page(
    hub: EmbeddedHub, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Dashboard(options(hub, store)) as page:
        caplog.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        head = f"GET /stream/fleet HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nConnection: close"
        token = page.access.launch_token
        writer.write(f"{head}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        writer.write(b"more")
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
    assert "Traceback" not in caplog.text


async def test_a_read_is_small(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients are served between two reads."""
    sizes: list[int] = []
    data_received = protocol.TimedProtocol.data_received

    def recorded(connection: protocol.TimedProtocol, data: bytes) -> None:
        sizes.append(len(data))
        data_received(connection, data)

    monkeypatch.setattr(protocol.TimedProtocol, "data_received", recorded)
    async with Dashboard(options(hub, store, token="")) as page:
        head = f"GET /fleet HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nConnection: close\r\n"
        await exchange(page.port, f"{head}Content-Length: 200000\r\n\r\n".encode() + b"x" * 200_000)
    assert 0 < max(sizes) <= protocol.READ_BYTES_MAX


@pytest.mark.parametrize("path", ["/api/send", "/nowhere"])
async def test_a_refused_request_with_a_body_ends_its_connection(
    hub: EmbeddedHub, store: str, path: str
) -> None:
    """Its body is not read."""
    async with Dashboard(options(hub, store)) as page:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Length: 10000000"
        response = await exchange(page.port, f"{head}\r\n\r\n".encode())
        assert response.startswith(b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in response


async def test_streams_that_open_at_the_same_time_are_counted(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        statuses: list[int] = []
        opened = asyncio.Event()

        async def open_one() -> None:
            async with client.request("GET", "/stream/fleet", {}) as (status, _, _):
                statuses.append(status)
                if len(statuses) == STREAMS_MAX + 8:
                    opened.set()
                await opened.wait()

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(open_one() for _ in range(STREAMS_MAX + 8)))
        assert (statuses.count(200), statuses.count(503)) == (STREAMS_MAX, 8)
        await until(lambda: "| 0 streams" in repr(page), "all streams are closed")
