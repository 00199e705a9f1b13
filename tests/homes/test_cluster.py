"""The pipeline as users start it: killed, on several processes, on a standalone cluster.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pumphouse.cli import submit
from pumphouse.client.opening import open_client
from pumphouse.events import Event
from pumphouse.homes.archive import snapshot
from pumphouse.homes.schema import ACTIVITY_HUB, GROUPS, HUBS, SENSORS_HUB, encode_activity
from pumphouse.homes.sensors import Town
from pumphouse.hub.embedded import EmbeddedHub
from tests.homes.rows import activity
from tests.spark.test_places import (
    ENVIRONMENT,
    PYSPARK,
    UNTIL_S,
    command_of,
    descendants,
    kill,
    line_with,
    running,
    until,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(1800),
]

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


@pytest.fixture
def hub() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(hubs=dict.fromkeys(HUBS, 4)) as hub:
        for name in HUBS:
            for group in GROUPS:
                hub.create_group(name, group)
        yield hub


def environment(hub: EmbeddedHub) -> dict[str, str]:
    return {**ENVIRONMENT, "PUMPHOUSE_CONNECTION": hub.connection_string()}


@contextmanager
def pipeline(
    hub: EmbeddedHub, data: Path, *words: str, before: tuple[object, ...] = (PUMPHOUSE,)
) -> Iterator[subprocess.Popen[bytes]]:
    """Running; whatever is left of it ends with the block."""
    command = [*map(str, before), "homes", "run", "--data", str(data), *words]
    with open(data.with_suffix(".log"), "a") as said:
        process = subprocess.Popen(
            command, env=environment(hub), start_new_session=True, stdout=said, stderr=said
        )
    try:
        yield process
    finally:
        for one in [*descendants(process.pid), process.pid]:
            kill(one)
        process.wait(60)


def status(data: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((data / "status.json").read_text())["stages"]
    except FileNotFoundError:
        return {}
    return found


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    process.send_signal(number)
    assert process.wait(UNTIL_S) == 0


def stored(data: Path, table: str = ACTIVITY_HUB) -> list[tuple[Any, ...]]:
    if not (data / "homes.db").is_file():  # it has hardly begun
        return []
    file = sqlite3.connect(data / "homes.db")
    try:
        return sorted(file.execute(f"SELECT partition, sequence, home FROM {table}").fetchall())
    except sqlite3.OperationalError:
        return []
    finally:
        file.close()


class Sender:
    """Sends to the hub `activity` until it is told to stop, and knows what it sent."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub, self.sent, self.enough = hub, 0, threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.work()))

    async def work(self) -> None:
        async with open_client(self.hub.connection_string(ACTIVITY_HUB)) as client:
            sender = await client.sender()
            while not self.enough.is_set():
                made = [activity(home, self.sent // 50) for home in range(50)]
                await sender.send(
                    Event(encode_activity(one), partition_key=one.reading.home) for one in made
                )
                self.sent += len(made)
                await asyncio.sleep(0.1)

    def __enter__(self) -> Sender:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.enough.set()
        self.thread.join()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    hub: EmbeddedHub, tmp_path: Path, seed: int
) -> None:
    """The driver, its JVM, or both, at moments that chance chooses once rows have been stored."""
    random, data = Random(seed), tmp_path / "data"
    words = ("--stages", "record", "--master", "local[2]")
    with Sender(hub) as sender:
        for victim in ("both", "python", "jvm"):
            before = len(stored(data))
            with pipeline(hub, data, *words) as process:
                until(lambda: len(stored(data)) > before)  # noqa: B023
                time.sleep(random.random() * 4)  # chance, not waiting: any moment will do
                below = descendants(process.pid)
                jvms = [one for one in below if "java" in command_of(one).split(" ")[0]]
                for one in jvms if victim == "jvm" else [process.pid]:
                    kill(one)
                if victim == "both":
                    for one in below:
                        kill(one)
                process.wait(UNTIL_S)
    with pipeline(hub, data, *words) as process:
        until(lambda: len(stored(data)) >= sender.sent)
        end(process)
    rows = stored(data)
    assert len(rows) == sender.sent
    for partition in {partition for partition, *_ in rows}:
        numbers = [sequence for where, sequence, _ in rows if where == partition]
        assert numbers == list(range(len(numbers)))
    files = snapshot(data / "records").table(ACTIVITY_HUB)
    assert files is not None
    names = ("partition", "sequence", "home")
    assert sorted(zip(*(files[name].to_pylist() for name in names), strict=True)) == rows


TOWN, MINUTES, FIRST = Town(homes=60, seed=3), 20, 29_867_000


def fill(hub: EmbeddedHub) -> None:
    async def work() -> None:
        async with open_client(hub.connection_string(SENSORS_HUB)) as client:
            sender = await client.sender()
            for minute in range(FIRST, FIRST + MINUTES):
                await sender.send(TOWN.minute(minute).events())

    asyncio.run(work())


def kept() -> set[tuple[str, str, int]]:
    """What the sift must let through, judged one by one."""
    from pumphouse.errors import BadRecord
    from pumphouse.homes.schema import activity_of, decode_reading

    found = set()
    for minute in range(FIRST, FIRST + MINUTES):
        for body in TOWN.minute(minute).bodies():
            try:
                one = activity_of(decode_reading(body))
            except BadRecord:
                continue
            if one is not None:
                found.add(one.reading.identity)
    return found


def identities(data: Path) -> list[tuple[Any, ...]]:
    if not (data / "homes.db").is_file():  # it has hardly begun
        return []
    file = sqlite3.connect(data / "homes.db")
    try:
        return sorted(file.execute("SELECT home, sensor, seq FROM activity").fetchall())
    except sqlite3.OperationalError:
        return []
    finally:
        file.close()


def works(hub: EmbeddedHub, data: Path, *words: str, before: tuple[object, ...]) -> None:
    """Everything that was sent comes out at the end, and the pipeline ends when asked to."""
    fill(hub)
    wanted = sorted(kept())
    with pipeline(hub, data, "--accelerated", *words, before=before) as process:
        until(lambda: process.poll() is not None or len(identities(data)) >= len(wanted))
        assert process.poll() is None, data.with_suffix(".log").read_text()[-3000:]
        states = {name: one["state"] for name, one in status(data).items()}
        assert states == dict.fromkeys(("sift", "watch", "record"), "running")
        end(process)
    assert identities(data) == wanted
    assert {one["state"] for one in status(data).values()} == {"stopped"}


def test_all_stages_on_several_executors(hub: EmbeddedHub, tmp_path: Path) -> None:
    works(hub, tmp_path / "data", "--master", "local-cluster[2,1,1024]", before=(PUMPHOUSE,))


def test_all_stages_submitted_to_a_standalone_cluster(hub: EmbeddedHub, tmp_path: Path) -> None:
    spark_class, deploy = PYSPARK / "bin" / "spark-class", "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    logs = {name: tmp_path / f"{name}.log" for name in ("master", "worker")}
    with ExitStack() as stack:
        head = stack.enter_context(
            running(spark_class, f"{deploy}.master.Master", *here, said=logs["master"])
        )
        told = line_with("Starting Spark master at", logs["master"], head)
        address = told.split(" at ")[1].split()[0]
        until(lambda: "I have been elected leader" in logs["master"].read_text(), head)
        room = ("--cores", "2", "--memory", "2g", "--work-dir", tmp_path / "work")
        worker = (spark_class, f"{deploy}.worker.Worker", *here, *room, address)
        hand = stack.enter_context(running(*worker, said=logs["worker"]))
        line_with("Successfully registered with master", logs["worker"], hand)
        submitted = (PYSPARK / "bin" / "spark-submit", "--master", address, submit.__file__)
        works(hub, tmp_path / "data", before=submitted)


def test_ctrl_c_stops_it_and_it_goes_on(hub: EmbeddedHub, tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ("--stages", "record", "--master", "local[2]")
    with Sender(hub):
        for _ in range(2):
            before = len(stored(data))
            with pipeline(hub, data, *words) as process:
                until(lambda: len(stored(data)) > before)  # noqa: B023
                end(process, signal.SIGINT)
    assert "stopped" in data.with_suffix(".log").read_text()
    assert os.path.exists(data / "status.json")
