"""The processes of a demonstration: each started, watched, and ended together with all it started.

Every player gets a session of its own, so that Ctrl-C in the terminal reaches only the one that
started them, who then ends them in order. Spark starts a Java machine, which starts Python workers,
which change their process groups; their session they keep, and by it the last of them is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pumphouse.errors import PumphouseError

PROC = Path("/proc")
LOOK_S = 0.05
KILL_S = 5.0  # the system needs a moment to end what was killed
TAIL_LINES = 12
TETHER = "PUMPHOUSE_TETHER"


@dataclass(frozen=True, slots=True)
class Part:
    """What a player is told to run."""

    name: str
    words: Sequence[str]  # of the command line, without "pumphouse"
    env: Mapping[str, str] = field(default_factory=dict)


class Player:
    """A running `pumphouse` process with its log."""

    def __init__(self, part: Part, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.part = part
        self.process = process
        self.said, self.log = logs(part, folder)

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    def last_words(self) -> str:
        """The end of its log, for whoever asks why it ended."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    async def first_line(self, within_s: float) -> str:
        """The line by which it says that it is ready."""
        if not await true_within(within_s, lambda: self._line() or self.ended):
            raise PumphouseError(
                f"{self.name} was not ready after {within_s:g} s; its log is {self.log}"
            )
        if not (line := self._line()):
            raise PumphouseError(f"{self.name} ended before it was ready:\n{self.last_words()}")
        return line

    def _line(self) -> str:
        line, end, _ = self.said.read_text(errors="replace").partition("\n")
        return line if end else ""


def logs(part: Part, folder: Path) -> tuple[Path, Path]:
    """Where a player's results and its other words go."""
    # Files, not pipes: what a player leaves behind would keep a pipe open, and us waiting.
    return folder / f"{part.name}.out", folder / f"{part.name}.log"


async def start(part: Part, folder: Path) -> Player:
    said, log = logs(part, folder)
    with said.open("wb") as results, log.open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            *command(part.words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=results,
            stderr=words,
            env={**os.environ, TETHER: "1", **part.env},
            start_new_session=True,
        )
    return Player(part, process, folder)


async def true_within(within_s: float, condition: Callable[[], object]) -> bool:
    """Look again and again. What happens in another process cannot wake us."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while not (met := bool(condition())) and loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    return met


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pumphouse", *words]


async def stop(players: Iterable[Player], within_s: float) -> list[str]:
    """Ask all to end at once; end what is left of their sessions when time is up.

    Answers with the names of those that had to be ended.
    """
    asked = [player for player in players if not player.ended or living(player.process.pid)]
    for player in asked:
        if not player.ended:
            player.process.terminate()
    await true_within(within_s, lambda: not any_living(asked))
    late = [player for player in asked if living(player.process.pid)]
    for player in late:
        end_session(player.process.pid)
    await true_within(KILL_S, lambda: not any_living(asked) and all(p.ended for p in asked))
    return [player.name for player in late]


def any_living(players: Iterable[Player]) -> bool:
    return any(living(player.process.pid) for player in players)


def end_session(session: int) -> None:
    """SIGKILL to every process of a session."""
    for pid in living(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def living(session: int) -> list[int]:
    """The processes of a session that run; those that ended and wait to be read do not."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and _session_of(entry) == session:
            found.append(int(entry.name))
    return found


def _session_of(entry: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        # "pid (name) state ppid pgrp session ...": the name may hold spaces and brackets.
        state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(session)
    return None


def tether() -> None:
    """In a player: end when the one that started us does, even if it is killed."""
    if sys.platform != "linux" or os.environ.pop(TETHER, None) is None:
        return
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)
