"""The HTTP API: what it shows, who may change things with it, and what it puts up with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native import Client
from pumphouse.events import Event
from pumphouse.hub import http
from pumphouse.hub.admin import Admin, Request
from pumphouse.hub.auth import ALL_CLAIMS, AccessRule, Claim, sign_sas
from pumphouse.hub.doors import loopback
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.hub import Namespace
from pumphouse.hub.rates import IDLE, Rate, Rates, Totals

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.said.keys() == {"error"}
        return str(self.said["error"])


class Caller:
    """A plain HTTP client on one connection, which can also be made to send any bytes."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub

    async def __aenter__(self) -> Caller:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.hub.http_port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        given = {"Host": f"localhost:{self.hub.http_port}", **(headers or {})}
        if body is not None:
            given["Content-Length"] = str(len(body))
        lines = [f"{name}: {value}\r\n" for name, value in given.items() if value is not None]
        self.writer.write(f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
        self.writer.write(body or b"")
        return await self.reply(method)

    async def reply(self, method: str = "GET") -> Reply:
        async with asyncio.timeout(DEADLINE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            size = 0 if method == "HEAD" else int(headers.get("content-length", 0))
            return Reply(int(head[0].split()[1]), headers, await self.reader.readexactly(size))

    async def hung_up(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read() == b""

    def key(
        self, rule: str = "RootManageSharedAccessKey", hub: str | None = None
    ) -> dict[str, Any]:
        return {"Authorization": self.hub.sas_token(hub, rule)}

    async def put(self, target: str, wishes: Any = None, **headers: str) -> Reply:
        body = None if wishes is None else json.dumps(wishes).encode()
        return await self.call("PUT", target, body, headers or self.key())

    async def delete(self, target: str, **headers: str) -> Reply:
        return await self.call("DELETE", target, None, headers or self.key())

    async def get(self, target: str) -> Any:
        reply = await self.call("GET", target)
        assert reply.status == 200, reply
        return reply.said


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, http_port=0) as hub:
        yield hub


@pytest.fixture
async def api(hub: EmbeddedHub) -> AsyncIterator[Caller]:
    async with Caller(hub) as caller:
        yield caller


# -- looking --------------------------------------------------------------------------------------


async def test_health_is_as_the_emulator_tells_it(api: Caller) -> None:
    reply = await api.call("GET", "/health")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.body.strip() == b'{"status":"healthy","message":"Service is healthy."}'


async def test_hubs(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_hub("a/b", 3, ["audit"])
    listed = (await api.get("/hubs"))["hubs"]
    assert [(found["name"], found["partitions"]) for found in listed] == [("a/b", 3), ("eh", 2)]
    shown = await api.get("/hubs/a%2Fb")
    assert shown == listed[0]
    assert shown["groups"] == ["$Default", "audit"]
    assert (shown["events"], shown["bytes"], shown["readers"]) == (0, 0, 0)


async def test_partitions_and_who_reads_them(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_group("eh", "Audit")
    async with Client(hub.connection_string("eh")) as client:
        await (await client.sender("0")).send([Event(b"x") for _ in range(10)])
        options = ReaderOptions("0", group="audit", epoch=7)
        reader = await client.reader(options)
        await reader.receive(10, DEADLINE_S)
        [first, second] = (await api.get("/hubs/eh/partitions"))["partitions"]
        assert (first["id"], first["begin"], first["end"]) == ("0", 0, 10)
        assert first["bytes"] > 0
        assert first["last_enqueued_at"].endswith("+00:00")
        assert (second["id"], second["end"], second["last_enqueued_at"]) == ("1", 0, None)
        assert second["readers"] == []
        [found] = first["readers"]
        assert (found["group"], found["epoch"], found["lag"]) == ("Audit", 7, 0)
        assert found["client"]
        groups = (await api.get("/hubs/eh/groups"))["groups"]
        assert groups == [
            {"name": "$Default", "readers": 0, "lag": 0},
            {"name": "Audit", "readers": 1, "lag": 0},
        ]


async def test_lag_is_what_a_reader_was_not_sent(hub: EmbeddedHub, api: Caller) -> None:
    async with Client(hub.connection_string("eh")) as client:
        sender = await client.sender("0")
        for _ in range(5):
            await sender.send([Event(b"x") for _ in range(1000)])
        await client.reader(ReaderOptions("0"))  # it grants some credit, and reads no further

        async def lag() -> int:
            [group] = (await api.get("/hubs/eh/groups"))["groups"]
            return int(group["lag"])

        async with asyncio.timeout(DEADLINE_S):
            while await lag() == 5000:
                pass
        [found] = (await api.get("/hubs/eh/partitions"))["partitions"][0]["readers"]
        assert 0 < found["lag"] < 5000
        assert found["lag"] + found["next"] == 5000


async def test_rates(hub: EmbeddedHub, api: Caller) -> None:
    async with Client(hub.connection_string("eh")) as client:
        await (await client.sender("0")).send([Event(b"x") for _ in range(500)])
        reader = await client.reader(ReaderOptions("0"))
        await reader.receive(500, DEADLINE_S)
        [busy, idle] = (await api.get("/hubs/eh/partitions"))["partitions"]
        assert busy["in_per_s"] > 0
        assert busy["out_per_s"] > 0
        assert (idle["in_per_s"], idle["out_per_s"]) == (0, 0)
        shown = await api.get("/hubs/eh")
        assert shown["in_per_s"] > 0
        assert shown["readers"] == 1


async def test_head_says_how_much_there_would_be(api: Caller) -> None:
    reply = await api.call("HEAD", "/health")
    assert (reply.status, reply.headers["content-length"]) == (200, "53")
    assert (await api.call("GET", "/health")).status == 200


# -- changing -------------------------------------------------------------------------------------


async def test_hubs_come_and_go(hub: EmbeddedHub, api: Caller) -> None:
    created = await api.put("/hubs/a%2Fb", {"partitions": 3, "groups": ["audit"]})
    assert (created.status, created.said["name"], created.said["partitions"]) == (201, "a/b", 3)
    assert hub.hubs == {"a/b": 3, "eh": 2}
    assert hub.groups("a/b") == ["$Default", "audit"]
    assert (await api.put("/hubs/plain")).said["partitions"] == 4
    assert (await api.delete("/hubs/plain")).status == 204
    assert (await api.delete("/hubs/A%2FB")).status == 204
    assert hub.hubs == {"eh": 2}


async def test_what_is_there_already_is_fine_if_it_is_the_same(
    hub: EmbeddedHub, api: Caller
) -> None:
    again = await api.put("/hubs/eh", {"partitions": 2, "groups": ["audit"]})
    assert (again.status, again.said["groups"]) == (200, ["$Default", "audit"])
    other = await api.put("/hubs/eh", {"partitions": 3})
    assert (other.status, other.error) == (409, "hub 'eh' exists already, with 2 partitions")
    assert (await api.put("/hubs/eh/groups/Audit")).status == 200
    assert hub.groups("eh") == ["$Default", "audit"]


async def test_groups_come_and_go(hub: EmbeddedHub, api: Caller) -> None:
    created = await api.put("/hubs/eh/groups/audit%2Fone")
    assert (created.status, created.said["name"]) == (201, "audit/one")
    assert hub.groups("eh") == ["$Default", "audit/one"]
    assert (await api.delete("/hubs/eh/groups/audit%2Fone")).status == 204
    assert hub.groups("eh") == ["$Default"]


@pytest.mark.parametrize(
    ("method", "target", "wishes", "status", "error"),
    [
        ("GET", "/hubs/nobody", None, 404, "there is no hub 'nobody'; the hubs here are: eh"),
        ("GET", "/", None, 404, "there is nothing at /; see /hubs and /health"),
        ("GET", "/hubs/eh/partitions/0/x", None, 404, "there is nothing at /hubs/eh/partitions/0"),
        ("DELETE", "/hubs/nobody", None, 404, "there is no hub 'nobody'"),
        ("DELETE", "/hubs/eh/groups/x", None, 404, "hub 'eh' has no consumer group 'x'"),
        ("DELETE", "/hubs/eh/groups/$Default", None, 400, "consumer group $Default is part of"),
        ("PUT", "/hubs/-", None, 400, "'-' is no name for a hub"),
        ("PUT", "/hubs/x", [], 400, 'the body has the form {"partitions": 4,'),
        ("PUT", "/hubs/x", {"parts": 4}, 400, 'the body has the form {"partitions": 4,'),
        ("PUT", "/hubs/x", {"partitions": "4"}, 400, "partitions must be a whole number (got '4')"),
        ("PUT", "/hubs/x", {"partitions": 0}, 400, "hub 'x' needs 1 to 2000 partitions (got 0)"),
        ("PUT", "/hubs/x", {"groups": "audit"}, 400, "groups must be a list of names"),
        ("POST", "/hubs", None, 405, "POST is not possible here; possible is GET"),
        ("DELETE", "/health", None, 405, "DELETE is not possible here; possible is GET"),
        ("OPTIONS", "/hubs/x", None, 405, "OPTIONS is not possible here; possible is DELETE, GET"),
    ],
)
async def test_what_goes_wrong_is_said_in_a_sentence(
    method: str, target: str, wishes: Any, status: int, error: str, api: Caller
) -> None:
    body = None if wishes is None else json.dumps(wishes).encode()
    reply = await api.call(method, target, body, api.key())
    assert (reply.status, reply.error[: len(error)]) == (status, error)
    assert ("allow" in reply.headers) == (status == 405)


async def test_a_body_that_is_not_json(api: Caller) -> None:
    reply = await api.call("PUT", "/hubs/x", b"{", api.key())
    assert (reply.status, reply.error) == (400, "the body is not JSON")


async def test_a_tier_is_kept_to() -> None:
    async with EmbeddedHub(http_port=0, tier="basic") as hub, Caller(hub) as api:
        reply = await api.put("/hubs/x", {"partitions": 33})
        assert reply.status == 403
        assert reply.error == ("hub 'x' would have 33 partitions; the basic tier allows 32 per hub")


# -- who may change things ------------------------------------------------------------------------


async def test_without_a_key_nothing_is_changed(hub: EmbeddedHub, api: Caller) -> None:
    for method, target in (
        ("PUT", "/hubs/x"),
        ("DELETE", "/hubs/eh"),
        ("PUT", "/hubs/eh/groups/x"),
        ("DELETE", "/hubs/eh/groups/x"),
    ):
        reply = await api.call(method, target)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "sharedaccesssignature"
        assert "Authorization: SharedAccessSignature" in reply.error
    assert hub.hubs == {"eh": 2}


async def test_a_key_that_does_not_open(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_rule("sender", [Claim.SEND])
    root = hub.find_rule("RootManageSharedAccessKey", None)
    forged = AccessRule(root.name, "guessed", ALL_CLAIMS)
    for token, status, error in (
        (hub.sas_token(rule="sender"), 403, "lacks the claim Manage"),
        (hub.sas_token(lasts_s=-1), 401, "ExpiredToken"),
        (sign_sas("sb://x/", forged, 2_000_000_000), 401, "InvalidSignature"),
        (sign_sas("sb://x/other", root, 2_000_000_000), 401, "InvalidAudience"),
        ("Basic cm9vdDpyb290", 401, "MalformedToken"),
        ("Bearer x", 401, "MalformedToken"),
    ):
        reply = await api.put("/hubs/x", Authorization=token)
        assert reply.status == status
        assert error in reply.error
        assert root.key not in reply.error
    assert hub.hubs == {"eh": 2}


async def test_the_manager_of_a_hub_manages_its_groups_only(hub: EmbeddedHub, api: Caller) -> None:
    hub.create_rule("manager", [Claim.MANAGE], hub="eh")
    key = api.key("manager", "eh")
    assert (await api.put("/hubs/eh/groups/x", **key)).status == 201
    assert (await api.put("/hubs/other", **key)).status == 401
    assert (await api.delete("/hubs/eh", **key)).status == 401
    assert hub.hubs == {"eh": 2}


# -- pages in a browser ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.test"},  # a name that was made to lead here
        {"Host": "evil.test:{port}"},
        {"Host": "localhost"},
        {"Host": "localhost:1"},
        {"Host": "localhost:{port}.evil.test"},
        {"Origin": "https://evil.test"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://localhost:{port}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_from_elsewhere_gets_nothing(
    method: str, headers: dict[str, str], api: Caller
) -> None:
    made = {name: value.format(port=api.hub.http_port) for name, value in headers.items()}
    reply = await api.call(method, "/hubs/eh", None, {**api.key(), **made})
    assert reply.status == 403
    assert reply.error
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:{port}"},
        {"Host": "[::1]:{port}"},
        {"Host": "LOCALHOST:{port}"},
        {"Origin": "http://localhost:{port}"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_this_machine_is_welcome(headers: dict[str, str], api: Caller) -> None:
    made = {name: value.format(port=api.hub.http_port) for name, value in headers.items()}
    reply = await api.call("GET", "/hubs/eh", None, made)
    assert reply.status == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_it_is_reached_from_this_machine_only() -> None:
    hosts = (
        "127.0.0.1",
        "127.0.0.2",
        "::1",
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "localhost",
        "",
        "a.test",
    )
    assert [loopback(host) for host in hosts] == ["127.0.0.1", "127.0.0.2", "::1"] + 6 * [
        "127.0.0.1"
    ]


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
    assert (reply.status, reply.error) == (413, "a body may have 65536 bytes at most")


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
    admin = Admin(namespace)
    headers = {"host": "localhost:0"}
    if signed:
        headers["authorization"] = sign_sas("sb://x/", root, 1 << 40)
    answer = admin.answer(Request(method, "/" + "/".join(parts), headers, body))
    assert answer.status in (200, 201, 204, 400, 401, 404, 405, 409)
    json.dumps(answer.said)
