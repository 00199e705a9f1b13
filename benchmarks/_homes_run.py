"""A pipeline, its hub and its senders as processes, and what they do in a while.

running(...) -> Plant -> Plant.watch(seconds) -> Span: rates, lag, delays, CPU seconds by part
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._figures import say
from benchmarks._processes import ROOT, cpu_s, waiting
from pumphouse.homes.schema import SENSORS

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
EVENTS_PER_HOME = len(SENSORS) / 60  # a second
LIMIT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
PARTS = ("hub", "senders", "driver", "jvm", "python")


@dataclass(frozen=True, slots=True)
class Span:
    """What was seen in a while."""

    seconds: float
    events: int  # that the first stage took in
    cpu_s: Mapping[str, float]  # by part
    lag_events: int  # the most of any stage at any moment
    lag_end: int
    able: Mapping[str, float]  # rows a second of each stage while it works: the median of batches
    stored_ms: tuple[float, float]  # hub's intake -> stored row: median, 99th percentile
    alert_ms: tuple[float, float] | None  # reading -> alert in the hub

    @property
    def cpu_us_per_event(self) -> float:
        return sum(self.cpu_s.values()) / max(1, self.events) * 1e6


class Plant:
    """All of it, running."""

    def __init__(self, hub: int, job: int, data: Path) -> None:
        self.hub, self.job, self.data = hub, job, data
        self.senders: list[int] = []

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.data / "status.json").read_text())["stages"]
        except FileNotFoundError:
            return {}
        return found

    def cpu_s(self) -> dict[str, float]:
        below = cpu_below(self.job)
        return {
            "hub": cpu_s(self.hub),
            "senders": sum(map(cpu_s, self.senders)),
            "driver": cpu_s(self.job),
            "jvm": below["jvm"],
            "python": below["python"],
        }

    def until(self, done: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S) -> float:
        """How long it took."""
        started = time.monotonic()
        while not done(status := self.status()):
            if time.monotonic() - started > limit_s:
                raise TimeoutError(f"the pipeline did not get there: {status}")
            time.sleep(0.1)
        return time.monotonic() - started

    def watch(self, seconds: float) -> Span:
        """What it does in so many seconds from now."""
        before, started, looks = self.cpu_s(), time.monotonic(), list[dict[str, Any]]()
        from_ms = int(time.time() * 1000)
        while time.monotonic() - started < seconds:
            time.sleep(0.25)
            looks.append(self.status())
        after, passed = self.cpu_s(), time.monotonic() - started
        return Span(
            passed,
            taken_in(looks),
            {part: after[part] - before[part] for part in PARTS},
            max(lags(look) for look in looks),
            lags(looks[-1]),
            {stage: able(looks, stage) for stage in looks[-1]},
            stored_ms(looks),
            alert_ms(self.data / "homes.db", from_ms),
        )


def cpu_below(process: int) -> dict[str, float]:
    """CPU seconds of the JVM and of the Python workers that run below a process."""
    spent = {"jvm": 0.0, "python": 0.0}
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, thread.read_text().split()):
                stat = Path(f"/proc/{child}/stat").read_text()
                kind = "jvm" if "(java)" in stat else "python"
                # Its own time, and that of children that have ended.
                spent[kind] += sum(map(int, stat.rpartition(")")[2].split()[11:15])) / TICKS
                below = cpu_below(child)
                spent = {one: spent[one] + below[one] for one in spent}
    return spent


def batches(looks: list[dict[str, Any]], stage: str) -> list[dict[str, Any]]:
    """Each batch with rows that was seen, once."""
    seen = {look[stage]["batch"]: look[stage] for look in looks if stage in look}
    return [one for one in seen.values() if one["rows"]]


def taken_in(looks: list[dict[str, Any]]) -> int:
    first = next(iter(looks[-1]))
    return sum(one["rows"] for one in batches(looks, first)[1:])


def able(looks: list[dict[str, Any]], stage: str) -> float:
    rates = [float(one["processed_rate"]) for one in batches(looks, stage)]
    return median(rates or [0.0])


def lags(look: dict[str, Any]) -> int:
    return max((one["lag_events"] or 0 for one in look.values()), default=0)


def stored_ms(looks: list[dict[str, Any]]) -> tuple[float, float]:
    found = [one["counts"] for one in batches(looks, "record")] if "record" in looks[-1] else []
    if not found:
        return 0.0, 0.0
    return median(one["delay_p50_ms"] for one in found), max(one["delay_p99_ms"] for one in found)


def alert_ms(path: Path, from_ms: int) -> tuple[float, float] | None:
    """From the reading that raised it until it was in the hub; None if there was no alert.

    Of those kinds that one reading raises: the others wait by their nature.
    """
    if not path.exists():
        return None
    with sqlite3.connect(path) as file:
        rows = file.execute(
            "SELECT enqueued - at FROM alerts WHERE enqueued >= ? AND kind IN ('fire', 'break-in')",
            [from_ms],
        ).fetchall()
    file.close()
    delays = sorted(delay for (delay,) in rows)
    return (median(delays), delays[int(len(delays) * 0.99)]) if delays else None


# -- starting -------------------------------------------------------------------------------------


@contextmanager
def process(connection: str, *words: object, log: Path) -> Iterator[int]:
    """A command of ours for the length of the block."""
    with open(log, "a") as said:
        child = subprocess.Popen(
            [str(PUMPHOUSE), *map(str, words)],
            env={**os.environ, "PUMPHOUSE_CONNECTION": connection},
            cwd=ROOT, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield child.pid
        if child.poll() is not None:
            raise RuntimeError(f"{words} ended: {log.read_text()[-2000:]}")
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(LIMIT_S)


@contextmanager
def plant(stages: str, master: str = "local[2]", *words: object) -> Iterator[tuple[Plant, str]]:
    """A hub and a pipeline, with nothing to do yet; and the hub's connection string."""
    with (
        tempfile.TemporaryDirectory() as folder,
        waiting("_homes_hub") as hub,
    ):
        data, connection = Path(folder) / "data", str(hub.said["connection"])
        command = ("homes", "run", "--stages", stages, "--master", master, "--data", data, *words)
        with process(connection, *command, log=Path(folder) / "run.log") as job:
            say(f"starting {stages} on {master}")
            plant = Plant(hub.pid, job, data)
            wanted = set(stages.split(","))
            plant.until(
                lambda look: (
                    set(look) == wanted and all(one["state"] == "running" for one in look.values())
                )
            )
            yield plant, connection


@contextmanager
def sending(plant: Plant, connection: str, homes: int, *words: object) -> Iterator[None]:
    """A town that sends for the length of the block."""
    command = ("homes", "send", "--homes", homes, "--seed", 1, *words)
    with process(connection, *command, log=plant.data / "send.log") as sender:
        plant.senders.append(sender)
        yield
    plant.senders.remove(sender)
