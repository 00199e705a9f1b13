"""A process that records, to be killed: python -m tests.homes.recording STORAGE DATABASE SEED.

It does what the driver does after a crash: begins somewhere before the end, with batches that are
cut anew, and goes on to the last. It says `stored` after each.
"""

from __future__ import annotations

import sys
from random import Random

import pyarrow as pa

from pumphouse.homes.record import HUB, Recorder, RecordSettings
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from tests.homes.rows import activity, alert, as_tables

ACTIVITIES, ALERTS = 1500, 90


def everything() -> pa.Table:
    """All events of both hubs, as Spark hands them over."""
    found = as_tables(
        [activity(number % 50, number // 50) for number in range(ACTIVITIES)],
        [alert(number % 50, number // 50) for number in range(ALERTS)],
    )
    tables = [
        rows.append_column(HUB, pa.array([hub] * rows.num_rows)) for hub, rows in found.items()
    ]
    return pa.concat_tables(tables, promote_options="default")


def part(rows: pa.Table, hub: str, first: int, after: int) -> pa.Table:
    begin = 0 if hub == ACTIVITY_HUB else ACTIVITIES
    return rows.slice(begin + first, max(0, after - first))


def main(storage: str, database: str, seed: str) -> None:
    random, rows = Random(seed), everything()
    recorder = Recorder.open(RecordSettings(storage, database))
    # Never beyond what is stored: then nothing would be between.
    known = recorder.reached().get(ACTIVITY_HUB, {}).get("0", 0)
    done = max(0, known - random.randrange(0, 200))
    while done < ACTIVITIES:
        after = min(ACTIVITIES, done + random.randrange(1, 60))
        alerts = (done * ALERTS // ACTIVITIES, -(-after * ALERTS // ACTIVITIES))
        batch = [part(rows, ACTIVITY_HUB, done, after), part(rows, ALERTS_HUB, *alerts)]
        recorder.store(pa.concat_tables(batch))
        sys.stdout.write("stored\n")
        sys.stdout.flush()
        done = after
    recorder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
