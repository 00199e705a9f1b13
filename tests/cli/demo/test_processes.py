"""Child processes are started, watched, and stopped with all descendants."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pumphouse.cli.demo import processes
from pumphouse.cli.demo.processes import DemoProcess, ProcessSpec
from pumphouse.errors import PumphouseError

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, preexec_fn=os.setpgrp)
print(child.pid, flush=True)
time.sleep(600)
"""
ORPHAN = """
import os, subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
"""


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of these tests are small programs, not commands of ours."""
    monkeypatch.setattr(processes, "command", lambda arguments: [sys.executable, "-c", *arguments])


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[list[DemoProcess]]:
    all_started: list[DemoProcess] = []
    yield all_started
    for process in all_started:
        processes.kill_session(process.process.pid)
        await process.process.wait()


async def start(code: str, folder: Path, started: list[DemoProcess]) -> DemoProcess:
    process = await processes.start(ProcessSpec("solo", [code]), folder)
    started.append(process)
    return process


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except OSError:
        return False


async def test_the_output_of_a_process_is_private(
    tmp_path: Path, started: list[DemoProcess]
) -> None:
    """The first line of the hub has a connection string with the key of the root rule."""
    for name in ("solo.out", "solo.log"):
        (tmp_path / name).write_text("of an earlier run\n")
        (tmp_path / name).chmod(0o644)
    with (tmp_path / "solo.out").open() as opened_by_another_user:
        process = await start("print('a key')", tmp_path, started)
        assert await process.first_line(60) == "a key"
        assert opened_by_another_user.read() == "of an earlier run\n"
    for name in ("solo.out", "solo.log"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "solo.log").read_text() == "of an earlier run\n"


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children(
    tmp_path: Path, started: list[DemoProcess]
) -> None:
    process = await start(STUBBORN, tmp_path, started)
    child = int(await process.first_line(60))
    assert sorted(processes.pids_in(process.process.pid)) == sorted([process.process.pid, child])
    assert await processes.stop([process], within_s=0.2) == ["solo"]
    assert not is_alive(child)
    assert process.has_ended


async def test_a_process_that_ends_on_sigterm_is_not_killed(
    tmp_path: Path, started: list[DemoProcess]
) -> None:
    process = await start(
        "import time; print('here', flush=True); time.sleep(600)", tmp_path, started
    )
    assert await process.first_line(60) == "here"
    assert await processes.stop([process], within_s=60) == []
    assert process.process.returncode == -signal.SIGTERM


async def test_an_orphan_is_killed(tmp_path: Path, started: list[DemoProcess]) -> None:
    process = await start(ORPHAN, tmp_path, started)
    child = int(await process.first_line(60))
    await process.process.wait()
    assert is_alive(child)
    await processes.stop([process], within_s=0.2)
    assert not is_alive(child)


async def test_a_failed_process_is_reported_with_its_log(
    tmp_path: Path, started: list[DemoProcess]
) -> None:
    process = await start("import sys; sys.exit('the roof is on fire')", tmp_path, started)
    with pytest.raises(PumphouseError, match=r"solo ended before it was ready:\nthe roof is on"):
        await process.first_line(60)


async def test_a_silent_process_is_reported(tmp_path: Path, started: list[DemoProcess]) -> None:
    process = await start("import time; time.sleep(600)", tmp_path, started)
    with pytest.raises(PumphouseError, match=r"solo was not ready after 0\.1 s; its log is"):
        await process.first_line(0.1)


async def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Also if the parent is killed."""
    code = (
        "import os, subprocess, sys; os.environ['PUMPHOUSE_TETHER'] = '1';"
        "p = subprocess.Popen([sys.executable, '-m', 'pumphouse', 'up', '--port', '0'],"
        " start_new_session=True, stdout=subprocess.PIPE); p.stdout.readline();"
        "print(p.pid, flush=True); p.wait()"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    assert await processes.true_within(60, lambda: not is_alive(child))
