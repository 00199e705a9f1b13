"""`scripts/beside` runs commands beside a main one: all run to their end, and no failure passes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PASSED = ("printf one\\ntwo\\n", "echo three")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The script in a project of its own; it changes to the root of the project."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in ("beside", "lib.sh"):
        shutil.copy(SCRIPTS / name, folder)
    return folder / "beside"


def run(beside: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(beside), *words], capture_output=True, text=True, timeout=60)


def test_the_output_of_a_command_is_printed_as_a_whole_and_all_can_pass(beside: Path) -> None:
    done = run(beside, *PASSED, "--", "echo", "main  words")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "main  words" in lines
    first, second = (lines.index(f"===== {command}: passed") for command in PASSED)
    assert lines[first + 1 : first + 3] == ["one", "two"]
    assert first < second
    assert lines[second + 1] == "three"


@pytest.mark.parametrize(
    ("words", "failed"),
    [
        (["false", "touch ran", "--", "touch", "main"], "false"),
        (["touch ran", "--", "sh", "-c", "touch main; exit 3"], "sh"),
        (["touch ran", "ls --wrong", "--", "sh", "-c", "touch main; exit 1"], "ls --wrong, sh"),
    ],
)
def test_a_failure_is_named_and_the_others_run_to_their_end(
    beside: Path, words: list[str], failed: str
) -> None:
    done = run(beside, *words)
    assert done.returncode == 1
    assert sorted(done.stderr.rpartition("failed: ")[2].strip().split(", ")) == failed.split(", ")
    root = beside.parents[1]
    assert (root / "ran").exists()
    assert (root / "main").exists()


def test_the_commands_can_be_interrupted(beside: Path) -> None:
    """A shell starts the processes of `&` with SIGINT ignored; a program under test keeps that."""
    program = beside.parents[1] / "interrupted"
    program.write_text("#!/bin/sh\nkill -INT $$\n")
    program.chmod(0o755)
    assert run(beside, "./interrupted", "--", "true").returncode == 1


def test_an_interrupt_ends_the_commands_too(beside: Path) -> None:
    """As Ctrl-C does: the main command gets the signal too."""
    main = "echo $PPID; read line"
    with subprocess.Popen(
        [str(beside), "sleep 1000", "--", "sh", "-c", main],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        script = int(process.stdout.readline())
        assert script == process.pid
        process.terminate()
        process.stdin.close()  # the main command ends
        assert process.stdout.read() == ""  # the sleeping command held its other end
        assert process.wait(60) == 130
