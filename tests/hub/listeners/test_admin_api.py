"""The admin API: its responses, changes, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners import admin_api
from tests.hub.events import batch_of
from tests.hub.listeners.http_client import DEADLINE_S, HttpClient
from tests.hub.peer import Clock


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, http_port=0) as hub:
        yield hub


@pytest.fixture
async def api(hub: EmbeddedHub) -> AsyncIterator[HttpClient]:
    async with HttpClient(hub) as caller:
        yield caller


# -- reading --------------------------------------------------------------------------------------


async def test_health_has_the_body_of_the_emulator(api: HttpClient) -> None:
    reply = await api.call("GET", "/health")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.body.strip() == b'{"status":"healthy","message":"Service is healthy."}'


async def test_hubs_are_listed_and_shown(hub: EmbeddedHub, api: HttpClient) -> None:
    hub.create_hub("a/b", 3, ["audit"])
    listed = (await api.get("/hubs"))["hubs"]
    assert [(shown["name"], shown["partitions"]) for shown in listed] == [("a/b", 3), ("eh", 2)]
    shown = await api.get("/hubs/a%2Fb")
    assert shown == listed[0]
    assert shown["groups"] == ["$Default", "audit"]
    assert (shown["events"], shown["bytes"], shown["readers"]) == (0, 0, 0)


async def test_partitions_are_shown_with_their_readers(hub: EmbeddedHub, api: HttpClient) -> None:
    hub.create_group("eh", "Audit")
    async with NativeClient(hub.connection_string("eh")) as client:
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
        [shown] = first["readers"]
        assert (shown["group"], shown["epoch"], shown["lag"]) == ("Audit", 7, 0)
        assert shown["client"]
        groups = (await api.get("/hubs/eh/groups"))["groups"]
        assert groups == [
            {"name": "$Default", "readers": 0, "lag": 0},
            {"name": "Audit", "readers": 1, "lag": 0},
        ]


async def test_lag_counts_the_events_not_sent_yet(hub: EmbeddedHub, api: HttpClient) -> None:
    async with NativeClient(hub.connection_string("eh")) as client:
        sender = await client.sender("0")
        for _ in range(5):
            await sender.send([Event(b"x") for _ in range(1000)])
        await client.reader(ReaderOptions("0"))  # it grants some credit and reads nothing

        async def lag() -> int:
            [group] = (await api.get("/hubs/eh/groups"))["groups"]
            return int(group["lag"])

        async with asyncio.timeout(DEADLINE_S):
            while await lag() == 5000:
                pass
        [shown] = (await api.get("/hubs/eh/partitions"))["partitions"][0]["readers"]
        assert 0 < shown["lag"] < 5000
        assert shown["lag"] + shown["next"] == 5000


async def test_a_response_has_a_limit_of_readers_and_of_their_names(
    hub: EmbeddedHub, api: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_api, "READERS_MAX", 3)
    monkeypatch.setattr(admin_api, "READER_CHARS_MAX", 8)
    async with NativeClient(hub.connection_string("eh")) as client:
        for partition in "0011":
            await client.reader(ReaderOptions(partition, name="a long name"))
        shown = await api.get("/hubs/eh/partitions")
    readers = [partition["readers"] for partition in shown["partitions"]]
    assert [len(each) for each in readers] == [2, 1]
    assert {reader["name"] for each in readers for reader in each} == {"a long n"}
    assert {len(reader["client"]) for each in readers for reader in each} == {8}
    assert shown["readers_left_out"] == 1


async def test_a_response_about_many_partitions_is_used_for_a_second() -> None:
    """Reading needs no key, and a response takes time for each partition."""
    clock = Clock()
    async with EmbeddedHub({"eh": 101}, clock=clock, http_port=0) as hub, HttpClient(hub) as api:

        async def events() -> int:
            shown = await api.get("/hubs/eh")
            return int(shown["events"])

        assert await events() == 0
        hub.namespace.publish(hub.namespace.hub("eh").partitions[0], batch_of([b"x"]), None, print)
        assert await events() == 0
        clock.time += admin_api.REUSE_S
        assert await events() == 1
        hub.namespace.publish(hub.namespace.hub("eh").partitions[0], batch_of([b"x"]), None, print)
        hub.create_group("eh", "audit")  # a change is visible at once
        assert (await api.get("/hubs/eh"))["groups"] == ["$Default", "audit"]
        assert await events() == 2


async def test_rates_of_a_busy_and_an_idle_partition(hub: EmbeddedHub, api: HttpClient) -> None:
    async with NativeClient(hub.connection_string("eh")) as client:
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


async def test_head_returns_the_content_length(api: HttpClient) -> None:
    reply = await api.call("HEAD", "/health")
    assert (reply.status, reply.headers["content-length"]) == (200, "53")
    assert (await api.call("GET", "/health")).status == 200


# -- changing -------------------------------------------------------------------------------------


async def test_hubs_are_created_and_deleted(hub: EmbeddedHub, api: HttpClient) -> None:
    created = await api.put("/hubs/a%2Fb", {"partitions": 3, "groups": ["audit"]})
    assert (created.status, created.json["name"], created.json["partitions"]) == (201, "a/b", 3)
    assert hub.hubs == {"a/b": 3, "eh": 2}
    assert hub.groups("a/b") == ["$Default", "audit"]
    assert (await api.put("/hubs/plain")).json["partitions"] == 4
    assert (await api.delete("/hubs/plain")).status == 204
    assert (await api.delete("/hubs/A%2FB")).status == 204
    assert hub.hubs == {"eh": 2}


async def test_creating_an_existing_hub_succeeds_if_it_is_the_same(
    hub: EmbeddedHub, api: HttpClient
) -> None:
    again = await api.put("/hubs/eh", {"partitions": 2, "groups": ["audit"]})
    assert (again.status, again.json["groups"]) == (200, ["$Default", "audit"])
    other = await api.put("/hubs/eh", {"partitions": 3})
    assert other.status == 409
    assert other.error.startswith("hub 'eh' already exists, with 2 partitions; use that number")
    assert (await api.put("/hubs/eh/groups/Audit")).status == 200
    assert hub.groups("eh") == ["$Default", "audit"]


async def test_groups_are_created_and_deleted(hub: EmbeddedHub, api: HttpClient) -> None:
    created = await api.put("/hubs/eh/groups/audit%2Done")
    assert (created.status, created.json["name"]) == (201, "audit-one")
    assert hub.groups("eh") == ["$Default", "audit-one"]
    assert (await api.delete("/hubs/eh/groups/audit%2Done")).status == 204
    assert hub.groups("eh") == ["$Default"]


@pytest.mark.parametrize(
    ("method", "target", "fields", "status", "error"),
    [
        ("GET", "/hubs/missing", None, 404, "hub 'missing' not found; existing hubs: eh"),
        ("GET", "/", None, 404, "/ not found; see /hubs and /health"),
        ("GET", "/hubs/eh/partitions/0/x", None, 404, "/hubs/eh/partitions/0/x not found"),
        ("DELETE", "/hubs/missing", None, 404, "hub 'missing' not found"),
        ("DELETE", "/hubs/eh/groups/x", None, 404, "consumer group 'x' not found in hub 'eh'"),
        ("DELETE", "/hubs/eh/groups/$Default", None, 400, "consumer group $Default is part of"),
        ("PUT", "/hubs/-", None, 400, "invalid name '-' for a hub"),
        ("PUT", "/hubs/x", [], 400, 'the body must have the form {"partitions": 4,'),
        ("PUT", "/hubs/x", {"parts": 4}, 400, 'the body must have the form {"partitions": 4,'),
        ("PUT", "/hubs/x", {"partitions": "4"}, 400, "partitions must be a whole number (got '4')"),
        ("PUT", "/hubs/x", {"partitions": 0}, 400, "hub 'x' needs 1 to 2000 partitions (got 0)"),
        ("PUT", "/hubs/x", {"groups": "audit"}, 400, "groups must be a list of names"),
        ("POST", "/hubs", None, 405, "POST is not allowed here; use GET"),
        ("DELETE", "/health", None, 405, "DELETE is not allowed here; use GET"),
        ("OPTIONS", "/hubs/x", None, 405, "OPTIONS is not allowed here; use DELETE, GET"),
    ],
)
async def test_an_invalid_request_gets_an_error_text(
    method: str, target: str, fields: Any, status: int, error: str, api: HttpClient
) -> None:
    body = None if fields is None else json.dumps(fields).encode()
    reply = await api.call(method, target, body, api.key())
    assert (reply.status, reply.error[: len(error)]) == (status, error)
    assert ("allow" in reply.headers) == (status == 405)


async def test_a_body_that_is_not_json_is_refused(api: HttpClient) -> None:
    reply = await api.call("PUT", "/hubs/x", b"{", api.key())
    assert (reply.status, reply.error) == (400, "the body is not valid JSON")


async def test_the_limits_of_a_tier_apply() -> None:
    async with EmbeddedHub(http_port=0, tier="basic") as hub, HttpClient(hub) as api:
        reply = await api.put("/hubs/x", {"partitions": 33})
        assert reply.status == 403
        assert reply.error == ("hub 'x' would have 33 partitions; the basic tier allows 32 per hub")


async def test_a_long_path_is_refused(api: HttpClient) -> None:
    reply = await api.call("GET", f"/hubs/{'%2F' * 400}")
    assert reply.status == 414
    assert len(reply.body) < 200
