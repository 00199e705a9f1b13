"""The records of a soak: each process writes one line per event to a file of its own.

A record is one unbuffered write, so it survives the kill of its process. Times are monotonic
seconds, which all processes of a machine share.

    host, sender -> RecordWriter -> FILE -> RecordReader -> verify
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

# open        serve was called with a partition (note: the most calls at once)
# end         serve has returned (note: the reason)
# in, out     a batch was handed out (note: a digest), and handled
# checkpoint  a checkpoint was granted (at `last`)
# lost        a checkpoint was refused: OwnershipLost
# late        it was written without our own fence (note: granted, refused or unknown)
# released    the row was given up in good order
# raised      a checkpoint raised something else in the handler (note: its type)
# error       an error was reported (note: its type)
# ack         the hub has acknowledged the events `first` to `last` of the sender


@dataclass(frozen=True, slots=True)
class Record:
    event: str
    at_s: float
    host: str
    partition: str
    epoch: int = 0
    term: int = 0  # the number of this call of serve, per host
    first: int = -1
    last: int = -1
    note: str = "-"

    def __str__(self) -> str:
        return " ".join(str(value) for value in astuple(self))


def parse_record(text: str) -> Record:
    event, at_s, host, partition, epoch, term, first, last, note = text.split(" ")
    numbers = (int(epoch), int(term), int(first), int(last))
    return Record(event, float(at_s), host, partition, *numbers, note)


def digest(bodies: Iterable[bytes]) -> str:
    """A digest of events, to compare them."""
    return f"{zlib.crc32(b','.join(bodies)):08x}"


class RecordWriter:
    """Writes the records of one process."""

    def __init__(self, path: Path, host: str) -> None:
        self.host = host
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(
        self,
        event: str,
        partition: str,
        epoch: int = 0,
        term: int = 0,
        first: int = -1,
        last: int = -1,
        note: str = "-",
    ) -> None:
        now_s = time.monotonic()
        record = Record(event, now_s, self.host, partition, epoch, term, first, last, note)
        os.write(self._file, f"{record}\n".encode())


class RecordReader:
    """All records of a folder, read as the files grow."""

    def __init__(self, folder: Path) -> None:
        self.records: list[Record] = []
        self._folder = folder
        self._read: dict[Path, int] = {}

    def read_new(self) -> list[Record]:
        """The records since the last call."""
        new: list[Record] = []
        for path in sorted(self._folder.glob("*.records")):
            whole, end, _ = self._rest(path).rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(end)
            new += [parse_record(text) for text in whole.decode().splitlines()]
        self.records += new
        return new

    def _rest(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            return file.read()
