"""Runs `pumphouse homes run` in processes, to stop or kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pumphouse.homes.schema import GROUPS, HUBS
from pumphouse.hub.embedded import EmbeddedHub
from tests.spark.support.processes import ENVIRONMENT, UNTIL_S, descendants, kill, until_job

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


@contextmanager
def hub_of(partitions: int) -> Iterator[EmbeddedHub]:
    """The hubs of the homes with their consumer groups."""
    with EmbeddedHub(hubs=dict.fromkeys(HUBS, partitions)) as hub:
        for name in HUBS:
            for group in GROUPS:
                hub.create_group(name, group)
        yield hub


@contextmanager
def pipeline(
    hub: EmbeddedHub, data: Path, *words: str, before: tuple[object, ...] = (PUMPHOUSE,)
) -> Iterator[subprocess.Popen[bytes]]:
    """A running pipeline; all its processes end with the block."""
    command = [*map(str, before), "homes", "run", "--data", str(data), *words]
    environment = {**ENVIRONMENT, "PUMPHOUSE_CONNECTION": hub.connection_string()}
    with open(data.with_suffix(".log"), "a") as log:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        destroy(process)


def destroy(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its children, as if the machine had died."""
    for pid in [*descendants(process.pid), process.pid]:
        kill(pid)
    process.wait(60)


def report(data: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads((data / "status.json").read_text())
    except FileNotFoundError:
        return {"stages": {}}
    return report


def status(data: Path) -> dict[str, Any]:
    """The status of each stage."""
    stages: dict[str, Any] = report(data)["stages"]
    return stages


def end(process: subprocess.Popen[bytes], data: Path, number: int = signal.SIGTERM) -> None:
    """Ask the driver to end, which spark-submit has started in a separate process."""
    os.kill(report(data)["pid"], number)
    assert process.wait(UNTIL_S) == 0


def is_gone(process: int) -> bool:
    """Whether a process has ended or is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until_running(process: subprocess.Popen[bytes], data: Path, *stages: str) -> None:
    def run() -> bool:
        assert process.poll() is None, data.with_suffix(".log").read_text()[-3000:]
        status_file = report(data)
        if status_file.get("pid") not in (process.pid, *descendants(process.pid)):
            return False  # of an earlier process that was killed
        return all(status_file["stages"].get(name, {}).get("state") == "running" for name in stages)

    until_job(run)
