"""Breakpoints in a Spark application: a test pauses a batch at a stage, and sees which process.

A folder holds the breakpoints. A process that reaches a stage and finds a file of its name renames
it to `paused-PID`, and waits until that is removed, or until the process is killed.

    planned     Spark has journalled the batch, no task runs (in the runner)
    reading     a task has returned some of its rows, but not the last (in a worker)
    written     a task has sent all of its rows, but has not ended (in a worker)
    committing  all tasks have ended, and Spark has not committed (in the process of the sink)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "PUMPHOUSE_TEST_BREAKPOINTS"  # an environment variable of the application
STAGES = ("planned", "reading", "written", "committing")
POLL_S, PAUSED_MAX_S = 0.02, 600.0


def reach(stage: str) -> None:
    """Continue at once, unless a test has set a breakpoint at this stage."""
    folder = Path(os.environ[FOLDER])
    paused = folder / f"paused-{os.getpid()}"
    try:
        (folder / stage).rename(paused)
    except FileNotFoundError:
        return
    deadline_s = time.monotonic() + PAUSED_MAX_S
    while paused.exists() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


class Breakpoints:
    """The side of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def set(self, stage: str) -> None:
        """Pause the next process that reaches this stage."""
        (self.folder / stage).touch()

    @property
    def paused(self) -> int | None:
        """The process that is paused."""
        paused = [int(path.name.removeprefix("paused-")) for path in self.folder.glob("paused-*")]
        return paused[0] if paused else None

    def clear(self) -> None:
        """Let all processes continue."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)
