"""Child processes: each side of a benchmark runs in its own process.

A child is a module of this package. It prints one line of JSON when it is ready or done. A child
that keeps running waits for its standard input to close, so it ends when the benchmark ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120.0  # the longest time for one child
STOP_S = 5.0
# The CPU clock of a process on Linux: clock_getcpuclockid(3) computes the same number.
SCHEDULED = 2


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process has used, all its threads and the kernel's work included."""
    return time.clock_gettime_ns((~pid << 3) | SCHEDULED) / 1e9


def memory_bytes(pid: int) -> int:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmRSS in its status")


class Child(NamedTuple):
    """A running process, and its line of JSON."""

    pid: int
    result: dict[str, Any]


@contextmanager
def start_child(
    module: str, *arguments: object, interpreter: Path = Path(sys.executable)
) -> Iterator[Child]:
    """A child that runs for the length of the block. `interpreter` may be that of another version
    of Pumphouse."""
    process = subprocess.Popen(
        command(module, *arguments, interpreter=interpreter),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended before it was ready (status {process.wait()})")
        yield Child(process.pid, json.loads(line))
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """End a child: close its input, and kill it if it does not end."""
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def run_child(module: str, *arguments: object, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Run a child to its end and return its line of JSON."""
    done = subprocess.run(
        command(module, *arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def command(module: str, *arguments: object, interpreter: Path = Path(sys.executable)) -> list[str]:
    return [str(interpreter), "-m", f"benchmarks.{module}", *map(str, arguments)]


def print_result(**result: object) -> None:
    """Print the line of JSON of this child."""
    print(json.dumps(result), flush=True)


def wait_until_stdin_closes() -> None:
    """Wait in this child until the parent closes its input or ends."""
    sys.stdin.read()
