"""What the processes of a soak write down: one line for each thing that happened, in a file each.

A line is written with one call and no buffer in between, so what a process wrote stays when it is
killed. Times are monotonic seconds, which all processes of a machine share.

    host, sender -> Book -> FILE -> Pages -> verify
                    ^^^^         ^^^^^^^^ this module
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

# open   a handler was given a partition          in     it was handed a batch (note: a digest)
# end    it has left it (note: the reason)        out    it is done with that batch
# mark   a checkpoint was granted (at `last`)     lost   a checkpoint was refused: OwnershipLost
# late   it was written past our own fence (note: granted, refused or unknown)
# released  the row was given up in good order    error  something was reported (note: what)
# ack    the hub has acknowledged events `first` to `last` of a sender's own numbers


@dataclass(frozen=True, slots=True)
class Line:
    word: str
    at_s: float
    host: str
    partition: str
    epoch: int = 0
    stay: int = 0  # which call of the handler's host this was
    first: int = -1
    last: int = -1
    note: str = "-"

    def __str__(self) -> str:
        return " ".join(str(value) for value in astuple(self))


def read_line(text: str) -> Line:
    word, at_s, host, partition, epoch, stay, first, last, note = text.split(" ")
    numbers = (int(epoch), int(stay), int(first), int(last))
    return Line(word, float(at_s), host, partition, *numbers, note)


def digest(bodies: Iterable[bytes]) -> str:
    """By this two looks at the same events are compared."""
    return f"{zlib.crc32(b','.join(bodies)):08x}"


class Book:
    """Lines of one process, each written as it happens."""

    def __init__(self, path: Path, host: str) -> None:
        self.host = host
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def put(
        self,
        word: str,
        partition: str,
        epoch: int = 0,
        stay: int = 0,
        first: int = -1,
        last: int = -1,
        note: str = "-",
    ) -> None:
        now_s = time.monotonic()
        line = Line(word, now_s, self.host, partition, epoch, stay, first, last, note)
        os.write(self._file, f"{line}\n".encode())


class Pages:
    """All lines of a folder of books, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[Line] = []
        self._folder = folder
        self._read: dict[Path, int] = {}

    def turn(self) -> list[Line]:
        """What is new since the last time."""
        new: list[Line] = []
        for path in sorted(self._folder.glob("*.book")):
            whole, end, _ = self._rest(path).rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(end)
            new += [read_line(text) for text in whole.decode().splitlines()]
        self.lines += new
        return new

    def _rest(self, path: Path) -> bytes:
        with path.open("rb") as book:
            book.seek(self._read.get(path, 0))
            return book.read()
