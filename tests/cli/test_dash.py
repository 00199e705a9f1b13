"""`pumphouse dash`: start, stop and errors."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Program, refused

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
    assert ready["url"] == f"http://127.0.0.1:{ready['port']}/"
    with urllib.request.urlopen(f"{ready['url']}api/about", timeout=30) as response:
        about = json.load(response)
    assert about["hubs"] == ["orders"]
    assert (about["homes"], about["write"], about["groups"][0]["key"]) == (None, False, "g0")
    assert dash.end(signal_number) == (0, "")


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
        (["--hub", "a", "--fleet", "counters"], "invalid fleet 'counters': use [HUB/]GROUP:FACE"),
        (["--hub", "a", "--fleet", "c:pull:x"], "invalid fleet 'c:pull:x'"),
        (
            ["--hub", "a", "--fleet", "c:round:1"],
            "invalid processor API 'round': use pull, push, fixed",
        ),
        (["--hub", "a", "--fleet", "c:pull:9"], "hosts must be from 0 to 8"),
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
