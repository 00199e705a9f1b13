"""The steps of docs/tutorial-new-sensor.md, through the real stages."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.dashboard.options import DashboardOptions, HomesFeed
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.dashboard.views.homes import homes_vocabulary
from pumphouse.homes.kinds.file import load_kinds
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record import stage as record
from pumphouse.homes.record.archive import snapshot
from pumphouse.homes.record.stage import Recorder, RecordSettings
from pumphouse.homes.schema import decode_alert
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch
from tests.dashboard.page_client import PageClient
from tests.dashboard.page_options import first
from tests.homes.kinds.kinds_files import TUTORIAL, TUTORIAL_TOML
from tests.homes.streams import TO_THE_END, finish, put, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEND = "\n".join(re.findall(r"^(?:at=|pumphouse send ).*$", TUTORIAL, re.MULTILINE))
FOLDER = Path(sys.executable).parent


def shell(script: str, folder: Path, connection: str = "") -> str:
    path = f"{FOLDER}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "EVENT_HUB_CONN_STR": connection}
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kinds.toml").write_text(TUTORIAL_TOML)
    return tmp_path


def test_the_kinds_file_is_listed(folder: Path) -> None:
    listed = shell("pumphouse homes kinds kinds.toml", folder)
    (row,) = (line for line in listed.splitlines() if line.startswith("carbon-monoxide"))
    assert row in TUTORIAL
    assert listed.splitlines()[0] in TUTORIAL


@pytest.mark.xdist_group("homes")
@pytest.mark.timeout(400)
def test_a_reading_becomes_an_alert_a_row_and_a_line_of_the_page(
    spark: SparkSession, namespace: HomesNamespace, folder: Path
) -> None:
    kinds = load_kinds(folder / "kinds.toml")
    simulator = HomeSimulator(20, 1, kinds=kinds)
    put(namespace, "sensors", simulator.minute(29_867_193).events())
    shell(SEND, folder, namespace.connection)
    assert sifted_readings(spark, namespace, folder, kinds)["carbon-monoxide"] == 21
    watching = watch.WatchSettings(partitions_per_task=2, alarms=False, kinds=kinds)
    finish(lambda: watch.start(spark, namespace, str(folder / "watch"), watching, TO_THE_END))

    raised = [decode_alert(event.body) for event in read_all(namespace, "alerts")]
    assert [(alert.home, alert.kind, alert.text) for alert in raised] == [
        ("h000042", "carbon-monoxide", "Carbon monoxide above 50 ppm")
    ]
    (letter,) = read_all(namespace, "deadletter")
    assert letter.properties["reason"] == "unknown-sensor"
    assert f"'radon' is not a kind of {kinds.source}: motion, " in str(letter.properties["detail"])
    record_all(spark, namespace, folder, kinds)
    check_records(folder, raised[0].id)
    asyncio.run(check_page(namespace, folder, kinds, raised[0].id))


def sifted_readings(
    spark: SparkSession, namespace: HomesNamespace, folder: Path, kinds: Kinds
) -> Counter[str]:
    """The readings that sift has read, by kind of sensor."""
    settings = sift.SiftSettings(partitions_per_task=2, alarms=True, kinds=kinds)
    query = finish(lambda: sift.start(spark, namespace, str(folder / "sift"), settings, TO_THE_END))
    read = Counter[str]()
    for progress in query.recentProgress:
        read.update(sift.counts(progress).kinds)
    return read


def record_all(spark: SparkSession, namespace: HomesNamespace, folder: Path, kinds: Kinds) -> None:
    where, checkpoint = f"sqlite://{folder}/homes.db", folder / "record"
    settings = RecordSettings(str(folder / "records"), where, kinds=kinds)
    with closing(Recorder.open(settings)) as recorder:
        finish(lambda: record.start(spark, namespace, checkpoint, settings, TO_THE_END, recorder))


def check_records(folder: Path, alert_id: str) -> None:
    """The database and the files have the reading and its alert."""
    with closing(sqlite3.connect(folder / "homes.db")) as database:
        query = "SELECT home, value FROM activity WHERE sensor = 'carbon-monoxide' AND value > 50"
        assert database.execute(query).fetchall() == [("h000042", 180.0)]
        assert database.execute("SELECT id FROM alerts").fetchall() == [(alert_id,)]
    files = snapshot(folder / "records").table("alerts")
    assert files is not None
    assert files["id"].to_pylist() == [alert_id]


async def check_page(namespace: HomesNamespace, folder: Path, kinds: Kinds, alert_id: str) -> None:
    """The page has the alert in its list, the reading in its chart, and both in the home."""
    database = str(folder / "homes.db")
    feed = HomesFeed(namespace.connection, 100, database=database, kinds=kinds)
    async with Dashboard(DashboardOptions(port=0, homes=feed)) as page:
        client = PageClient(page.port, page.access.launch_token)
        await first(client, "/stream/homes", "homes", lambda data: data["alerts_open"])
        homes = await first(client, "/stream/homes", "homes")
        home = await first(client, "/stream/home/42", "home")
    assert (homes["trouble"], homes["records_trouble"]) == ("", "")
    assert [alert["id"] for alert in homes["alerts"]] == [alert_id]
    column = 1 + homes_vocabulary(kinds)["kinds"].index("carbon-monoxide")
    assert sum(row[column] for row in homes["activities_per_minute"]) == 1
    assert [alert["id"] for alert in home["alerts"]] == [alert_id]
    (sensor,) = home["sensors"]
    assert (sensor["kind"], sensor["text"]) == ("carbon-monoxide", "180 ppm, alarm")
