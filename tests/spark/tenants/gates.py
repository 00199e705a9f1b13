"""Gates: a judge stops a batch at the stage that it has chosen, and sees who stands there.

A folder is the gate. Whoever comes to a stage and finds a file of its name there turns that into
`held-PID`, and waits until it is gone, or until it is killed itself.

    planned     Spark has journalled the batch, no task runs (in the runner)
    reading     a task has handed over some of its rows, and not the last (in a worker)
    written     a task has sent all of its rows, and not said so yet (in a worker)
    committing  all tasks have said so, and Spark has not committed yet (in the sink's own process)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "PUMPHOUSE_TEST_GATE"  # named by the environment of the application
STAGES = ("planned", "reading", "written", "committing")
LOOK_S, HELD_S = 0.02, 600.0


def pass_through(stage: str) -> None:
    """Go on at once, unless we are the one whom somebody waits for at this stage."""
    folder = Path(os.environ[FOLDER])
    held = folder / f"held-{os.getpid()}"
    try:
        (folder / stage).rename(held)
    except FileNotFoundError:
        return
    deadline = time.monotonic() + HELD_S
    while held.exists() and time.monotonic() < deadline:
        time.sleep(LOOK_S)


class Gate:
    """The judge's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def shut(self, stage: str) -> None:
        """Hold whoever comes to that stage next."""
        (self.folder / stage).touch()

    @property
    def holder(self) -> int | None:
        """Who is held."""
        found = [int(one.name.removeprefix("held-")) for one in self.folder.glob("held-*")]
        return found[0] if found else None

    def open(self) -> None:
        """Let everybody through again."""
        for one in self.folder.iterdir():
            one.unlink(missing_ok=True)
