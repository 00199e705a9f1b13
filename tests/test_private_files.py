"""Files with keys, events or states: never readable by other users, not even for a moment.

Public by intent: `ca.pem`, which clients of other users trust; the files of Delta Lake, which its
library creates in a folder of mode 0700.
"""

from __future__ import annotations

import ast
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pumphouse.cli.demo import command, processes
from pumphouse.cli.demo.stages import DemoPlan
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.state_order import keep_state_order
from pumphouse.homes.pipeline import locked_folder, write_status
from pumphouse.homes.record.database import open_database
from pumphouse.homes.record.folder import LocalFolder
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.private_files import (
    append_private,
    create_private,
    create_private_folder,
    make_private,
)
from tests.homes.record.rows import activity, alert, as_tables, reached

SOURCE = Path(__file__).parents[1] / "src" / "pumphouse"
PUBLIC = {"ca.pem"}


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


# -- the writers --------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder that existed before, and that others may read, as most home folders."""
    umask = os.umask(0o022)
    folder = tmp_path / "shared"
    folder.mkdir()
    assert mode_of(folder) == 0o755
    yield folder
    os.umask(umask)


def exposed(folder: Path) -> list[str]:
    """The files and folders in a folder that other users can open."""
    found = []
    for path in sorted(folder.iterdir()):
        if mode_of(path) & 0o077 and path.name not in PUBLIC:
            found.append(str(path))
        elif path.is_dir() and mode_of(path) & 0o077:
            found += exposed(path)
    return found


def write_stage_files(folder: Path) -> None:
    with locked_folder(folder):
        keep_state_order(folder, DEFAULT)
        write_status(folder / "status.json", {"stages": []})


def write_archive(folder: Path) -> None:
    archive = LocalFolder(folder)
    archive.write("activity/date=2026-01-01/0.parquet", b"who was at home")
    archive.replace("manifest.json", b"{}", None)


def write_database(folder: Path) -> None:
    open_database(str(folder / "homes.db")).close()


def write_delta(folder: Path) -> None:
    from pumphouse.homes.record.delta import open_delta

    tables = as_tables([activity(1)], [alert(1)], first=1)
    open_delta(str(folder)).append(tables, reached(tables), None)


def write_folders(folder: Path) -> None:
    create_private_folder(folder / "a" / "b" / "c")
    assert [mode_of(path) for path in (folder / "a" / "b", folder / "a" / "b" / "c")] == [0o700] * 2


@pytest.mark.parametrize(
    "write", [write_stage_files, write_archive, write_database, write_delta, write_folders]
)
def test_files_of_the_homes_are_private(shared: Path, write: Callable[[Path], None]) -> None:
    write(shared)
    assert any(shared.iterdir())
    assert exposed(shared) == []


async def test_files_of_a_hub_are_private(shared: Path) -> None:
    async with EmbeddedHub({"eh": 1}, data=shared, tls_port=0, tls_dir=shared):
        assert exposed(shared) == []
    assert names_in(shared) > PUBLIC


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_files_of_the_demo_are_private(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*given: object) -> None:
        raise InterruptedError("after the file is written")

    monkeypatch.setattr(processes, "start", start)
    plan = DemoPlan(shared, homes=1)
    with pytest.raises(InterruptedError):
        async with AsyncExitStack() as stack:
            await command.open_hub(plan, stack, command.ProgressLog(time.monotonic))
    assert plan.config.exists()
    assert exposed(shared) == []


# -- the source -----------------------------------------------------------------------------------


def test_every_file_and_folder_is_created_with_a_mode() -> None:
    """By private_files.py, or with a mode or an opener of its own."""
    assert list(unguarded(SOURCE)) == []


def unguarded(source: Path) -> Iterator[str]:
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and creates_without_mode(node):
                yield f"{path.relative_to(source)}:{node.lineno}"


def creates_without_mode(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    given = {keyword.arg for keyword in call.keywords}
    if name in ("write_text", "write_bytes", "touch", "makedirs", "copyfile"):
        return True
    if name == "mkdir":
        return "mode" not in given
    is_open = name == "open" and isinstance(function, ast.Name)
    return is_open and "opener" not in given and opens_a_path_to_write(call)


def opens_a_path_to_write(call: ast.Call) -> bool:
    """Whether `open` may create a file. A call as the first argument gives a descriptor."""
    mode = (
        call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else "r"
    )
    return bool(set(str(mode)) & set("wax+")) and not isinstance(call.args[0], ast.Call)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("open(path, 'w')", True),
        ("open(path, 'ab', opener=private_opener)", False),
        ("open(create_private(path), 'wb')", False),
        ("open(path, 'rb')", False),
        ("path.write_text('')", True),
        ("path.mkdir(parents=True)", True),
        ("path.mkdir(mode=0o700)", False),
    ],
)
def test_a_call_without_a_mode_is_found(code: str, found: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert creates_without_mode(call) == found
