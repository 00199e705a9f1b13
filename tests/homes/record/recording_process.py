"""A process that records and gets killed.

    python -m tests.homes.record.recording_process STORAGE DATABASE SEED HALT

It does the same as a driver after a crash: it starts before the stored position, with batches of
other sizes, and continues to the end. It prints `stored` after each batch. If HALT is a number, it
prints `merging` at that step of the first merge of files, and waits there to be killed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from pumphouse.homes.record.archive import Archive, snapshot
from pumphouse.homes.record.database import open_database
from pumphouse.homes.record.folder import Folder
from pumphouse.homes.record.manifest import DataFile
from pumphouse.homes.record.positions import Positions
from pumphouse.homes.record.stage import HUB, Recorder, RecordSettings
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from tests.homes.record.rows import activity, alert, as_tables

ACTIVITIES, ALERTS = 1500, 90


def everything() -> pa.Table:
    """All events of both hubs, as Spark passes them."""
    hubs = as_tables(
        [activity(number % 50, number // 50) for number in range(ACTIVITIES)],
        [alert(number % 50, number // 50) for number in range(ALERTS)],
    )
    tables = [
        rows.append_column(HUB, pa.array([hub] * rows.num_rows)) for hub, rows in hubs.items()
    ]
    return pa.concat_tables(tables, promote_options="default")


def part(rows: pa.Table, hub: str, first: int, after: int) -> pa.Table:
    begin = 0 if hub == ACTIVITY_HUB else ACTIVITIES
    return rows.slice(begin + first, max(0, after - first))


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Halting:
    """A folder that halts in a merge: before the merged file is written (1), before the manifest
    names it (2), or after that (3)."""

    def __init__(self, inner: Folder, halt: int) -> None:
        self.inner, self.left = inner, halt

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            say("merging")
            sys.stdin.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, name: str, data: bytes) -> None:
        self.step()
        self.inner.write(name, data)

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        self.step()
        new_tag = self.inner.replace(name, data, tag)
        self.step()
        return new_tag


def halt_in_a_merge(halt: int) -> None:
    merge = Archive._merge

    def halting(self: Archive, parts: Sequence[DataFile]) -> None:
        self.folder = Halting(self.folder, halt)
        merge(self, parts)

    Archive._merge = halting  # type: ignore[method-assign]


def stored_positions(url: str) -> Positions:
    database = open_database(url)
    try:
        return database.positions()
    finally:
        database.close()


def main(storage: str, database: str, seed: str, halt: str) -> None:
    random, rows = Random(seed), everything()
    if halt:
        halt_in_a_merge(int(halt))
    recorder = Recorder.open(RecordSettings(storage, database))
    # At most at the position of the slower store, so that no row is skipped.
    known = min(
        positions.get(ACTIVITY_HUB, {}).get("0", 0)
        for positions in (snapshot(storage).positions, stored_positions(database))
    )
    done = max(0, known - random.randrange(0, 200))
    while done < ACTIVITIES:
        after = min(ACTIVITIES, done + random.randrange(1, 60))
        alerts = (done * ALERTS // ACTIVITIES, -(-after * ALERTS // ACTIVITIES))
        batch = [part(rows, ACTIVITY_HUB, done, after), part(rows, ALERTS_HUB, *alerts)]
        recorder.store(pa.concat_tables(batch))
        say("stored")
        done = after
    recorder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
