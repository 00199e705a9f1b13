"""Processes to measure: each side of a benchmark runs in one of its own.

A child is a module of ours. It prints one line of JSON when it is ready or done, and a child that
waits does so on its standard input: when we end, however we end, that input closes and the child
ends too.
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
ANSWER_S = 120.0  # the longest that one exchange may take
STOP_S = 5.0
# The process clock of Linux: clock_getcpuclockid(3) makes the same number out of a process id.
SCHEDULED = 2


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process has used, all its threads and the kernel's work included."""
    return time.clock_gettime_ns((~pid << 3) | SCHEDULED) / 1e9


def memory_bytes(pid: int) -> int:
    """What a process holds in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} says nothing of its memory")


class Child(NamedTuple):
    """A running process, and what it said when it was ready."""

    pid: int
    said: dict[str, Any]


@contextmanager
def waiting(module: str, *arguments: object) -> Iterator[Child]:
    """A child that is there for the length of the block."""
    process = subprocess.Popen(
        command(module, *arguments),
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
    """Let a child go: first by closing its input, then by force."""
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def answer(module: str, *arguments: object, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """What a child says when it has done its work."""
    done = subprocess.run(
        command(module, *arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def command(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


def tell(**what: object) -> None:
    """For the child: its line."""
    print(json.dumps(what), flush=True)


def wait_for_the_end() -> None:
    """For the child: wait until the parent closes our input, or is gone."""
    sys.stdin.read()
