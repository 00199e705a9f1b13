"""The addresses at which the processes of the demonstration serve metrics."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pumphouse.cli.demo import metrics as demo_metrics
from pumphouse.cli.demo.metrics import printed_port, serving_demo_metrics

READY = {"hub": {"port": 5672, "metrics_port": 7001}, "spark": {"url": "u", "port": 7002}}


@pytest.mark.parametrize(
    ("line", "port"),
    [
        (json.dumps(READY["hub"]) + "\n", 7001),
        (json.dumps(READY["spark"]) + "\n{}", 7002),
        (json.dumps(READY["spark"]), None),  # still being written
        ('{"port": 5672, "metrics_port": null}\n', None),
        ('{"event": "sift started"}\n', None),
        ("[1]\n", None),
        ("Traceback\n", None),
    ],
)
def test_the_port_that_a_process_prints(tmp_path: Path, line: str, port: int | None) -> None:
    output = tmp_path / "hub.out"
    assert printed_port(output) is None
    output.write_text(line)
    assert printed_port(output) == port


def test_the_list_follows_the_processes(tmp_path: Path) -> None:
    reports: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        serving_demo_metrics(other.getsockname()[1], tmp_path, reports.append) as metrics,
    ):
        assert metrics is not None
        own = ("page", metrics.server.address.removeprefix("http://"))
        assert reports[0].endswith("is in use: choosing a free port for the metrics")
        assert list(metrics.targets()) == [own]
        for name, ready in READY.items():
            (tmp_path / f"{name}.out").write_text(json.dumps(ready) + "\n")
        metrics.lag_port = 7003
        metrics.page = cast(Any, SimpleNamespace(targets=lambda: [("pull-1", 7004)]))
        assert list(metrics.targets()) == [
            own, ("lag", "127.0.0.1:7003"), ("hub", "127.0.0.1:7001"),
            ("spark", "127.0.0.1:7002"), ("pull-1", "127.0.0.1:7004"),
        ]  # fmt: skip
        assert str(metrics).endswith(f"{metrics.server.address}/targets")


def test_without_the_extra_there_are_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_metrics, "find_spec", lambda name: None)
    reports: list[str] = []
    with serving_demo_metrics(0, tmp_path, reports.append) as metrics:
        assert metrics is None
    assert reports == ["metrics    off: pip install 'pumphouse[telemetry]'"]
