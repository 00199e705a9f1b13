"""Applications with an SDK of OpenTelemetry, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pumphouse.telemetry.definitions import METRICS, SECONDS
from tests.telemetry.application import EVENTS

SYSTEM = {"messaging.system": "eventhubs", "messaging.destination.name": "doors"}
PARTITION = SYSTEM | {"messaging.destination.partition.id": "0"}
GROUP = PARTITION | {"messaging.consumer.group.name": "$Default"}


def run(when: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-m", "tests.telemetry.application", when],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    printed: dict[str, Any] = json.loads(process.stdout)
    return printed


def points(exported: dict[str, Any], name: str, operation: str) -> list[dict[str, Any]]:
    return [
        point
        for point in exported[name]["points"]
        if point["attributes"].get("messaging.operation.name") == operation
    ]


def labelled(operation: str, kind: str, labels: dict[str, str]) -> dict[str, str]:
    return labels | {"messaging.operation.name": operation, "messaging.operation.type": kind}


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_meter_provider_gets_the_metrics_of_client_and_processor(when: str) -> None:
    exported = run(when)["exported"]
    # The hub of "late" has started without a provider.
    assert ("pumphouse.hub.received_events" in exported) == (when == "early")
    (sent,) = points(exported, "messaging.client.sent.messages", "send")
    assert sent["value"] == EVENTS  # of senders that are closed
    assert sent["attributes"] == labelled("send", "send", PARTITION)
    (consumed,) = points(exported, "messaging.client.consumed.messages", "receive")
    assert consumed["value"] == EVENTS
    assert consumed["attributes"] == labelled("receive", "receive", GROUP)
    (calls,) = points(exported, "messaging.client.operation.duration", "send")
    assert calls["count"] == EVENTS
    (handled,) = points(exported, "messaging.process.duration", "process")
    assert handled["attributes"] == labelled("process", "process", GROUP)
    assert exported["pumphouse.processor.owned_partitions"]["points"][0]["value"] == 1
    for name, metric in exported.items():
        assert metric["unit"] == METRICS[name].unit
    for name in ("messaging.client.operation.duration", "messaging.process.duration"):
        assert {tuple(point["explicit_bounds"]) for point in exported[name]["points"]} == {SECONDS}
        assert exported[name]["unit"] == "s"


def test_an_application_that_only_traces_records_no_metrics() -> None:
    printed = run("traces")
    assert printed == {"recorded": [], "exported": {}}
