"""The data directory: its lock and its record."""

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
from pumphouse.hub.storage.data_directory import DataDirectory
from pumphouse.hub.storage.records import HubRecord, NamespaceRecord

RECORD = NamespaceRecord(
    hubs=(HubRecord("ab" * 16, "Sensors", 16, 1_700_000_000_000, ("$Default", "archive")),),
    rules=(
        AccessRule("root", "a secret", frozenset(Claim)),
        AccessRule("device", "c2Vj", frozenset({Claim.SEND}), "Sensors", "second"),
    ),
)


def test_a_saved_record_is_loaded(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    assert directory.load() is None
    directory.save(RECORD)
    assert directory.load() == RECORD
    directory.close()


def test_the_record_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.save(RECORD)
    assert (tmp_path / "namespace.json").stat().st_mode & 0o077 == 0
    assert "a secret" not in repr(RECORD)
    directory.close()


def test_a_left_over_draft_does_not_make_the_record_readable(tmp_path: Path) -> None:
    """Also if the draft belongs to another user, who could create it in a shared directory."""
    draft = tmp_path / "namespace.json.new"
    draft.write_text("{}")
    draft.chmod(0o666)
    with draft.open() as opened_by_another_user:
        directory = DataDirectory(tmp_path)
        directory.save(RECORD)
        assert opened_by_another_user.read() == "{}"
    assert (tmp_path / "namespace.json").stat().st_mode & 0o077 == 0
    directory.close()


def test_a_record_that_others_can_read_is_made_private_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = DataDirectory(tmp_path)
    directory.save(RECORD)
    (tmp_path / "namespace.json").chmod(0o644)
    assert directory.load() == RECORD
    assert (tmp_path / "namespace.json").stat().st_mode & 0o777 == 0o600
    assert "key_file_exposed" in caplog.text
    assert "mode=644" in caplog.text
    caplog.clear()
    assert directory.load() == RECORD
    assert caplog.text == ""
    directory.close()


def test_a_new_data_directory_is_private(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_second_process_gets_the_id_of_the_first(tmp_path: Path) -> None:
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
    ("text", "problem"),
    [
        ("{", "JSONDecodeError"),
        (json.dumps({"format": 9, "hubs": [], "rules": []}), "format 9"),
        (json.dumps({"format": 1, "hubs": [{}], "rules": []}), "KeyError"),
    ],
)
def test_an_unreadable_record_is_not_overwritten(tmp_path: Path, text: str, problem: str) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "namespace.json").write_text(text)
    with pytest.raises(DataDirectoryError, match=problem):
        directory.load()
    assert (tmp_path / "namespace.json").read_text() == text
    directory.close()


def test_events_without_a_record_are_an_error(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "hubs" / ("ab" * 16)).mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match=r"no namespace\.json"):
        directory.load()
    directory.close()


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory(tmp_path / "data")


def test_a_wrong_checksum_of_the_record_is_an_error(tmp_path: Path) -> None:
    """A changed digit in an id would be another hub, and its events would be lost."""
    directory = DataDirectory(tmp_path)
    directory.save(RECORD)
    path = tmp_path / "namespace.json"
    intact = path.read_text()
    path.write_text(intact.replace("abab", "abac", 1))
    with pytest.raises(DataDirectoryError, match="checksum"):
        directory.load()
    # Without the checksum an edited record is accepted.
    path.write_text(json.dumps({**json.loads(intact), "hubs": []}).replace('"crc32"', '"was"'))
    record = directory.load()
    assert record is not None
    assert record.hubs == ()
    directory.close()


def test_unknown_directories_are_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may belong to a hub that is missing in a record restored from a backup."""
    with EmbeddedHub({"sensors": 1}, data=tmp_path):
        pass
    (tmp_path / "hubs" / ("cd" * 16)).mkdir(parents=True)
    (tmp_path / "hubs" / f"{'ef' * 16}.deleted" / "0").mkdir(parents=True)
    with EmbeddedHub(data=tmp_path) as hub:
        assert hub.hubs == {"sensors": 1}
    assert [path.name for path in (tmp_path / "hubs").iterdir()] == ["cd" * 16]
    assert "directory_unknown" in caplog.text
