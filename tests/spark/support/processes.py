"""Processes of the operating system: started, found and killed with their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.spark.support.waiting import until

BIN = Path(sys.executable).parent
PYSPARK = BIN.parent / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "pyspark"
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(PYSPARK),
}
UNTIL_S = 800


def children(process: int) -> list[int]:
    below: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            below += map(int, (thread / "children").read_text().split())
    return below


def descendants(process: int) -> list[int]:
    """All processes below this one; children after their own children."""
    return [each for child in children(process) for each in (*descendants(child), child)]


def command_line(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return ""


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def running(*command: object, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process, which is killed with all its children; its errors are written to `log`."""
    with open(log or os.devnull, "w") as errors:
        job = subprocess.Popen(
            [str(part) for part in command], env=ENVIRONMENT, start_new_session=True, text=True,
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        yield job
    finally:
        for process in [*descendants(job.pid), job.pid]:
            kill(process)
        job.wait(60)


def line_with(text: str, log: Path, job: subprocess.Popen[str]) -> str:
    """Wait for a line with this text in the log of a process."""
    until_job(lambda: text in log.read_text(), job)
    return next(line for line in log.read_text().splitlines() if text in line)


def until_job(done: Callable[[], bool], job: subprocess.Popen[str] | None = None) -> None:
    """Wait; fail if the job ends meanwhile."""

    def is_done() -> bool:
        if done():
            return True
        assert job is None or job.poll() is None, "the job has ended"
        return False

    until(is_done, UNTIL_S, every_s=0.2)
