"""A Spark cluster on this machine: a master and two workers, out of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks._figures import progress

DEPLOY = "org.apache.spark.deploy"
HERE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
WORKERS, CORES, MEMORY = 2, 1, "1g"
READY_S, STOP_S = 120.0, 30.0


@contextmanager
def standalone() -> Iterator[tuple[str, list[int]]]:
    """The address of the master, and the processes of the cluster."""
    progress(f"starting a standalone cluster of {WORKERS} workers")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        logs = Path(folder)
        head = stack.enter_context(daemon(logs / "master", f"{DEPLOY}.master.Master"))
        told = await_line(logs / "master", "Starting Spark master at", head)
        address = told.split(" at ")[1].split()[0]
        await_line(logs / "master", "I have been elected leader", head)
        room = ("--cores", CORES, "--memory", MEMORY, "--work-dir", logs / "work")
        hands = []
        for name in (f"worker{number}" for number in range(WORKERS)):
            words = (f"{DEPLOY}.worker.Worker", *room, address)
            hands.append(stack.enter_context(daemon(logs / name, *words)))
            await_line(logs / name, "Successfully registered with master", hands[-1])
        yield address, [one.pid for one in (head, *hands)]


@contextmanager
def daemon(log: Path, kind: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's own; it ends its executors when it ends."""
    command = [spark_home() / "bin" / "spark-class", kind, *HERE, *words]
    with open(log, "w") as said:
        child = subprocess.Popen(
            list(map(str, command)), env=environment(), stdout=subprocess.DEVNULL, stderr=said
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def environment() -> Mapping[str, str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    spark = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **python, **spark}


def spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RuntimeError("pyspark is not installed")
    return Path(found.origin).parent


def await_line(log: Path, words: str, child: subprocess.Popen[bytes]) -> str:
    """The line in which a process says something, once it does."""
    deadline = time.monotonic() + READY_S
    while True:
        if found := [line for line in log.read_text().splitlines() if words in line]:
            return found[0]
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{log.name} did not say {words!r}: {log.read_text()[-2000:]}")
        time.sleep(0.1)
