"""`pumphouse homes run`: killed, with several executors, on a standalone cluster.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pumphouse.cli import submit
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.homes.record import sums
from pumphouse.homes.record.archive import snapshot
from pumphouse.homes.schema import ACTIVITY_HUB, SENSORS_HUB, encode_activity
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.hub.embedded import EmbeddedHub
from tests.azurite.server import Azurite
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import pods
from tests.homes.applications import (
    PUMPHOUSE,
    end,
    hub_of,
    is_gone,
    pipeline,
    report,
    status,
    until_running,
)
from tests.homes.record.recount import recount
from tests.homes.record.rows import activity
from tests.lag.prometheus_server import free_port
from tests.postgres.server import PostgresServer
from tests.spark.support.processes import (
    PYSPARK,
    UNTIL_S,
    command_line,
    descendants,
    kill,
    line_with,
    running,
    until_job,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("homes"),
    pytest.mark.timeout(1800),
]


@pytest.fixture
def hub() -> Iterator[EmbeddedHub]:
    with hub_of(4) as hub:
        yield hub


def ask(database: str, query: str) -> list[tuple[Any, ...]]:
    """Query a database that a pipeline writes; no rows before its tables exist."""
    if database.startswith("postgresql:"):
        with psycopg.connect(database) as link:
            known = link.execute("SELECT to_regclass('newest')").fetchone()
            return link.execute(query).fetchall() if known and known[0] else []
    if not Path(database).is_file():
        return []
    file = sqlite3.connect(database)
    try:
        return file.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        file.close()


def stored(database: str) -> list[tuple[Any, ...]]:
    return sorted(ask(database, f"SELECT partition, sequence, home FROM {ACTIVITY_HUB}"))


class Sender:
    """Sends to the hub `activity` until it is stopped, and counts the events."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub, self.sent, self.enough = hub, 0, threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.work()))

    async def work(self) -> None:
        async with open_client(self.hub.connection_string(ACTIVITY_HUB)) as client:
            sender = await client.sender()
            while not self.enough.is_set():
                made = [activity(home, self.sent // 50) for home in range(50)]
                await sender.send(
                    Event(encode_activity(a), partition_key=a.reading.home) for a in made
                )
                self.sent += len(made)
                await asyncio.sleep(0.1)

    def __enter__(self) -> Sender:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.enough.set()
        self.thread.join()


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of the records."""

    database: str
    storage: str


@pytest.fixture
def stores(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "files":
        yield Stores(str(tmp_path / "homes.db"), str(tmp_path / "records"))
        return
    azurite: Azurite = request.getfixturevalue("azurite")
    with PostgresServer() as server:
        container = f"{azurite.connection_string()};Container=records-{uuid4()}"
        yield Stores(server.database(), container)


@pytest.mark.parametrize("stores", ["files", "servers"], indirect=True)
def test_a_killed_driver_neither_loses_nor_duplicates_rows(
    hub: EmbeddedHub, tmp_path: Path, stores: Stores
) -> None:
    """Kills the driver, its JVM, or both, at random times after the first stored rows."""
    random, data, database = Random(7), tmp_path / "data", stores.database
    into = ("--database", database, "--storage", stores.storage)
    words = ("--stages", "record", "--master", "local[2]", *into)
    with Sender(hub) as sender:
        for victim in ("both", "python", "jvm"):
            before = len(stored(database))
            with pipeline(hub, data, *words) as process:
                until_job(lambda: len(stored(database)) > before)  # noqa: B023
                time.sleep(random.random() * 4)  # chance, not waiting: any moment will do
                below = descendants(process.pid)
                jvms = [pid for pid in below if "java" in command_line(pid).split(" ")[0]]
                for pid in jvms if victim == "jvm" else [process.pid]:
                    kill(pid)
                if victim == "both":
                    for pid in below:
                        kill(pid)
                process.wait(UNTIL_S)
    with pipeline(hub, data, *words) as process:
        until_job(lambda: len(stored(database)) >= sender.sent)
        end(process, data)
    rows = stored(database)
    assert len(rows) == sender.sent
    for partition in {partition for partition, *_ in rows}:
        numbers = [sequence for where, sequence, _ in rows if where == partition]
        assert numbers == list(range(len(numbers)))
        stage_status = ask(
            database,
            f"SELECT following FROM positions WHERE hub = '{ACTIVITY_HUB}'"
            f" AND partition = '{partition}'",
        )
        assert stage_status == [(len(numbers),)]
    for table in sums.TABLES:
        names = ", ".join([table.time, table.key, *sums.MEASURES])
        kept_sums = sorted(ask(database, f"SELECT {names} FROM {table.table}"))
        assert kept_sums == sorted(ask(database, recount(table, ACTIVITY_HUB)))
    files = snapshot(stores.storage).table(ACTIVITY_HUB)
    assert files is not None
    columns = ("partition", "sequence", "home")
    assert sorted(zip(*(files[name].to_pylist() for name in columns), strict=True)) == rows


TOWN, MINUTES, FIRST = HomeSimulator(homes=60, seed=3), 20, 29_867_000


def fill(hub: EmbeddedHub) -> None:
    async def work() -> None:
        async with open_client(hub.connection_string(SENSORS_HUB)) as client:
            sender = await client.sender()
            for minute in range(FIRST, FIRST + MINUTES):
                await sender.send(TOWN.minute(minute).events())

    asyncio.run(work())


def kept() -> set[tuple[str, str, int]]:
    """The readings that sift must keep, by the reference functions of the schema."""
    from pumphouse.errors import BadRecord
    from pumphouse.homes.schema import activity_of, decode_reading

    identities = set()
    for minute in range(FIRST, FIRST + MINUTES):
        for body in TOWN.minute(minute).bodies():
            try:
                kept_reading = activity_of(decode_reading(body))
            except BadRecord:
                continue
            if kept_reading is not None:
                identities.add(kept_reading.reading.identity)
    return identities


def identities(data: Path) -> list[tuple[Any, ...]]:
    return sorted(ask(str(data / "homes.db"), "SELECT home, sensor, seq FROM activity"))


def works(hub: EmbeddedHub, data: Path, *words: str, before: tuple[object, ...]) -> None:
    """All sent readings are stored at the end, and the pipeline stops on request."""
    fill(hub)
    expected = sorted(kept())
    with pipeline(hub, data, "--accelerated", *words, before=before) as process:
        until_job(lambda: process.poll() is not None or len(identities(data)) >= len(expected))
        assert process.poll() is None, data.with_suffix(".log").read_text()[-3000:]
        states = {name: stage["state"] for name, stage in status(data).items()}
        assert states == dict.fromkeys(("sift", "watch", "record"), "running")
        end(process, data)
    assert identities(data) == expected
    assert {stage["state"] for stage in status(data).values()} == {"stopped"}


def test_all_stages_on_several_executors(hub: EmbeddedHub, tmp_path: Path) -> None:
    works(hub, tmp_path / "data", "--master", "local-cluster[2,1,1024]", before=(PUMPHOUSE,))


@contextmanager
def cluster(folder: Path, cores: int) -> Iterator[str]:
    """A cluster of a master and a worker; yields the address of the master."""
    spark_class, deploy = PYSPARK / "bin" / "spark-class", "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    logs = {name: folder / f"{name}.log" for name in ("master", "worker")}
    with ExitStack() as stack:
        head = stack.enter_context(
            running(spark_class, f"{deploy}.master.Master", *here, log=logs["master"])
        )
        log_line = line_with("Starting Spark master at", logs["master"], head)
        address = log_line.split(" at ")[1].split()[0]
        until_job(lambda: "I have been elected leader" in logs["master"].read_text(), head)
        room = ("--cores", cores, "--memory", "3g", "--work-dir", folder / "work")
        worker = (spark_class, f"{deploy}.worker.Worker", *here, *room, address)
        worker_process = stack.enter_context(running(*worker, log=logs["worker"]))
        line_with("Successfully registered with master", logs["worker"], worker_process)
        yield address


def test_all_stages_submitted_to_a_standalone_cluster(hub: EmbeddedHub, tmp_path: Path) -> None:
    with cluster(tmp_path, cores=2) as address:
        submitted = (PYSPARK / "bin" / "spark-submit", "--master", address, submit.__file__)
        works(hub, tmp_path / "data", before=submitted)
        goes_down_with_its_jvm(hub, tmp_path / "data", before=submitted)


def test_each_stage_in_a_separate_application(hub: EmbeddedHub, tmp_path: Path) -> None:
    fill(hub)
    expected, record = sorted(kept()), tmp_path / "record"
    with cluster(tmp_path, cores=3) as address, ExitStack() as stack:
        little = ("--conf", "spark.cores.max=1", "--conf", "spark.executor.memory=640m")
        shared = ("--master", address, "--checkpoints", str(tmp_path / "checkpoints"), *little)
        stages = {}
        for name in ("sift", "watch", "record"):
            words = ("--stages", name, "--accelerated", *shared)
            stages[name] = stack.enter_context(pipeline(hub, tmp_path / name, *words))
            until_running(stages[name], tmp_path / name, name)
        until_job(lambda: len(identities(record)) >= len(expected))
        for name, process in stages.items():
            end(process, tmp_path / name)
    assert identities(record) == expected


def goes_down_with_its_jvm(hub: EmbeddedHub, data: Path, before: tuple[object, ...]) -> None:
    """spark-submit is a JVM. On SIGTERM it ends at once, with the signal as its status,
    and takes the driver in Python with it: as good as killed, and nothing is lost by it."""
    recorded = identities(data)
    with pipeline(hub, data, "--accelerated", before=before) as process:
        until_running(process, data, "sift", "watch", "record")
        driver = report(data)["pid"]
        process.terminate()
        assert process.wait(UNTIL_S) == 128 + signal.SIGTERM
        until_job(lambda: is_gone(driver))
    assert identities(data) == recorded


def test_a_failed_stage_restarts_with_growing_delays(hub: EmbeddedHub, tmp_path: Path) -> None:
    """The database stops for a while."""
    data = tmp_path / "data"
    with PostgresServer() as server, Sender(hub) as sender:
        database = server.database()
        words = ("--stages", "record", "--master", "local[2]", "--database", database)
        with pipeline(hub, data, *words) as process:
            until_job(lambda: len(stored(database)) > 0)
            server.stop()
            until_job(lambda: status(data)["record"]["restarts"] >= 3)
            stage_status = status(data)["record"]
            server.restart()
            until_job(lambda: status(data)["record"]["state"] == "running")
            before = len(stored(database))
            until_job(lambda: len(stored(database)) > before)
            sender.enough.set()
            sender.thread.join()
            until_job(lambda: len(stored(database)) >= sender.sent)
            end(process, data)
        rows = stored(database)
    assert "connection" in stage_status["error"]
    output = data.with_suffix(".log").read_text()
    waits = re.findall(r"record failed: .*; restart (\d+) in (\d+) s", output)
    assert waits[:3] == [("1", "1"), ("2", "2"), ("3", "4")]
    assert len(rows) == len(set(rows)) == sender.sent


def test_signals_stop_the_pipeline_and_a_new_start_resumes(
    hub: EmbeddedHub, tmp_path: Path
) -> None:
    """Ctrl-C, and the sequence of Kubernetes."""
    data, port = tmp_path / "data", str(free_port())
    words = ("--stages", "record", "--master", "local[2]", "--metrics-port", port)
    with Sender(hub):
        for kubernetes in (False, True):
            before = len(stored(str(data / "homes.db")))
            with pipeline(hub, data, *words) as process:
                kubelet = Kubelet(process, f"http://127.0.0.1:{port}")
                kubelet.until_ready()
                until_job(lambda: len(stored(str(data / "homes.db"))) > before)  # noqa: B023
                if kubernetes:
                    kubelet.terminate(pods()["homes"]["spec"]["terminationGracePeriodSeconds"])
                else:
                    end(process, data, signal.SIGINT)
    assert "stopped" in data.with_suffix(".log").read_text()
    assert os.path.exists(data / "status.json")
