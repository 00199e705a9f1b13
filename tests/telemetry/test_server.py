"""The HTTP server for metrics and health checks."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from pumphouse.errors import OptionError, PortTaken
from pumphouse.telemetry import serve_health
from pumphouse.telemetry.health import LIVE, READY, HealthChecks, LoopCheck
from pumphouse.telemetry.server import (
    CONNECTIONS_MAX,
    REQUEST_S,
    BoundedServer,
    SharedPage,
    TelemetryServer,
    _Handler,
    is_own_name,
)


def get(server: TelemetryServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_targets_for_http_service_discovery() -> None:
    with TelemetryServer(0, "127.0.0.1", checks=HealthChecks()) as server:
        assert get(server, "/targets")[0] == 404
        server.targets = lambda: [("hub", "127.0.0.1:1"), ("page", f"127.0.0.1:{server.port}")]
        status, text = get(server, "/targets")
    assert (status, json.loads(text)) == (
        200,
        [
            {"targets": ["127.0.0.1:1"], "labels": {"process": "hub"}},
            {"targets": [f"127.0.0.1:{server.port}"], "labels": {"process": "page"}},
        ],
    )


def test_health_pages() -> None:
    checks = HealthChecks()
    with TelemetryServer(0, "127.0.0.1", checks=checks) as server:
        assert get(server, "/livez") == (200, "ok\n")
        checks.add(READY, "store", lambda: "no response for 40 s")
        assert get(server, "/livez") == (200, "ok\n")
        assert get(server, "/readyz") == (503, "store: no response for 40 s\n")
        checks.remove(READY, "store")
        checks.add(LIVE, "loop", lambda: str(1 / 0))
        assert get(server, "/livez") == (503, "loop: the check failed: division by zero\n")
        assert get(server, "/readyz")[0] == 503  # what is not live is not ready


async def test_a_blocked_loop_is_not_live() -> None:
    now_s = 100.0
    check = LoopCheck(lambda: now_s)
    turning = asyncio.create_task(check.run())
    await asyncio.sleep(0)
    now_s += 14
    assert check.failure() is None
    now_s += 26
    assert check.failure() == "it has not run for 40 s: a call blocks it"
    turning.cancel()


def test_other_pages() -> None:
    with serve_health(0) as server:
        assert get(server, "/metrics")[0] == 404
        assert get(server, "/")[0] == 404
        assert get(server, "/livez", "HEAD") == (200, "")
        assert get(server, "/livez", "POST")[0] == 501
        assert get(server, "/livez", Host="evil.example:80")[0] == 421


@pytest.mark.parametrize(
    ("host", "listens_on", "own"),
    [
        ("127.0.0.1:9464", "127.0.0.1", True),
        ("localhost:9464", "127.0.0.1", True),
        ("[::1]:9464", "::1", True),
        ("[::1]", "::1", True),
        ("", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("evil.example", "localhost", False),
        ("hub.internal:9464", "0.0.0.0", True),
    ],
)
def test_names_of_the_server(host: str, listens_on: str, own: bool) -> None:
    assert is_own_name(host, listens_on) == own


def test_slow_clients_do_not_keep_others_out() -> None:
    with serve_health(0) as server:
        slow = [
            socket.create_connection(("127.0.0.1", server.port), timeout=10)
            for _ in range(CONNECTIONS_MAX)
        ]
        for connection in slow:
            connection.sendall(b"GET /livez HTTP/1.0\r\n")
        assert get(server, "/livez") == (200, "ok\n")
        assert slow[0].recv(1) == b""  # the oldest was closed
        for connection in slow:
            connection.close()


def test_connections_within_the_limit_stay_open() -> None:
    with TelemetryServer(0, "127.0.0.1") as server:
        address = ("127.0.0.1", server.port)
        idle = [socket.create_connection(address) for _ in range(CONNECTIONS_MAX - 2)]
        assert get(server, "/livez") == (200, "ok\n")
        for connection in idle:
            connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert connection.recv(9) == b"HTTP/1.0 "
            connection.close()


def test_a_request_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumphouse.telemetry.server.REQUEST_S", 0.2)
    with serve_health(0) as server:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        received, deadline_s = b"-", time.monotonic() + 30
        while received and time.monotonic() < deadline_s:
            with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(b"G")  # one byte at a time: no single read times out
            connection.settimeout(0.05)
            try:
                received = connection.recv(1)
            except TimeoutError:
                continue
            except ConnectionResetError:
                received = b""
        assert received == b""
        connection.close()


def test_an_idle_connection_has_a_deadline_by_the_given_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 90.0)  # of a single read
    now_s = 100.0
    with TelemetryServer(0, "127.0.0.1", clock=lambda: now_s) as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, timeout=30) as idle:
            assert get(server, "/livez") == (200, "ok\n")  # the connection was accepted before
            now_s += REQUEST_S + 0.1
            assert idle.recv(1) == b""


def test_waiting_requests_share_a_page() -> None:
    made: list[None] = []
    may_go_on = threading.Event()

    def make() -> bytes:
        made.append(None)
        assert may_go_on.wait(30)
        return str(len(made)).encode()

    page = SharedPage(make)
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(page())) for _ in range(8)]
    threads[0].start()
    while not made:
        time.sleep(0.001)
    for thread in threads[1:]:
        thread.start()
    while page.waiting < 7:
        time.sleep(0.001)
    may_go_on.set()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [b"1", *[b"2"] * 7]  # a page that was begun before is not reused
    assert page() == b"3"


def test_an_idle_server_sleeps_and_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumphouse.telemetry.server.TURN_S", 60.0)
    turns: list[None] = []
    monkeypatch.setattr(BoundedServer, "service_actions", lambda server: turns.append(None))
    began_s = time.monotonic()
    with serve_health(0) as server:
        assert get(server, "/livez") == (200, "ok\n")
    assert time.monotonic() - began_s < 30
    assert len(turns) <= 2  # after the request, and at the end


def test_a_port_in_use_is_named() -> None:
    with serve_health(0) as server, pytest.raises(PortTaken, match="another port, or port 0"):
        serve_health(server.port)


@pytest.mark.parametrize("port", ["9464", 70_000, -1, True, 1.5])
def test_an_invalid_port_is_named(port: Any) -> None:
    with pytest.raises(OptionError, match=r"port must be a whole number from 0 to 65535 \(got "):
        serve_health(port)


def test_an_unknown_address_is_named() -> None:
    with pytest.raises(OptionError, match=r"cannot listen on nowhere.invalid:0.*another address"):
        serve_health(0, "nowhere.invalid")


def test_without_opentelemetry_nothing_is_imported() -> None:
    code = (
        "import sys, pumphouse, pumphouse.client.factory, pumphouse.hub.embedded, "
        "pumphouse.processor.processor, pumphouse.telemetry\n"
        "found = [name for name in sys.modules if name[:10] in ('openteleme', 'prometheus')]\n"
        "sys.exit(repr(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_metrics_are_served() -> None:
    code = (
        "from urllib.request import urlopen\n"
        "from pumphouse.telemetry import serve_metrics\n"
        "from pumphouse.telemetry.meter import is_on, open_series\n"
        "from pumphouse.telemetry.definitions import THROTTLED\n"
        "assert not is_on()\n"
        "with serve_metrics(0) as server, serve_metrics(0) as second:\n"
        "    assert is_on()\n"
        "    open_series(THROTTLED, {'hub': 'doors'}).add(4)\n"
        "    for address in (server.address, second.address):\n"
        "        page = urlopen(address + '/metrics').read().decode()\n"
        "        assert 'pumphouse_hub_throttled_total{hub=\"doors\"} 4.0' in page, page\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_metrics_need_the_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "from pumphouse.errors import OptionError\n"
        "from pumphouse.telemetry import serve_metrics\n"
        "try:\n    serve_metrics(0)\n"
        "except OptionError as error:\n    assert 'pumphouse[telemetry]' in str(error)\n"
        "else:\n    raise SystemExit('not refused')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
