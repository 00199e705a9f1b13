"""A standalone Spark cluster on this machine: a master and two workers of the installed package."""

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
    """A running cluster; yields the address of the master and the ids of its processes."""
    progress(f"starting a standalone cluster of {WORKERS} workers")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        logs = Path(folder)
        head = stack.enter_context(daemon(logs / "master", f"{DEPLOY}.master.Master"))
        line = await_line(logs / "master", "Starting Spark master at", head)
        address = line.split(" at ")[1].split()[0]
        await_line(logs / "master", "I have been elected leader", head)
        resources = ("--cores", CORES, "--memory", MEMORY, "--work-dir", logs / "work")
        workers = []
        for name in (f"worker{number}" for number in range(WORKERS)):
            arguments = (f"{DEPLOY}.worker.Worker", *resources, address)
            workers.append(stack.enter_context(daemon(logs / name, *arguments)))
            await_line(logs / name, "Successfully registered with master", workers[-1])
        yield address, [process.pid for process in (head, *workers)]


@contextmanager
def daemon(log: Path, kind: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark, which ends its executors when it ends."""
    command = [spark_home() / "bin" / "spark-class", kind, *HERE, *arguments]
    with open(log, "w") as errors:
        child = subprocess.Popen(
            list(map(str, command)), env=environment(), stdout=subprocess.DEVNULL, stderr=errors
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
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("pyspark is not installed")
    return Path(spec.origin).parent


def await_line(log: Path, text: str, child: subprocess.Popen[bytes]) -> str:
    """Wait for the first log line that contains a text."""
    deadline = time.monotonic() + READY_S
    while True:
        if lines := [line for line in log.read_text().splitlines() if text in line]:
            return lines[0]
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{log.name} did not log {text!r}: {log.read_text()[-2000:]}")
        time.sleep(0.1)
