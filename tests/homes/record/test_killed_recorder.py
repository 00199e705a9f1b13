"""After kill -9 while rows are stored, each row is in the files and the database once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO
from uuid import uuid4

import pyarrow.compute as pc
import pytest

from pumphouse.homes.record import sums
from pumphouse.homes.record.archive import snapshot
from pumphouse.homes.record.postgres import PostgresConnection
from pumphouse.homes.record.sqlite import SqliteConnection
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from tests.azurite.server import Azurite
from tests.homes.record.recording_process import ACTIVITIES, ALERTS
from tests.homes.record.recount import recount
from tests.postgres.server import PostgresServer

ROOT = Path(__file__).parents[3]
# Steps of a merge, and a random time within or between batches.
KILLED_AT = (1, 2, 3, None)
LIMIT_S = 100


@pytest.fixture
def postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.database()


def record(storage: str, database: str) -> None:
    """Record to the end."""
    with recording(storage, database) as process:
        process.stdout.read()
        assert process.wait(LIMIT_S) == 0


def record_until_killed(storage: str, database: str, step: int | None, random: Random) -> None:
    """Kill it at a step of a merge, or soon after a random number of batches."""
    with recording(storage, database, random.random(), step or "") as process:
        word, left = ("stored", random.randrange(1, 12)) if step is None else ("merging", 1)
        while left:
            output = process.stdout.readline()
            assert output, f"it has ended without printing {word}"
            left -= output.decode().strip() == word
        if step is None:
            time.sleep(random.random() * 0.02)  # chance, not waiting: any moment will do
        process.kill()
        process.stdout.read()
        assert process.wait(LIMIT_S) == -9


class Recording(subprocess.Popen[bytes]):
    stdout: IO[bytes]


def recording(storage: str, database: str, seed: object = "", halt: object = "") -> Recording:
    words = (storage, database, str(seed), str(halt))
    command = [sys.executable, "-m", "tests.homes.record.recording_process", *words]
    return Recording(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite, a folder", "postgres, blobs"])
def test_each_row_is_stored_once_after_kills_at_any_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database, records = f"sqlite://{tmp_path}/homes.db", str(tmp_path / "records")
    if kind == "postgres, blobs":
        database = request.getfixturevalue("postgres")
        azurite: Azurite = request.getfixturevalue("azurite")
        records = f"{azurite.connection_string()};Container=killed-{uuid4()}"
    random = Random(kind)
    for step in KILLED_AT:
        record_until_killed(records, database, step, random)
    record(records, database)

    postgres = database.startswith("postgresql:")
    connection = PostgresConnection(database) if postgres else SqliteConnection(database[9:])
    for hub, number in ((ACTIVITY_HUB, ACTIVITIES), (ALERTS_HUB, ALERTS)):
        stored = connection.query(f"SELECT sequence FROM {hub} ORDER BY sequence")
        assert [sequence for (sequence,) in stored] == list(range(number))
        rows = snapshot(records).table(hub)
        assert rows is not None
        assert sorted(rows["sequence"].to_pylist()) == list(range(number))
        assert pc.count_distinct(rows["at"]).as_py() > 1
    for table in sums.TABLES:
        names = ", ".join([table.time, table.key, *sums.MEASURES])
        stored = sorted(connection.query(f"SELECT {names} FROM {table.table}"))
        assert stored == sorted(connection.query(recount(table, ACTIVITY_HUB)))
    connection.close()
