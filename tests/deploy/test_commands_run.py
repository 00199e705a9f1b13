"""The commands of the manifests run together as processes, with free ports and local folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Program
from tests.cli.conftest import program as program
from tests.deploy.manifests import CONFIG, DEPLOY, Container, kubernetes
from tests.scaler.scaler_process import Scaler, compiled_client, until

LOCAL = ("--host", "127.0.0.1", "--port", "0")
METRICS = ("--metrics-host", "127.0.0.1", "--metrics-port", "0")
JSON = ("-o", "json")

Start = Callable[..., Program]


def arguments(container: Container, folder: Path) -> list[str]:
    """Those of the manifest; a later option replaces an earlier one."""
    local = {"/data": str(folder / "data"), "/etc/pumphouse/config.json": str(CONFIG)}
    return [local.get(arg, arg).replace("$(POD_NAME)", "processor-1") for arg in container.args]


def is_ready(page: str) -> bool:
    try:
        return bool(urlopen(page.replace("metrics", "readyz")).read() == b"ok\n")
    except HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(DEPLOY / "kubernetes/files/app.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUMPHOUSE_STORE", str(tmp_path / "leases.db"))
    return tmp_path


def test_hub_processor_and_scaler(folder: Path, program: Start) -> None:
    parts: dict[str, Any] = kubernetes()
    hub = program(*arguments(parts["hub"], folder), *LOCAL, *METRICS, *JSON)
    ready = json.loads(hub.line())
    connection = ready["connection_strings"]["orders"]
    assert urlopen(f"http://127.0.0.1:{ready['metrics_port']}/readyz").read() == b"ok\n"

    processor = program(
        *arguments(parts["processor"], folder), *METRICS, *JSON, "--checkpoint-every", "1",
        connection=connection,
    )  # fmt: skip
    page = json.loads(processor.line())["address"]
    started = json.loads(processor.line())
    assert (started["host"], started["group"]) == ("processor-1", "counters")
    assert urlopen(page.replace("metrics", "livez")).read() == b"ok\n"
    until(lambda: is_ready(page))  # after its first cycle

    scaler = Scaler(
        compiled_client(folder), "--store", os.environ["PUMPHOUSE_STORE"], connection=connection
    )
    try:
        assert program("send", "orders", "x", connection=connection).wait() == (0, "")
        until(lambda: not scaler.is_active(consumerGroup="counters"))
    finally:
        scaler.dispose()
    assert processor.end(signal.SIGTERM)[0] == 0
    assert hub.end(signal.SIGTERM)[0] == 0
