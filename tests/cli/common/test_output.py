"""Where the output goes: a full disk, closed streams, files that keep their content."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import PUMPHOUSE, Call, good, refused

COMMANDS = ["--help", "homes kinds", "hubs --help"]

STORE = ("--store", "memory:")


def run(command: str) -> subprocess.CompletedProcess[str]:
    """In a shell, which redirects the output."""
    text = f"{PUMPHOUSE} {command}"
    return subprocess.run(
        ["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_behind_stdout_is_one_sentence(command: str) -> None:
    done = run(f"{command} >/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "pumphouse: the output: No space left on device\n",
    )


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- <&-", ">&- 2>&- <&-"])
def test_closed_streams_are_empty(closed: str) -> None:
    done = run(f"homes kinds {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed)


def test_a_closed_stdin_has_no_events() -> None:
    hub = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    done = run(f"send x --connection '{hub}' <&-")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("pumphouse: ")


def test_an_export_that_cannot_be_written_keeps_the_old_one(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    file = folder / "checkpoints.jsonl"
    file.write_text("the old export\n")
    (folder / ".checkpoints.jsonl").mkdir()  # where the new one would be written
    message = refused(call("checkpoints", "export", str(file), "--hub", "orders", *STORE))
    assert message.startswith(f"{file} cannot be written: ")
    assert file.read_text() == "the old export\n"


def test_an_export_can_be_written_to_a_device(call: Call) -> None:
    done = call("checkpoints", "export", os.devnull, "--hub", "orders", *STORE)
    assert done.exit_code == 0
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_stdout_that_is_not_utf8_gets_escapes(
    call: Call, event_hub: EmbeddedHub, form: str
) -> None:
    good(call("send", "orders", "\u00e9clair \U0001f600", "-p", "0"))
    done = subprocess.run(
        [PUMPHOUSE, "tail", "orders", "--from", "earliest", "-o", form],
        env={
            **os.environ,
            "PYTHONIOENCODING": "ascii",
            "EVENT_HUB_CONN_STR": event_hub.connection_string(),
        },
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u00e9clair \ud83d\ude00" in done.stdout
    if form == "json":
        assert json.loads(done.stdout)["body"] == "\u00e9clair \U0001f600"
