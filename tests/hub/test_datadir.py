"""A data directory: one process holds it, and what it keeps besides events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pumphouse.errors import DataDirectoryError
from pumphouse.hub.access.auth import AccessRule, Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.storage.data_directory import DataDirectory, HubRecord, NamespaceRecord

RECORD = NamespaceRecord(
    hubs=(HubRecord("ab" * 16, "Sensors", 16, 1_700_000_000_000, ("$Default", "archive")),),
    rules=(
        AccessRule("root", "a secret", frozenset(Claim)),
        AccessRule("device", "c2Vj", frozenset({Claim.SEND}), "Sensors", "second"),
    ),
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    assert directory.load() is None
    directory.save(RECORD)
    assert directory.load() == RECORD
    directory.close()


def test_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.save(RECORD)
    assert (tmp_path / "namespace.json").stat().st_mode & 0o077 == 0
    assert "a secret" not in repr(RECORD)
    directory.close()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from pumphouse.hub.storage.data_directory import DataDirectory\n"
        "from pumphouse.errors import DataDirectoryError\n"
        "try: DataDirectory(Path(sys.argv[1]))\n"
        "except DataDirectoryError as refused: print(refused)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert f"is in use by process {os.getpid()}" in done.stdout
    directory.close()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSONDecodeError"),
        (json.dumps({"format": 9, "hubs": [], "rules": []}), "format 9"),
        (json.dumps({"format": 1, "hubs": [{}], "rules": []}), "KeyError"),
    ],
)
def test_an_unreadable_record_is_not_overwritten(tmp_path: Path, text: str, why: str) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "namespace.json").write_text(text)
    with pytest.raises(DataDirectoryError, match=why):
        directory.load()
    assert (tmp_path / "namespace.json").read_text() == text
    directory.close()


def test_events_without_a_record_are_not_thrown_away(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "hubs" / ("ab" * 16)).mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match=r"no namespace\.json"):
        directory.load()
    directory.close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory(tmp_path / "data")


def test_one_wrong_bit_in_the_record_is_noticed(tmp_path: Path) -> None:
    """Another digit in an id would be another hub, and the events of the old one nobody's."""
    directory = DataDirectory(tmp_path)
    directory.save(RECORD)
    path = tmp_path / "namespace.json"
    sound = path.read_text()
    path.write_text(sound.replace("abab", "abac", 1))
    with pytest.raises(DataDirectoryError, match="checksum"):
        directory.load()
    # Whoever means it takes the sum out.
    path.write_text(json.dumps({**json.loads(sound), "hubs": []}).replace('"crc32"', '"was"'))
    found = directory.load()
    assert found is not None
    assert found.hubs == ()
    directory.close()


def test_what_belongs_to_no_hub_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be all that is left of a hub whose record was put back from an older copy."""
    with EmbeddedHub({"sensors": 1}, data=tmp_path):
        pass
    (tmp_path / "hubs" / ("cd" * 16)).mkdir(parents=True)
    (tmp_path / "hubs" / f"{'ef' * 16}.deleted" / "0").mkdir(parents=True)
    with EmbeddedHub(data=tmp_path) as hub:
        assert hub.hubs == {"sensors": 1}
    assert [path.name for path in (tmp_path / "hubs").iterdir()] == ["cd" * 16]
    assert "directory_unknown" in caplog.text
