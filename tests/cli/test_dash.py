"""`pumphouse dash`: ready when it says so, stopped when it is told, and sentences for the rest."""

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

STRING = (
    "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_shows_a_hub_until_it_is_told_to_stop(
    program: Callable[..., Program], event_hub: EmbeddedHub, tmp_path: Path, number: int
) -> None:
    event_hub.create_hub("orders", 2)
    store = str(tmp_path / "leases.db")
    words = ("--hub", "orders", "--store", store, "--port", "0", "-o", "json")
    dash = program("dash", *words, connection=event_hub.connection_string())
    ready = json.loads(dash.line())
    assert ready["url"] == f"http://127.0.0.1:{ready['port']}/"
    with urllib.request.urlopen(f"{ready['url']}api/about", timeout=30) as answer:
        about = json.load(answer)
    assert about["hubs"] == ["orders"]
    assert (about["homes"], about["write"], about["groups"][0]["key"]) == (None, False, "g0")
    assert dash.end(number) == (0, "")


def test_a_port_that_is_taken(program: Callable[..., Program], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        store = str(tmp_path / "leases.db")
        dash = program("dash", "--hub", "a", "--port", port, "--store", store, connection=STRING)
        code, said = dash.wait(60)
    assert code == 1
    assert f"port {port} of 127.0.0.1 cannot be had" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no hub is named for group $Default: give --hub, or HUB/$Default"),
        (["--hub", "a", "--fleet", "counters"], "'counters' is no fleet; write [HUB/]GROUP:FACE"),
        (["--hub", "a", "--fleet", "c:pull:x"], "'c:pull:x' is no fleet"),
        (["--hub", "a", "--fleet", "c:round:1"], "face must be one of pull, push, fixed"),
        (["--hub", "a", "--fleet", "c:pull:9"], "hosts must be from 0 to 8"),
        (["--hub", "a", "--every", "1ms"], "look_s must be from 0.05 to 60"),
    ],
)
def test_what_makes_no_sense_is_said(words: list[str], sentence: str) -> None:
    runner = CliRunner(env={"EVENT_HUB_CONN_STR": STRING, "PUMPHOUSE_CONNECTION": None})
    assert sentence in refused(runner.invoke(main, ["dash", "--port", "0", *words]), code=2)


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("pumphouse.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    runner = CliRunner(env={"EVENT_HUB_CONN_STR": STRING, "PUMPHOUSE_CONNECTION": None})
    sentence = refused(runner.invoke(main, ["dash", "--hub", "a", "--port", "0"]))
    assert "pip install 'pumphouse[dashboard]'" in sentence
