"""Files that hold keys: never readable by other users, not even for a moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.private_files import append_private, create_private, make_private


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    umask = os.umask(0)
    yield
    os.umask(umask)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_private_from_the_start(tmp_path: Path) -> None:
    for number, opener in enumerate((create_private, append_private)):
        path = tmp_path / str(number)
        descriptor = opener(path)
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
        os.close(descriptor)
        assert mode_of(path) == 0o600


def test_an_existing_file_is_replaced_and_not_reused(tmp_path: Path) -> None:
    path, other = tmp_path / "key", tmp_path / "other"
    other.write_text("of another user")
    path.symlink_to(other)
    with open(create_private(path), "wb") as file:
        file.write(b"key")
    assert (path.read_bytes(), other.read_text()) == (b"key", "of another user")
    assert not path.is_symlink()


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        append_private(tmp_path / "log")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("mode", "found", "left"),
    [
        (0o600, None, 0o600),
        (0o644, 0o644, 0o600),
        (0o400, None, 0o400),
        (0o440, 0o440, 0o400),
    ],
)
def test_permissions_of_others_are_removed(
    tmp_path: Path, mode: int, found: int | None, left: int
) -> None:
    path = tmp_path / "key"
    path.touch()
    path.chmod(mode)
    assert make_private(path) == found
    assert mode_of(path) == left
