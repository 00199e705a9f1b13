"""Where Spark runs: several processes, a cluster, Connect, pipelines; and what dies there.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(2400),
]

BIN = Path(sys.executable).parent
PYSPARK = BIN.parent / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "pyspark"
ROOT = Path(__file__).parents[2]
JOB, LAG_JOB = (Path(__file__).parent / "jobs" / f"{one}.py" for one in ("copy_events", "tell_lag"))
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(PYSPARK),
}
UNTIL_S = 800
EVENTS = 2000


def until(done: Callable[[], bool], job: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        assert job is None or job.poll() is None, "the job has ended"
        time.sleep(0.2)


class Hubs:
    """Two hubs in a process of their own, with their events on disk."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def connection(self, hub: str) -> str:
        return f"{self.namespace};EntityPath={hub}"

    def fill(self) -> set[str]:
        bodies = [f"{number:05d}" for number in range(EVENTS)]

        async def work() -> None:
            async with open_client(self.connection("sensors")) as client:
                await (await client.sender()).send([Event(one.encode()) for one in bodies])

        asyncio.run(work())
        return set(bodies)

    def copied(self) -> list[Event]:
        return asyncio.run(self.read("activity"))

    async def read(self, hub: str) -> list[Event]:
        found: list[Event] = []
        async with open_client(self.connection(hub)) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                while last >= 0:
                    events = await reader.receive(2000, 30)
                    found += events
                    if events and (events[-1].sequence or 0) >= last:
                        break
        return found


def bodies(events: list[Event]) -> list[str]:
    return [event.body.decode() for event in events]


def without_repeats(spark: SparkSession, hubs: Hubs) -> list[str]:
    """The copies, as another query of Spark reads them."""
    source = spark.read.format("eventhubs").option("connectionString", hubs.connection("activity"))
    rows = drop_repeats(source.load()).selectExpr("cast(body as string)").collect()
    return [row[0] for row in rows]


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[Hubs]:
    up = subprocess.Popen(
        [BIN / "pumphouse", "up", "--hubs", "sensors:4,activity:2", "--port", "0",
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


@contextmanager
def running(*command: object, said: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process with all its children, which end with it; what it says goes into a file."""
    with open(said or os.devnull, "w") as errors:
        job = subprocess.Popen(
            [str(word) for word in command], env=ENVIRONMENT, start_new_session=True, text=True,
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        yield job
    finally:
        for one in [*descendants(job.pid), job.pid]:
            kill(one)
        job.wait(60)


def line_with(words: str, said: Path, job: subprocess.Popen[str]) -> str:
    """The line in which a process says something, once it does."""
    until(lambda: words in said.read_text(), job)
    return next(line for line in said.read_text().splitlines() if words in line)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def descendants(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        threads = list(Path(f"/proc/{process}/task").iterdir())
        text = " ".join((thread / "children").read_text() for thread in threads)
    except OSError:
        return []
    return [one for child in map(int, text.split()) for one in (*descendants(child), child)]


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def run(master: str, hubs: Hubs, tmp_path: Path) -> None:
    """To the end of what is there."""
    done = subprocess.run(
        [sys.executable, JOB, master, hubs.connection("sensors"), hubs.connection("activity"),
         tmp_path / "checkpoint", "availableNow"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "connect"])
def test_everything_is_copied_once(hubs: Hubs, tmp_path: Path, master: str) -> None:
    sent = hubs.fill()
    run(master, hubs, tmp_path)
    copied = bodies(hubs.copied())
    assert set(copied) == sent
    assert len(copied) == len(sent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master with two workers, each a process of its own; the master's address."""
    folder = tmp_path_factory.mktemp("cluster")
    spark_class = PYSPARK / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    logs = {name: folder / f"{name}.log" for name in ("master", "first", "second")}
    with ExitStack() as stack:
        master = (spark_class, f"{deploy}.master.Master", *here)
        head = stack.enter_context(running(*master, said=logs["master"]))
        told = line_with("Starting Spark master at", logs["master"], head)
        address = told.split(" at ")[1].split()[0]
        until(lambda: "I have been elected leader" in logs["master"].read_text(), head)
        for name in ("first", "second"):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", folder / name)
            worker = (spark_class, f"{deploy}.worker.Worker", *here, *room, address)
            hand = stack.enter_context(running(*worker, said=logs[name]))
            line_with("Successfully registered with master", logs[name], hand)
        yield address


def submit(
    address: str, *job: object, archives: str = "", folder: Path, **environment: str
) -> None:
    """As docs/spark.md says, from a folder."""
    packed = ("--archives", archives) if archives else ()
    command = (PYSPARK / "bin" / "spark-submit", "--master", address, *packed, *job)
    done = subprocess.run(
        [str(word) for word in command], env=ENVIRONMENT | environment, cwd=folder,
        capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_standalone_cluster(cluster: str, hubs: Hubs, tmp_path: Path) -> None:
    sent = hubs.fill()
    places = (hubs.connection("sensors"), hubs.connection("activity"), tmp_path / "checkpoint")
    submit(cluster, JOB, "submit", *places, "availableNow", folder=tmp_path)
    copied = bodies(hubs.copied())
    assert set(copied) == sent
    assert len(copied) == len(sent)


def pack_environment(folder: Path) -> None:
    """env and env.tar.gz; what pip would install is lent by the environment of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    lent = "\n".join([str(PYSPARK.parent), str(ROOT / "src")])
    python = PYSPARK.relative_to(BIN.parent).parent
    (folder / "env" / python / "lent.pth").write_text(lent)
    subprocess.run(["tar", "-czf", "env.tar.gz", "-C", "env", "."], cwd=folder, check=True)


def test_executors_with_a_packed_environment_tell_the_driver_what_they_read(
    cluster: str, hubs: Hubs, tmp_path: Path
) -> None:
    hubs.fill()
    pack_environment(tmp_path)
    job = (LAG_JOB, "submit", hubs.connection("sensors"), *lag_places(tmp_path))
    python = {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": "./env/bin/python"}
    submit(cluster, *job, archives="env.tar.gz#env", folder=tmp_path, **python)
    told = json.loads((tmp_path / "told.json").read_text())
    # Unpacked in the folder of the executor, not where it was made.
    assert re.search(r"/(first|second)/app-.*/env$", told["prefix"])
    check_lag(told, hubs, tmp_path)


def lag_places(folder: Path) -> tuple[object, ...]:
    return folder / "checkpoint", f"sqlite://{folder}/leases.db", folder / "told.json"


def check_lag(told: dict[str, Any], hubs: Hubs, folder: Path) -> None:
    """After each batch of 400 there is less to read; tasks said so, and a store was told."""
    lags = [lag["events"] for lag in told["lags"]]
    assert lags == [EVENTS - 400 * batch for batch in range(1, 6)]
    assert told["lags"][-1]["seconds"] == 0.0
    marks = [one for one in told["progress"][-1]["@marks"].values() if one["newest"] is not None]
    assert marks
    assert all(one["read"] is not None for one in marks)  # over the socket, between processes
    assert mirrored(hubs, folder) == asyncio.run(newest(hubs.connection("sensors")))


def mirrored(hubs: Hubs, folder: Path) -> dict[str, int | None]:
    async def look() -> dict[str, int | None]:
        group = Group(
            parse_connection_string(hubs.connection("sensors")).authority, "sensors", "$Default"
        )
        async with open_store(f"sqlite://{folder}/leases.db") as store:
            return {one.partition: one.sequence for one in await store.list_checkpoints(group)}

    return asyncio.run(look())


async def newest(connection: str) -> dict[str, int | None]:
    async with open_client(connection) as client:
        names = (await client.properties()).partitions
        found = [await client.partition_properties(one) for one in names]
    return {one.partition: one.last_sequence for one in found if not one.empty}


def test_the_listener_under_connect(hubs: Hubs, tmp_path: Path) -> None:
    hubs.fill()
    done = subprocess.run(
        [str(word) for word in (sys.executable, LAG_JOB, "connect", hubs.connection("sensors"),
                                *lag_places(tmp_path))],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=UNTIL_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_lag(json.loads((tmp_path / "told.json").read_text()), hubs, tmp_path)


PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def readings():
    return (spark.readStream.format("eventhubs").option("connectionString", "{connection}")
            .option("startingPosition", "earliest").load())
"""


def test_a_declarative_pipeline(hubs: Hubs, tmp_path: Path) -> None:
    hubs.fill()
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
def test_nothing_is_lost_or_doubled_when_one_is_killed(
    spark: SparkSession, hubs: Hubs, tmp_path: Path, victim: str
) -> None:
    """From hub to hub by a job that loses a part of it, and from there by Spark again."""
    sent = hubs.fill()
    command = (
        sys.executable, JOB, "local[2]", hubs.connection("sensors"), hubs.connection("activity"),
        tmp_path / "checkpoint",
    )  # fmt: skip
    with running(*command) as job:
        until(lambda: len(hubs.copied()) >= EVENTS // 10, job)
        if victim == "driver":
            for one in [*descendants(job.pid), job.pid]:
                kill(one)
        else:
            named = [one for one in descendants(job.pid) if VICTIMS[victim] in command_of(one)]
            assert named
            for one in named:
                kill(one)
            until(lambda: set(bodies(hubs.copied())) == sent, job)
    if victim == "driver":
        with running(*command) as again:
            until(lambda: set(bodies(hubs.copied())) == sent, again)
    assert sorted(without_repeats(spark, hubs)) == sorted(sent)
