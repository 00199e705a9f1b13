"""HTTP connections: requests in any form, limits, time-outs and back-pressure."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.access.auth import AccessRule, sign_sas
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners import http
from pumphouse.hub.listeners.admin_api import AdminApi, Request
from pumphouse.hub.namespace import Namespace
from tests.hub.listeners.http_client import HttpClient


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, http_port=0) as hub:
        yield hub


@pytest.fixture
async def api(hub: EmbeddedHub) -> AsyncIterator[HttpClient]:
    async with HttpClient(hub) as caller:
        yield caller


# -- requests -------------------------------------------------------------------------------------


async def test_one_connection_serves_many_requests(api: HttpClient) -> None:
    for _ in range(3):
        await api.get("/health")
    request = f"GET /health HTTP/1.1\r\nHost: localhost:{api.hub.http_port}\r\n\r\n".encode()
    api.writer.write(request * 5)  # without waiting for responses
    assert [(await api.reply()).status for _ in range(5)] == [200] * 5


async def test_connection_close_is_honoured(api: HttpClient) -> None:
    reply = await api.call("GET", "/health", headers={"Connection": "close"})
    assert reply.status == 200
    assert await api.is_closed()


async def test_a_chunked_body_after_100_continue_is_read(api: HttpClient) -> None:
    body = b'e\r\n{"partitions":\r\n3\r\n 7}\r\n0\r\n\r\n'
    head = {**api.key(), "Transfer-Encoding": "chunked", "Expect": "100-continue"}
    assert (await api.call("PUT", "/hubs/x", None, head)).status == 100
    api.writer.write(body)
    assert (await api.reply()).json["partitions"] == 7


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"not a request\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 5000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 5000 + b"\r\n", 431),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\n{}", 400),
        (
            b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n",
            400,
        ),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.0\r\n\r\n", 403),  # a missing Host is not this address
        (b"\x16\x03\x01\x00\x00\r\n\r\n", 400),
    ],
)
async def test_an_invalid_request_is_refused_and_the_connection_closed(
    data: bytes, status: int, api: HttpClient
) -> None:
    api.writer.write(data)
    reply = await api.reply()
    assert reply.status == status
    assert reply.error
    assert await api.is_closed()


async def test_the_refusal_of_a_head_request_has_no_body(
    api: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = b"Content-Length: 2\r\n" * 2
    api.writer.write(b"HEAD / HTTP/1.1\r\nHost: a\r\n" + lengths + b"\r\n{}")
    assert (await api.reply("HEAD")).status == 400
    assert await api.is_closed()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_invalid_bytes_after_a_head_request_are_refused_with_a_text(api: HttpClient) -> None:
    host = f"localhost:{api.hub.http_port}"
    api.writer.write(f"HEAD /health HTTP/1.1\r\nHost: {host}\r\n\r\nnot a request\r\n\r\n".encode())
    assert (await api.reply("HEAD")).status == 200
    assert "invalid HTTP/1.1 request" in (await api.reply()).error


@pytest.mark.parametrize("first", [True, False])
async def test_a_second_origin_does_not_replace_the_first(api: HttpClient, first: bool) -> None:
    host = f"localhost:{api.hub.http_port}"
    origins = [f"Origin: http://{name}\r\n" for name in (host, "evil.example")]
    lines = "".join(origins if first else origins[::-1])
    api.writer.write(f"GET /hubs HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())
    assert (await api.reply()).status == 403


async def test_a_body_above_the_limit_is_refused(api: HttpClient) -> None:
    reply = await api.call("PUT", "/hubs/x", b"x" * (http.BODY_BYTES_MAX + 1), api.key())
    assert (reply.status, reply.error) == (413, "the body is larger than 65536 bytes")


@pytest.mark.parametrize(
    "data", [b"", b"GET / HT", b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
)
async def test_an_incomplete_request_times_out(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)
    async with EmbeddedHub(http_port=0) as hub, HttpClient(hub) as api:
        api.writer.write(data)
        assert await api.is_closed()


async def test_an_idle_connection_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_OPEN_S", 0.05)
    async with EmbeddedHub(http_port=0) as hub, HttpClient(hub) as api:
        await api.get("/health")
        assert await api.is_closed()


async def test_the_connection_served_least_recently_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "LIMITS", replace(http.LIMITS, connections_max=2))
    async with (
        EmbeddedHub(http_port=0) as hub,
        HttpClient(hub) as first,
        HttpClient(hub) as second,
    ):
        await second.get("/health")
        await first.get("/health")
        async with HttpClient(hub) as third:
            assert await second.is_closed()
            await third.get("/health")
            await first.get("/health")


async def test_a_client_that_does_not_read_does_not_block_others(
    hub: EmbeddedHub, api: HttpClient
) -> None:
    hub.create_hub("wide", 500)
    request = f"GET /hubs/wide/partitions HTTP/1.1\r\nHost: localhost:{hub.http_port}\r\n\r\n"
    api.writer.transport.pause_reading()  # type: ignore[attr-defined]
    api.writer.write(request.encode() * 300)  # about 20 MB of responses
    await asyncio.sleep(0)
    async with HttpClient(hub) as other:
        assert (await other.call("GET", "/health")).status == 200  # other clients are served
    api.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(300):
        assert len((await api.reply()).json["partitions"]) == 500


async def test_requests_of_a_client_that_does_not_read_stay_in_its_buffer(
    hub: EmbeddedHub, api: HttpClient
) -> None:
    hub.create_hub("wide", 500)
    request = f"GET /hubs/wide/partitions HTTP/1.1\r\nHost: localhost:{hub.http_port}\r\n\r\n"
    transport = api.writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    api.writer.write(request.encode() * 400_000)  # more than any socket takes
    async with HttpClient(hub) as other:
        for _ in range(200):
            await other.get("/health")
    assert transport.get_write_buffer_size() > 10_000_000
    transport.abort()


async def test_a_stopping_hub_closes_http_connections(api: HttpClient) -> None:
    await api.get("/health")
    async with asyncio.timeout(5):
        await api.hub.stop()
    assert await api.is_closed()


# -- any request ----------------------------------------------------------------------------------


@given(
    st.sampled_from(["GET", "HEAD", "PUT", "DELETE", "POST", "x"]),
    st.lists(st.sampled_from(["hubs", "groups", "partitions", "eh", "%2F", "..", "%", "%ff", ""])),
    st.binary(max_size=20),
    st.booleans(),
)
def test_every_request_gets_a_response(
    method: str, parts: list[str], body: bytes, signed: bool
) -> None:
    root = AccessRule("root", "key")
    namespace = Namespace([root])
    namespace.create_hub("eh", 1)
    admin = AdminApi(namespace)
    headers = {"host": "localhost:0"}
    if signed:
        headers["authorization"] = sign_sas("sb://x/", root, 1 << 40)
    response = admin.handle(Request(method, "/" + "/".join(parts), headers, body))
    assert response.status in (200, 201, 204, 400, 401, 404, 405, 409)
    json.dumps(response.body)


async def test_all_connections_share_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more connections a client opens, the longer it waits itself, not the others."""
    monkeypatch.setattr(http, "TURN_S", -1.0)  # over after each step
    turn, steps_at = 0, []
    step = http.HttpConnection.step

    def counted_step(connection: http.HttpConnection) -> bool:
        steps_at.append(turn)
        return step(connection)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(http.HttpConnection, "step", counted_step)
    async with EmbeddedHub({"eh": 1}, http_port=0) as hub:
        request = f"GET /health HTTP/1.1\r\nHost: localhost:{hub.http_port}\r\n\r\n".encode()
        opened = [await asyncio.open_connection("127.0.0.1", hub.http_port) for _ in range(5)]
        counting = asyncio.create_task(count_turns())
        for _, writer in opened:
            writer.write(request * 10)
        for reader, writer in opened:
            for _ in range(10):
                await reader.readuntil(b"Service is healthy.")
            writer.close()
        counting.cancel()
    assert len(steps_at) >= 5 * 10 * 2
    assert len(set(steps_at)) == len(steps_at)


async def test_requests_before_the_end_of_a_connection_get_their_responses(
    api: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TURN_S", -1.0)
    request = f"GET /health HTTP/1.1\r\nHost: localhost:{api.hub.http_port}\r\n\r\n".encode()
    api.writer.write(request * 10)
    api.writer.write_eof()
    assert [(await api.reply()).status for _ in range(10)] == [200] * 10
    assert await api.is_closed()


async def test_an_unexpected_error_ends_only_its_connection(
    api: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    monkeypatch.setattr(AdminApi, "handle", lambda api, request: 1 / 0)
    async with HttpClient(api.hub) as other:
        for client in (api, other):
            client.writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await client.is_closed()
    assert [type(each["exception"]) for each in reported] == [ZeroDivisionError] * 2


async def test_pipelined_requests_are_handled_in_turns() -> None:
    """Other connections are served between them, and every request gets its response."""
    async with EmbeddedHub({"eh": 32}, http_port=0) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.http_port)
        host = f"Host: localhost:{hub.http_port}\r\n"
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        writer.write(f"GET /hubs/eh HTTP/1.1\r\n{host}\r\n".encode() * 500)
        for _ in range(500):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            (length,) = re.findall(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length))
        counting.cancel()
        writer.close()
    assert turns > 5
