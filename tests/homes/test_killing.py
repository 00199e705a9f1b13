"""kill -9 while rows are stored: afterwards each is there once, in files and in the database."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pytest

from pumphouse.homes import minutes
from pumphouse.homes.archive import snapshot
from pumphouse.homes.postgres import PostgresConnection
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from pumphouse.homes.sqlite import SqliteConnection
from tests.homes.postgres_server import PostgresServer
from tests.homes.recording import ACTIVITIES, ALERTS

ROOT = Path(__file__).parents[2]
KILLS = 4
LIMIT_S = 100


@pytest.fixture
def postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.database()


def record_until_killed(storage: Path, database: str, random: Random | None) -> int:
    """The exit status of a recording; with chances, killed somewhere within or between batches."""
    seed = "" if random is None else str(random.random())
    command = [sys.executable, "-m", "tests.homes.recording", str(storage), database, seed]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        if random is not None:
            for _ in range(random.randrange(1, 12)):
                assert process.stdout.readline()
            time.sleep(random.random() * 0.02)  # chance, not waiting: any moment will do
            process.kill()
        process.stdout.read()
        return process.wait(LIMIT_S)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_each_row_is_stored_once_whenever_it_is_killed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = f"sqlite://{tmp_path}/homes.db"
    if kind == "postgres":
        database = request.getfixturevalue("postgres")
    random = Random(kind)
    for _ in range(KILLS):
        assert record_until_killed(tmp_path / "records", database, random) == -9
    assert record_until_killed(tmp_path / "records", database, None) == 0

    link = PostgresConnection(database) if kind == "postgres" else SqliteConnection(database[9:])
    for hub, number in ((ACTIVITY_HUB, ACTIVITIES), (ALERTS_HUB, ALERTS)):
        stored = link.ask(f"SELECT sequence FROM {hub} ORDER BY sequence")
        assert [sequence for (sequence,) in stored] == list(range(number))
        rows = snapshot(tmp_path / "records").table(hub)
        assert rows is not None
        assert sorted(rows["sequence"].to_pylist()) == list(range(number))
        assert pc.count_distinct(rows["at"]).as_py() > 1
    for sums in minutes.TABLES:
        names = ", ".join([sums.time, sums.key, *minutes.MEASURES])
        kept = sorted(link.ask(f"SELECT {names} FROM {sums.table}"))
        assert kept == sorted(link.ask(minutes.recount(sums, ACTIVITY_HUB)))
    link.close()
