"""HTTP as it comes over the wire, whatever comes; and the arithmetic of rates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.access.auth import AccessRule, sign_sas
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners import http
from pumphouse.hub.listeners.admin_api import AdminApi, Request
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.rates import IDLE, Rate, Rates, Totals
from tests.hub.http_caller import DEADLINE_S, Caller


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, http_port=0) as hub:
        yield hub


@pytest.fixture
async def api(hub: EmbeddedHub) -> AsyncIterator[Caller]:
    async with Caller(hub) as caller:
        yield caller


# -- the wire -------------------------------------------------------------------------------------


async def test_one_connection_for_many_requests(api: Caller) -> None:
    for _ in range(3):
        await api.get("/health")
    request = f"GET /health HTTP/1.1\r\nHost: localhost:{api.hub.http_port}\r\n\r\n".encode()
    api.writer.write(request * 5)  # without waiting for answers
    assert [(await api.reply()).status for _ in range(5)] == [200] * 5


async def test_a_client_may_ask_to_be_hung_up_on(api: Caller) -> None:
    reply = await api.call("GET", "/health", headers={"Connection": "close"})
    assert reply.status == 200
    assert await api.hung_up()


async def test_a_body_in_chunks_after_being_encouraged(api: Caller) -> None:
    body = b'e\r\n{"partitions":\r\n3\r\n 7}\r\n0\r\n\r\n'
    head = {**api.key(), "Transfer-Encoding": "chunked", "Expect": "100-continue"}
    assert (await api.call("PUT", "/hubs/x", None, head)).status == 100
    api.writer.write(body)
    assert (await api.reply()).said["partitions"] == 7


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"what is this?\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 5000, 431),
        (b"GET / HTTP/1.0\r\n\r\n", 403),  # as no Host is this address
        (b"\x16\x03\x01\x00\x00\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request(said: bytes, status: int, api: Caller) -> None:
    api.writer.write(said)
    reply = await api.reply()
    assert reply.status == status
    assert reply.error
    assert await api.hung_up()


async def test_a_large_body_is_not_taken(api: Caller) -> None:
    reply = await api.call("PUT", "/hubs/x", b"x" * (http.BODY_BYTES_MAX + 1), api.key())
    assert (reply.status, reply.error) == (413, "the body is larger than 65536 bytes")


@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
)
async def test_who_does_not_finish_is_not_waited_for(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)
    async with EmbeddedHub(http_port=0) as hub, Caller(hub) as api:
        api.writer.write(said)
        assert await api.hung_up()


async def test_who_asks_nothing_more_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_OPEN_S", 0.05)
    async with EmbeddedHub(http_port=0) as hub, Caller(hub) as api:
        await api.get("/health")
        assert await api.hung_up()


async def test_there_are_not_too_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    async with EmbeddedHub(http_port=0) as hub:
        async with Caller(hub) as first, Caller(hub) as second:
            await first.get("/health")
            await second.get("/health")
            async with Caller(hub) as third:
                assert await third.hung_up()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                async with Caller(hub) as next_one:
                    next_one.writer.write(b"x\r\n\r\n")
                    if not await next_one.hung_up():
                        break


async def test_a_client_that_does_not_read_is_not_heard(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_hub("wide", 500)
    request = f"GET /hubs/wide/partitions HTTP/1.1\r\nHost: localhost:{hub.http_port}\r\n\r\n"
    api.writer.transport.pause_reading()  # type: ignore[attr-defined]
    api.writer.write(request.encode() * 300)  # some 20 MB of answers
    await asyncio.sleep(0)
    async with Caller(hub) as other:
        assert (await other.call("GET", "/health")).status == 200  # others are served meanwhile
    api.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(300):
        assert len((await api.reply()).said["partitions"]) == 500


async def test_what_it_says_meanwhile_stays_with_it(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_hub("wide", 500)
    request = f"GET /hubs/wide/partitions HTTP/1.1\r\nHost: localhost:{hub.http_port}\r\n\r\n"
    transport = api.writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    api.writer.write(request.encode() * 400_000)  # more than any socket takes
    async with Caller(hub) as other:
        for _ in range(200):
            await other.get("/health")
    assert transport.get_write_buffer_size() > 10_000_000
    transport.abort()


async def test_a_stopping_hub_hangs_up(api: Caller) -> None:
    await api.get("/health")
    async with asyncio.timeout(5):
        await api.hub.stop()
    assert await api.hung_up()


# -- rates, as arithmetic -------------------------------------------------------------------------


def test_a_rate_is_what_was_added_since_the_oldest_sample() -> None:
    rates: Rates[str] = Rates()
    assert rates.rate("a", 0.0, Totals(5, 5)) == IDLE
    rates.sample(0.0, {"a": Totals(0, 0)})
    assert rates.rate("a", 0.0, Totals(5, 5)) == IDLE  # no time has passed
    assert rates.rate("a", 2.0, Totals(100, 50)) == Rate(50.0, 25.0)
    assert rates.rate("b", 2.0, Totals(100, 50)) == IDLE
    for second in range(1, 31):
        rates.sample(float(second), {"a": Totals(100, 50), "b": Totals(0, 0)})
    assert rates.rate("a", 30.5, Totals(100, 50)) == IDLE  # the burst is long past
    assert rates.rate("b", 31.0, Totals(11, 0)) == Rate(1.0, 0.0)


# -- whatever comes -------------------------------------------------------------------------------


@given(
    st.sampled_from(["GET", "HEAD", "PUT", "DELETE", "POST", "x"]),
    st.lists(st.sampled_from(["hubs", "groups", "partitions", "eh", "%2F", "..", "%", "%ff", ""])),
    st.binary(max_size=20),
    st.booleans(),
)
def test_every_request_has_an_answer(
    method: str, parts: list[str], body: bytes, signed: bool
) -> None:
    root = AccessRule("root", "key")
    namespace = Namespace([root])
    namespace.create_hub("eh", 1)
    admin = AdminApi(namespace)
    headers = {"host": "localhost:0"}
    if signed:
        headers["authorization"] = sign_sas("sb://x/", root, 1 << 40)
    answer = admin.handle(Request(method, "/" + "/".join(parts), headers, body))
    assert answer.status in (200, 201, 204, 400, 401, 404, 405, 409)
    json.dumps(answer.body)
