"""The steps of docs/tutorial-new-sensor.md, through the real stages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.homes.kinds.file import load_kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import decode_alert
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch
from tests.homes.streams import TO_THE_END, finish, put, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial-new-sensor.md").read_text()
(TOML,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SEND = "\n".join(re.findall(r"^(?:at=|pumphouse send ).*$", PAGE, re.MULTILINE))
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
    (tmp_path / "kinds.toml").write_text(TOML)
    return tmp_path


def test_the_kinds_file_is_listed(folder: Path) -> None:
    listed = shell("pumphouse homes kinds kinds.toml", folder)
    (row,) = (line for line in listed.splitlines() if line.startswith("carbon-monoxide"))
    assert row in PAGE
    assert listed.splitlines()[0] in PAGE


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(400)
def test_a_reading_becomes_an_alert(
    spark: SparkSession, namespace: HomesNamespace, folder: Path
) -> None:
    kinds = load_kinds(folder / "kinds.toml")
    simulator = HomeSimulator(20, 1, kinds=kinds)
    put(namespace, "sensors", simulator.minute(29_867_193).events())
    shell(SEND, folder, namespace.connection)
    sifting = sift.SiftSettings(partitions_per_task=2, alarms=True, kinds=kinds)
    query = finish(lambda: sift.start(spark, namespace, str(folder / "sift"), sifting, TO_THE_END))
    counts = [sift.counts(progress) for progress in query.recentProgress]
    assert sum(each.kinds.get("carbon-monoxide", 0) for each in counts) == 21
    watching = watch.WatchSettings(partitions_per_task=2, alarms=False, kinds=kinds)
    finish(lambda: watch.start(spark, namespace, str(folder / "watch"), watching, TO_THE_END))

    raised = [decode_alert(event.body) for event in read_all(namespace, "alerts")]
    assert [(alert.home, alert.kind, alert.text) for alert in raised] == [
        ("h000042", "carbon-monoxide", "Carbon monoxide above 50 ppm")
    ]
    (letter,) = read_all(namespace, "deadletter")
    assert letter.properties["reason"] == "unknown-sensor"
    assert f"'radon' is not a kind of {kinds.source}: motion, " in str(letter.properties["detail"])
