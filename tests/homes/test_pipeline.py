"""What a pipeline refuses before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pumphouse.errors import ConnectionFailed, HubNotFound
from pumphouse.homes.pipeline import HUBS, STAGES, check_hubs
from pumphouse.homes.place import Place
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from pumphouse.hub.embedded import EmbeddedHub

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


def run(connection: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PUMPHOUSE, "homes", "run", *map(str, words)],
        env={**os.environ, "PUMPHOUSE_CONNECTION": connection},
        capture_output=True,
        text=True,
        timeout=100,
    )


async def test_hubs_that_are_there(event_hub: EmbeddedHub) -> None:
    for hub in (ACTIVITY_HUB, ALERTS_HUB):
        event_hub.create_hub(hub, 2)
    place = Place(event_hub.connection_string())
    await check_hubs(place, ["record"])
    with pytest.raises(HubNotFound, match="sensors"):
        await check_hubs(place, STAGES)


async def test_a_hub_that_is_not_there_at_all() -> None:
    gone = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(ConnectionFailed):
        await check_hubs(Place(gone), STAGES)


def test_the_command_says_what_is_missing(event_hub: EmbeddedHub, tmp_path: Path) -> None:
    done = run(event_hub.connection_string(), "--data", tmp_path / "data")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pumphouse: ")
    assert "sensors" in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_command_knows_its_stages(tmp_path: Path) -> None:
    done = run("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b",
               "--stages", "sift,sort", "--data", tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert "the stages are sift, watch, record (got sort)" in done.stderr


def test_every_stage_has_its_hubs() -> None:
    assert tuple(HUBS) == STAGES
