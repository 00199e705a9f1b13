"""Hub, processor and page as containers: not ready, ready, SIGTERM, not ready, end in the grace.

tests/homes/test_cluster.py does the same with the pipeline of the homes, which starts Spark.
tests/cli has what each of them waits for while it stops.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Program
from tests.cli.conftest import program as program
from tests.deploy.kubelet import DEFAULT_GRACE_S, Kubelet
from tests.deploy.manifests import DEPLOY, kubernetes
from tests.lag.prometheus_server import free_port

APP = f"{DEPLOY / 'kubernetes/files'}"
COMMANDS = {
    "hub": ("up", "orders:2", "--port", "0"),
    "processor": ("process", "app:handle", "--store", "leases.db"),
    "page": ("dash", "--store", "leases.db", "--port", "0"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_container_is_ready_until_sigterm_and_ends_in_time(
    name: str,
    program: Callable[..., Program],
    event_hub: EmbeddedHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", APP)
    event_hub.create_hub("orders", 2)
    port = str(free_port())
    started = program(
        *COMMANDS[name], "--metrics-port", port, connection=event_hub.connection_string("orders")
    )
    kubelet = Kubelet(started.process, f"http://127.0.0.1:{port}")
    kubelet.until_ready()
    pod = kubernetes()[name].pod if name in kubernetes() else {}
    kubelet.terminate(pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
