"""`pumphouse dash`: start, stop and errors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.cli.common.metrics import PAGE, not_ready_without
from pumphouse.cli.dash import serve
from pumphouse.dashboard.options import DashboardOptions
from pumphouse.dashboard.server import app
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.telemetry.health import CHECKS, READY
from tests.cli.conftest import Program, refused
from tests.hub.peer import eventually
from tests.spark.support.waiting import until

CONNECTION = (
    "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_dash_serves_the_page_until_a_signal(
    program: Callable[..., Program], event_hub: EmbeddedHub, tmp_path: Path, signal_number: int
) -> None:
    event_hub.create_hub("orders", 2)
    store = str(tmp_path / "leases.db")
    args = ("--hub", "orders", "--store", store, "--port", "0", "-o", "json")
    dash = program("dash", *args, connection=event_hub.connection_string())
    ready = json.loads(dash.line())
    address, _, token = ready["url"].partition("?token=")
    assert address == f"http://127.0.0.1:{ready['port']}/"
    request = urllib.request.Request(f"{address}api/about")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=30)
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as response:
        about = json.load(response)
    assert about["hubs"] == ["orders"]
    assert (about["homes"], about["write"], about["groups"][0]["key"]) == (None, False, "g0")
    assert dash.end(signal_number) == (0, "")


def test_the_page_is_ready_while_hub_and_store_respond(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    with EmbeddedHub(hubs={"orders": 2}) as hub:
        args = ("--hub", "orders", "--store", str(tmp_path / "leases.db"), "--port", "0")
        dash = program("dash", *args, "--metrics-port", "0", connection=hub.connection_string())
        page, metrics = dash.line(), dash.line()
        assert page.startswith("page       http://127.0.0.1:")
        address = metrics.split()[1].removesuffix("/metrics")
        until(lambda: get(address, "/readyz") == (200, "ok\n"))
        assert get(address, "/metrics")[0] == 200
        assert json.loads(get(address, "/targets")[1]) == [
            {"targets": [address.removeprefix("http://")], "labels": {"process": "page"}}
        ]
    until(lambda: "page: group $Default: " in get(address, "/readyz")[1])
    assert get(address, "/readyz")[0] == 503
    assert get(address, "/livez") == (200, "ok\n")
    assert dash.end(signal.SIGTERM) == (0, "")


class SlowPage:
    """A page that starts and stops when it may."""

    url, port = "http://127.0.0.1:1/", 1

    def __init__(self) -> None:
        self.may_start, self.may_stop = asyncio.Event(), asyncio.Event()
        self.trouble: str | None = "hub orders does not respond"

    async def __aenter__(self) -> Self:
        await self.may_start.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.may_stop.wait()

    def not_ready(self) -> str | None:
        return self.trouble


async def test_the_page_is_not_ready_while_it_starts_and_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, options = SlowPage(), DashboardOptions(connection=CONNECTION, hubs=("orders",))
    monkeypatch.setattr(app, "Dashboard", lambda options: page)

    async def until_failure(text: str | None) -> None:
        expected = {} if text is None else {PAGE: text}
        await eventually(lambda: CHECKS.failures(READY) == expected)

    with not_ready_without(PAGE):
        serving = asyncio.create_task(serve(options, "json", None))
        await until_failure("there is no page")
        page.may_start.set()
        await until_failure("hub orders does not respond")
        page.trouble = None
        await until_failure(None)
        os.kill(os.getpid(), signal.SIGTERM)
        await until_failure("the page stops")
        assert not serving.done()
        page.may_stop.set()
        await asyncio.wait_for(serving, 20)
        await until_failure("the page stops")
    assert CHECKS.failures(READY) == {}


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("args", "env", "ending"),
    [
        (("--no-token",), {}, "/\n"),
        ((), {"PUMPHOUSE_DASH_TOKEN": "sixteen-letters-"}, "/?token=sixteen-letters-\n"),
    ],
)
def test_the_address_has_the_chosen_token(
    program: Callable[..., Program],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    env: dict[str, str],
    ending: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    store = str(tmp_path / "leases.db")
    dash = program("dash", "--hub", "a", "--port", "0", "--store", store, *args,
                   connection=CONNECTION)  # fmt: skip
    assert dash.line().endswith(ending)
    assert dash.end(signal.SIGINT)[0] == 0


def test_a_port_in_use_is_reported(program: Callable[..., Program], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        store = str(tmp_path / "leases.db")
        dash = program(
            "dash", "--hub", "a", "--port", port, "--store", store, connection=CONNECTION
        )
        code, stderr = dash.wait(60)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no hub for group $Default: use --hub HUB, or HUB/$Default"),
        (["--group", "a/x y"], "invalid name 'x y' for a consumer group: use 1 to 50 letters"),
        (["--group", "a/"], "invalid name '' for a consumer group"),
        (["--group", "a//c"], "invalid name 'a/' for a hub: use 1 to"),
        (["--hub", "a?", "--fleet", "c:pull:1"], "invalid name 'a?' for a hub"),
        (["--hub", "a", "--fleet", "counters"], "invalid fleet 'counters': use [HUB/]GROUP:API"),
        (["--hub", "a", "--fleet", "c:pull:x"], "invalid fleet 'c:pull:x'"),
        (
            ["--hub", "a", "--fleet", "c:round:1"],
            "invalid processor API 'round': use pull, push, fixed",
        ),
        (["--hub", "a", "--fleet", "c:pull:9"], "hosts must be from 0 to 8"),
        (["--hub", "a", "--token", "short"], "invalid token: use 16 to 128 letters"),
        (["--hub", "a", "--every", "1ms"], "the update interval must be from 0.05 to 60"),
    ],
)
def test_invalid_options_are_rejected(args: list[str], message: str) -> None:
    runner = CliRunner(env={"EVENT_HUB_CONN_STR": CONNECTION, "PUMPHOUSE_CONNECTION": None})
    assert message in refused(runner.invoke(main, ["dash", "--port", "0", *args]), code=2)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("pumphouse.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    runner = CliRunner(env={"EVENT_HUB_CONN_STR": CONNECTION, "PUMPHOUSE_CONNECTION": None})
    message = refused(runner.invoke(main, ["dash", "--hub", "a", "--port", "0"]))
    assert "pip install 'pumphouse[dashboard]'" in message
