"""The page over HTTP, with a real hub and store."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pumphouse.dashboard.monitors.groups import GroupMonitor
from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
from pumphouse.dashboard.server.app import STREAMS_MAX, Dashboard
from pumphouse.dashboard.server.routes import STATIC
from pumphouse.errors import PortTaken
from pumphouse.events import Event
from pumphouse.homes.schema import HUBS
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.page_client import (
    PageClient,
    activity,
    alert,
    send,
    send_activities,
    send_alerts,
    until,
)
from tests.dashboard.page_options import first, options


async def test_the_document_and_its_files_are_served(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        for path in ("/", "/homes", "/fleet", "/events"):
            response = await client.get(path)
            assert (response.status, b"<title>Pumphouse" in response.body) == (200, True)
            assert response.headers["content-security-policy"].startswith("default-src 'self'")
            assert response.headers["x-content-type-options"] == "nosniff"
        names = [file.name for file in STATIC.iterdir() if file.is_file()]
        assert {"main.js", "page.css", "favicon.svg"} <= set(names)
        for name in [*names, "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"]:
            assert (await client.get(f"/static/{name}")).status == 200
        assert (await client.get("/static/../app.py")).status == 404
        assert (await client.get("/nowhere")).status == 404


def test_the_document_has_no_inline_code() -> None:
    html = (STATIC / "index.html").read_text()
    assert " style=" not in html
    assert "<style" not in html
    assert " onclick" not in html
    assert html.count("<script") == html.count("<script src=") + html.count(
        '<script type="module" src='
    )
    assert "//" not in html.replace("http://www.w3.org", "")


async def test_a_foreign_host_or_origin_is_refused(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        for path in ("/", "/api/about", "/stream/fleet"):
            assert (await client.get(path, host="evil.example")).status == 421
        sample = {"hub": "sensors", "body": "x"}
        refused = await client.post("/api/send", sample, origin="http://evil.example")
        assert refused.status == 403
        assert (await client.post("/api/send", sample, **{"x-pumphouse-token": "no"})).status == 403
        assert (await client.post("/api/send", sample)).json == {"sent": 1}


async def test_an_invalid_request_gets_a_reason(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store, write=False)) as page:
        client = PageClient(page.port, page.access.launch_token)
        for path, data, message in [
            ("/api/send", b"{", "not JSON"),
            ("/api/send", b"[]", "not a JSON object"),
            ("/api/send", b"[" * 60_000, "not JSON"),
            ("/api/send", b"x" * 70_000, "at most"),
            ("/api/send", {"hub": "sensors", "body": "x"}, "read-only"),
            ("/api/faults/plan", {"action": "drop", "hub": "sensors"}, "read-only"),
            ("/api/hosts/add", {"key": "g0"}, "does not control the hosts"),
        ]:
            response = await client.post(path, data)
            assert (response.status, message in response.json["error"]) == (400, True), (
                response.json
            )
        assert "unknown home" in (await client.get("/stream/home/5000")).json["error"]
        assert (
            "invalid position"
            in (await client.get("/stream/events?hub=sensors&from=x")).json["error"]
        )
        assert "unknown hub" in (await client.get("/stream/events?hub=x")).json["error"]


async def test_homes_are_read_from_the_hubs(hub: EmbeddedHub, store: str) -> None:
    connection = hub.connection_string()
    await send_activities(connection, activity(42, "door", 1), activity(7, "motion", 0))
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        data = await first(
            client, "/stream/homes", "homes", lambda data: data["homes_by_state"][0] == 98
        )
        assert data["homes_by_state"] == [98, 1, 0, 1, 0, 0, 0]
        assert data["size"] == 100
        distant_time = alert(42).body.replace(b'"at":', b'"at":99999999999999999999,"was":')
        invalid = [Event(b"nonsense"), Event(distant_time)]
        await send_alerts(connection, alert(42), alert(42, "fire"), *invalid)
        data = await first(client, "/stream/home/42", "home", lambda data: len(data["alerts"]) == 2)
        assert (data["home"], data["state_name"]) == ("h000042", "alert")
        assert [sensor["text"] for sensor in data["sensors"]] == ["open"]
        data = await first(
            client,
            "/stream/homes",
            "homes",
            lambda data: data["sensor_to_page"]["total_s"] is not None,
        )
        assert data["invalid"] == 2


async def test_the_homes_stream_sends_changes(hub: EmbeddedHub, store: str) -> None:
    connection = hub.connection_string()
    async with Dashboard(options(hub, store)) as page:
        async with (
            asyncio.timeout(60),
            aclosing(
                PageClient(page.port, page.access.launch_token).messages("/stream/homes")
            ) as messages,
        ):
            assert "grid" in (await anext(messages))[1]
            await send_activities(connection, activity(3, "motion", 2))
            async for _, data in messages:
                assert "grid" not in data
                if data["changed"]:
                    break
        assert data["changed"] == "GgAAAA=="  # 3 << 3 | active


async def test_reading_continues_after_a_restart_of_the_hub(store: str, tmp_path: Path) -> None:
    data = tmp_path / "hub"
    first_hub = EmbeddedHub(dict.fromkeys(HUBS, 2), data=data)
    await first_hub.start()
    for name in HUBS:
        first_hub.create_group(name, "page")
    first_hub.create_group("sensors", "counters")
    port, connection = first_hub.port, first_hub.connection_string()
    async with Dashboard(options(first_hub, store)) as page:
        await send_activities(connection, activity(1, "door", 0))
        assert page.homes_monitor is not None
        homes = page.homes_monitor.homes
        await until(lambda: homes.known == 1, "the first home")
        await until(lambda: page.monitors[0].latest_json["lines"], "the first data")
        await first_hub.stop()
        await until(lambda: page.monitors[0].latest_json["trouble"], "the error is shown")
        assert page.monitors[0].latest_json["lines"], "the last data is kept"
        async with EmbeddedHub(dict.fromkeys(HUBS, 2), port=port, data=data) as second_hub:
            await send_activities(second_hub.connection_string(), activity(2, "door", 0))
            await until(lambda: homes.known == 2, "the second home")
            await until(lambda: not page.monitors[0].latest_json["trouble"], "the error is removed")
            assert homes.absorbed == 2


async def test_faults_are_injected_and_removed(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        form = {"action": "freeze", "hub": "sensors", "partition": "2"}
        fault_id = (await client.post("/api/faults/plan", form)).json["id"]
        (planned,) = (await client.get("/api/faults")).json["planned"]
        assert (planned["action"], planned["partition"]) == ("freeze", "2")
        assert (await client.post("/api/faults/cancel", {"id": fault_id})).status == 200
        assert (await client.get("/api/faults")).json["planned"] == []
        response = await client.post("/api/faults/cancel", {"id": fault_id})
        assert (response.status, "not found" in response.json["error"]) == (502, True)


async def test_a_tail_from_a_position_with_a_filter(hub: EmbeddedHub, store: str) -> None:
    connection = hub.connection_string()
    await send(connection, "sensors", [Event(f"event {n}".encode()) for n in range(20)])
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        data = await first(
            client,
            "/stream/events?hub=sensors&from=earliest&text=T+1",
            "tail",
            lambda data: data["seen"] == 20,
        )
        assert (data["matched"], data["left_out"]) == (11, 0)
        ended = await first(client, "/stream/events?hub=sensors&partition=9", "ended")
        assert "has no partition 9" in ended["why"]
        ended = await first(client, "/stream/events?hub=sensors&group=none", "ended")
        assert "none" in ended["why"]


async def test_the_number_of_open_streams_is_limited(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        streams = [client.messages("/stream/fleet") for _ in range(STREAMS_MAX)]
        await asyncio.gather(*map(anext, streams))
        assert (await client.get("/stream/homes")).status == 503
        await asyncio.gather(*(stream.aclose() for stream in streams))
        await until(lambda: not page.is_full, "all streams are closed")
        assert (await first(client, "/stream/homes", "homes"))["size"] == 100


async def test_closing_the_page_ends_open_streams(hub: EmbeddedHub, store: str) -> None:
    async with Dashboard(options(hub, store)) as page:
        stream = PageClient(page.port, page.access.launch_token).messages("/stream/fleet")
        await anext(stream)
    async with asyncio.timeout(60):
        assert [name async for name, _ in stream][-1:] in ([], ["fleet"])
    with pytest.raises(ConnectionRefusedError):
        await PageClient(page.port, page.access.launch_token).get("/")


async def test_a_port_in_use_is_reported(hub: EmbeddedHub, store: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(
            PortTaken, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            await Dashboard(options(hub, store, port=port)).__aenter__()


async def test_a_failed_monitor_is_restarted(
    hub: EmbeddedHub, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observe, calls = GroupMonitor.observe, []

    async def fails_once(monitor: GroupMonitor, *args: Any) -> None:
        calls.append(monitor)
        if len(calls) == 1:
            raise ZeroDivisionError("unexpected")
        await observe(monitor, *args)

    monkeypatch.setattr(GroupMonitor, "observe", fails_once)
    async with Dashboard(options(hub, store)) as page:
        client = PageClient(page.port, page.access.launch_token)
        await first(client, "/stream/fleet", "fleet", lambda data: data["groups"][0]["lines"])
    assert "monitor_failed" in caplog.text
    assert "unexpected" in caplog.text


async def test_an_unreachable_hub_is_reported_without_secrets(store: str) -> None:
    connection = (
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;"
        "UseDevelopmentEmulator=true"
    )
    group = WatchedGroup(connection, "sensors", "counters", store)
    dashboard_options = DashboardOptions(
        port=0, groups=(group,), homes=HomesFeed(connection), update_s=0.1
    )
    async with Dashboard(dashboard_options) as page:
        client = PageClient(page.port, page.access.launch_token)
        data = await first(
            client, "/stream/fleet", "fleet", lambda data: data["groups"][0]["trouble"]
        )
        assert "cannot connect to 127.0.0.1:1" in data["groups"][0]["trouble"]
        data = await first(client, "/stream/homes", "homes", lambda data: data["trouble"])
        assert "c2VjcmV0" not in str(data)
