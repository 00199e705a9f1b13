"""The host processes of the page."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from urllib.request import urlopen

import pytest

from pumphouse.dashboard.monitors.host_processes import ProcessFleet
from pumphouse.dashboard.options import WatchedGroup
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.dashboard.page_client import (
    PageClient,
    send,
    until,
)
from tests.dashboard.page_options import LEASE_S, first, options


def read(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        text: str = response.read().decode()
        return text


async def test_hosts_are_added_stopped_and_killed(hub: EmbeddedHub, store: str) -> None:
    connection = hub.connection_string()
    fleet = ProcessFleet(
        connection,
        "sensors",
        "counters",
        store,
        hosts=1,
        hosts_max=2,
        lease_s=LEASE_S,
        metrics=True,
    )
    group = WatchedGroup(connection, "sensors", "counters", store, LEASE_S, "pull", fleet)
    async with Dashboard(options(hub, store, groups=(group,), homes=None)) as page:
        client = PageClient(page.port, page.access.launch_token)

        def owners() -> set[str]:
            return {line["owner"] for line in page.monitors[0].latest_json["lines"]}

        await until(lambda: owners() == {"host-1"}, "host-1 owning all")
        await send(connection, "sensors", [Event(b"x")] * 40)
        assert (await client.post("/api/hosts/add", {"key": "g0"})).json == {"name": "host-2"}
        full = await client.post("/api/hosts/add", {"key": "g0"})
        assert "cannot add a host: 2 hosts are running" in full.json["error"]
        await until(lambda: owners() == {"host-1", "host-2"}, "two owners")
        assert page.not_ready() is None
        targets = dict(page.targets())
        assert targets.keys() == {"host-1", "host-2"}
        for port in targets.values():
            assert await asyncio.to_thread(read, port, "/livez") == "ok\n"
            assert await asyncio.to_thread(read, port, "/readyz") == "ok\n"
            metrics = await asyncio.to_thread(read, port, "/metrics")
            assert 'pumphouse_processor_owned_partitions{eventhub="sensors"' in metrics
        words = [change.kind for _, change in page.monitors[0].changes]
        assert "hand-off" in words
        pids = {host.name: host.pid for host in fleet.hosts()}
        await client.post("/api/hosts/kill", {"key": "g0", "name": "host-1"})
        await until(lambda: owners() == {"host-2"}, "host-2 owning all")
        assert "expire" in [change.kind for _, change in page.monitors[0].changes]
        assert not alive(pids["host-1"])
        unknown = await client.post("/api/hosts/stop", {"key": "g0", "name": "host-1"})
        assert "unknown host 'host-1'" in unknown.json["error"]
        await client.post("/api/hosts/stop", {"key": "g0", "name": "host-2"})
        await until(lambda: owners() == {""}, "no owner")
        ended = [("host-2", "stopped"), ("host-1", "killed")]
        await until(
            lambda: [(host.name, host.state) for host in fleet.hosts()] == ended, "both gone"
        )
        assert list(page.targets()) == []
        history = await first(client, "/stream/fleet", "history")
        assert {"claim", "hand-off", "expire", "release"} <= {
            change["kind"] for change in history["g0"]["changes"]
        }
        # Both hosts checkpointed what they handled: there is no lag.
        shown = await first(client, "/stream/fleet", "fleet")
        assert [line["lag"] for line in shown["groups"][0]["lines"]] == [0, 0, 0, 0]
        await client.post("/api/hosts/add", {"key": "g0"})
        last = fleet.hosts()[0].pid
    assert not alive(last)


async def test_a_host_is_shown_as_killed_only_when_its_process_is_gone(
    hub: EmbeddedHub, store: str
) -> None:
    async with ProcessFleet(hub.connection_string(), "sensors", "counters", store) as fleet:
        name = await fleet.add()
        (host,) = fleet.hosts()
        await fleet.kill(name)
        assert [shown.state for shown in fleet.hosts()] == ["killed"]
        assert not alive(host.pid)


@pytest.mark.parametrize("face", ["push", "fixed"])
async def test_hosts_of_the_push_and_fixed_apis(hub: EmbeddedHub, store: str, face: str) -> None:
    connection = hub.connection_string()
    given = ProcessFleet(
        connection, "sensors", "counters", store, face=face, hosts=1, lease_s=LEASE_S, prefix=face
    )
    group = Group(hub.authority, "sensors", "counters")
    async with given as fleet, SqliteStore(store) as rows:
        owned: list[str] = []

        async def owns_all() -> bool:
            ownerships = (await rows.list_ownership(group)).ownerships
            owned[:] = [row.partition for row in ownerships if row.owner == f"{face}-1"]
            return len(owned) == 4

        while not await owns_all():
            assert [host.state for host in fleet.hosts()] == ["running"]
            await asyncio.sleep(0.05)
        pid = fleet.hosts()[0].pid
    assert not alive(pid)


def test_an_unknown_processor_api_is_rejected() -> None:
    with pytest.raises(
        OptionError, match="invalid processor API 'sideways': use pull, push, fixed"
    ):
        ProcessFleet("c", "h", "g", "s", face="sideways")


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
