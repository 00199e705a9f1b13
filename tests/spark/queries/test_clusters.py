"""Spark in several processes, on a cluster, with Connect and pipelines; and killed processes.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark import drop_repeats
from tests.spark.support.processes import (
    BIN,
    ENVIRONMENT,
    PYSPARK,
    UNTIL_S,
    command_line,
    descendants,
    kill,
    line_with,
    running,
    until_job,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(2400),
]

ROOT = Path(__file__).parents[3]
JOBS = Path(__file__).parents[1] / "jobs"
COPY_JOB, LAG_JOB = JOBS / "copy_events.py", JOBS / "report_lag.py"
EVENTS = 2000


class Hubs:
    """Two hubs in a process of their own, with their events on disk."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def connection(self, hub: str) -> str:
        return f"{self.namespace};EntityPath={hub}"

    def send_events(self) -> set[str]:
        bodies = [f"{number:05d}" for number in range(EVENTS)]

        async def send() -> None:
            async with open_client(self.connection("sensors")) as client:
                await (await client.sender()).send([Event(body.encode()) for body in bodies])

        asyncio.run(send())
        return set(bodies)

    def copied(self) -> list[Event]:
        return asyncio.run(self.read("activity"))

    async def read(self, hub: str) -> list[Event]:
        read: list[Event] = []
        async with open_client(self.connection(hub)) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                while last >= 0:
                    events = await reader.receive(2000, 30)
                    read += events
                    if events and (events[-1].sequence or 0) >= last:
                        break
        return read


def bodies(events: list[Event]) -> list[str]:
    return [event.body.decode() for event in events]


def without_repeats(spark: SparkSession, hubs: Hubs) -> list[str]:
    """The copies, as another query reads them."""
    source = spark.read.format("eventhubs").option("connectionString", hubs.connection("activity"))
    rows = drop_repeats(source.load()).selectExpr("cast(body as string)").collect()
    return [row[0] for row in rows]


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[Hubs]:
    up = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "up", "--hubs", "sensors:4,activity:2", "--port", "0",
         "--data", tmp_path / "data", "-o", "json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        yield Hubs(json.loads(up.stdout.readline())["namespace_connection_string"])
    finally:
        up.terminate()
        up.wait(30)
        up.stdout.close()


def run(master: str, hubs: Hubs, tmp_path: Path) -> None:
    """Copy what the source holds."""
    done = subprocess.run(
        [sys.executable, COPY_JOB, master, hubs.connection("sensors"), hubs.connection("activity"),
         tmp_path / "checkpoint", "availableNow"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "connect"])
def test_every_event_is_copied_once(hubs: Hubs, tmp_path: Path, master: str) -> None:
    sent = hubs.send_events()
    run(master, hubs, tmp_path)
    copied = bodies(hubs.copied())
    assert set(copied) == sent
    assert len(copied) == len(sent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone master with two workers, each a process of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    spark_class = PYSPARK / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    address_options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    logs = {name: folder / f"{name}.log" for name in ("master", "first", "second")}
    with ExitStack() as stack:
        master = (spark_class, f"{deploy}.master.Master", *address_options)
        head = stack.enter_context(running(*master, log=logs["master"]))
        started = line_with("Starting Spark master at", logs["master"], head)
        address = started.split(" at ")[1].split()[0]
        until_job(lambda: "I have been elected leader" in logs["master"].read_text(), head)
        for name in ("first", "second"):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", folder / name)
            worker = (spark_class, f"{deploy}.worker.Worker", *address_options, *size, address)
            process = stack.enter_context(running(*worker, log=logs[name]))
            line_with("Successfully registered with master", logs[name], process)
        yield address


def submit(
    address: str, *job: object, archives: str = "", folder: Path, **environment: str
) -> None:
    """Run spark-submit in a folder, as docs/spark.md describes."""
    packed = ("--archives", archives) if archives else ()
    command = (PYSPARK / "bin" / "spark-submit", "--master", address, *packed, *job)
    done = subprocess.run(
        [str(part) for part in command], env=ENVIRONMENT | environment, cwd=folder,
        capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_event_is_copied_once_on_a_standalone_cluster(
    cluster: str, hubs: Hubs, tmp_path: Path
) -> None:
    sent = hubs.send_events()
    arguments = (hubs.connection("sensors"), hubs.connection("activity"), tmp_path / "checkpoint")
    submit(cluster, COPY_JOB, "submit", *arguments, "availableNow", folder=tmp_path)
    copied = bodies(hubs.copied())
    assert set(copied) == sent
    assert len(copied) == len(sent)


def pack_environment(folder: Path) -> None:
    """Make env and env.tar.gz; it imports the packages of the environment of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    paths = "\n".join([str(PYSPARK.parent), str(ROOT / "src")])
    python = PYSPARK.relative_to(BIN.parent).parent
    (folder / "env" / python / "shared.pth").write_text(paths)
    subprocess.run(["tar", "-czf", "env.tar.gz", "-C", "env", "."], cwd=folder, check=True)


def test_executors_with_a_packed_environment_report_to_the_driver(
    cluster: str, hubs: Hubs, tmp_path: Path
) -> None:
    hubs.send_events()
    pack_environment(tmp_path)
    job = (LAG_JOB, "submit", hubs.connection("sensors"), *lag_arguments(tmp_path))
    python = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": "./env/bin/python"}
    submit(cluster, *job, archives="env.tar.gz#env", folder=tmp_path, **python)
    report = json.loads((tmp_path / "report.json").read_text())
    # Unpacked in the folder of the executor.
    assert re.search(r"/(first|second)/app-.*/env$", report["prefix"])
    check_lag(report, hubs, tmp_path)


def lag_arguments(folder: Path) -> tuple[object, ...]:
    return folder / "checkpoint", f"sqlite://{folder}/leases.db", folder / "report.json"


def check_lag(report: dict[str, Any], hubs: Hubs, folder: Path) -> None:
    """The lag shrinks by 400 with each batch; tasks reported, and the store was written."""
    lags = [lag["events"] for lag in report["lags"]]
    assert lags == [EVENTS - 400 * batch for batch in range(1, 6)]
    assert report["lags"][-1]["seconds"] == 0.0
    # Beside the newest event, the last one read: reported over the socket, between processes.
    known = [
        [position.partition("/")[0] for position in latest["@positions"]]
        for latest in report["progress"]
    ]
    assert any(len(partitions) > len(set(partitions)) for partitions in known)
    assert mirrored(hubs, folder) == asyncio.run(newest(hubs.connection("sensors")))


def mirrored(hubs: Hubs, folder: Path) -> dict[str, int | None]:
    async def read() -> dict[str, int | None]:
        group = Group(
            parse_connection_string(hubs.connection("sensors")).authority, "sensors", "$Default"
        )
        async with open_store(f"sqlite://{folder}/leases.db") as store:
            return {row.partition: row.sequence for row in await store.list_checkpoints(group)}

    return asyncio.run(read())


async def newest(connection: str) -> dict[str, int | None]:
    async with open_client(connection) as client:
        names = (await client.properties()).partitions
        states = [await client.partition_properties(name) for name in names]
    return {state.partition: state.last_sequence for state in states if not state.empty}


def test_the_listener_with_spark_connect(hubs: Hubs, tmp_path: Path) -> None:
    hubs.send_events()
    done = subprocess.run(
        [str(part) for part in (sys.executable, LAG_JOB, "connect", hubs.connection("sensors"),
                                *lag_arguments(tmp_path))],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_lag(json.loads((tmp_path / "report.json").read_text()), hubs, tmp_path)


PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def readings():
    return (spark.readStream.format("eventhubs").option("connectionString", "{connection}")
            .option("startingPosition", "earliest").load())
"""


def test_a_declarative_pipeline_reads_a_hub(hubs: Hubs, tmp_path: Path) -> None:
    hubs.send_events()
    folder = tmp_path / "pipeline"
    (folder / "transformations").mkdir(parents=True)
    script = PIPELINE.format(connection=hubs.connection("sensors"))
    (folder / "transformations" / "readings.py").write_text(script)
    (folder / "spark-pipeline.yml").write_text(
        f"name: readings\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    done = subprocess.run(
        [PYSPARK / "bin" / "spark-pipelines", "run", "--spec", folder / "spark-pipeline.yml"],
        env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    import pyarrow.parquet as pq

    files = [path for path in tmp_path.rglob("*.parquet") if "readings" in str(path)]
    assert sum(pq.read_metadata(path).num_rows for path in files) == EVENTS


VICTIMS = {
    "runner": "python_streaming_source_runner",
    "worker": "pyspark.daemon",
    "driver": "",
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_loses_no_event_and_leaves_no_duplicates(
    spark: SparkSession, hubs: Hubs, tmp_path: Path, victim: str
) -> None:
    """A job copies a hub while one of its processes is killed; Spark reads the copies."""
    sent = hubs.send_events()
    command = (
        sys.executable, COPY_JOB, "local[2]", hubs.connection("sensors"),
        hubs.connection("activity"), tmp_path / "checkpoint",
    )  # fmt: skip
    with running(*command) as job:
        until_job(lambda: len(hubs.copied()) >= EVENTS // 10, job)
        if victim == "driver":
            for process in [*descendants(job.pid), job.pid]:
                kill(process)
        else:
            processes = descendants(job.pid)
            victims = [each for each in processes if VICTIMS[victim] in command_line(each)]
            assert victims
            for process in victims:
                kill(process)
            until_job(lambda: set(bodies(hubs.copied())) == sent, job)
    if victim == "driver":
        with running(*command) as again:
            until_job(lambda: set(bodies(hubs.copied())) == sent, again)
    assert sorted(without_repeats(spark, hubs)) == sorted(sent)
