"""`pumphouse up --data DIR` and the commands that change hubs, on a disk without space.

The limit of a process for the size of files (RLIMIT_FSIZE) makes its writes fail as a full disk
does, and can be lifted while it runs.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError

import pytest

from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.sas import sign
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Program

Start = Callable[..., Program]

# Runs a program with a limit for the size of files.
LIMITED = (
    "import os, resource, sys; size = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


@pytest.fixture(autouse=True)
def no_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit would cut short a compiled module that Python writes: no program could load it."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def failed_start(start: Start, size: int, *args: str) -> str:
    """The message of `up` with a limit of `size` bytes per file: one line, and exit code 1."""
    up = start("up", "--port", "0", *args, prefix=[sys.executable, "-c", LIMITED, str(size)])
    code, message = up.wait()
    assert (code, up.line()) == (1, ""), message
    assert len(message.splitlines()) == 1, message
    assert message.startswith("pumphouse: ")
    return message


def files(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.iterdir() if path.name != "lock"}


@pytest.mark.parametrize("size", [0, 1, 5, 10, 300])
def test_a_start_without_space_fails_with_one_sentence(
    program: Start, data: Path, size: int
) -> None:
    message = failed_start(program, size, "--data", str(data), "sensors")
    assert f"data directory {data}: namespace.json cannot be written (File too large)" in message
    assert files(data) == {}
    with EmbeddedHub(data=data) as hub:
        assert hub.hubs == {}


@pytest.mark.parametrize("size", [0, 300])
def test_a_failed_start_leaves_the_data_as_it_was(program: Start, data: Path, size: int) -> None:
    with EmbeddedHub({"sensors": 2}, data=data) as hub:
        hub.create_group("sensors", "archive")
    before = files(data)
    for args in ([], ["doors:3"]):
        failed_start(program, size, "--data", str(data), *args)
        assert files(data) == before
    with EmbeddedHub(data=data) as hub:
        assert hub.hubs == {"sensors": 2}
        assert hub.groups("sensors") == ["$Default", "archive"]


def test_a_draft_that_leads_elsewhere_is_not_followed(program: Start, data: Path) -> None:
    """A link under the name of the draft could make the hub write its keys to another file."""
    data.mkdir()
    (data / "namespace.json.new").symlink_to("/dev/full")
    up = program("up", "--port", "0", "--data", str(data), "sensors")
    assert up.line().startswith("hub ")
    up.end(signal.SIGTERM)
    assert not (data / "namespace.json.new").is_symlink()


def test_a_start_without_space_for_the_certificate_fails_with_one_sentence(
    program: Start, data: Path
) -> None:
    with EmbeddedHub(data=data):
        size = (data / "namespace.json").stat().st_size
    message = failed_start(program, size + 50, "--data", str(data), "--tls-port", "0")
    assert "cannot use the certificate authority in" in message
    assert "File too large" in message


def test_a_directory_that_cannot_be_created_is_one_sentence(program: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    up = program("up", "--port", "0", "--data", str(tmp_path / "file" / "data"))
    code, message = up.wait()
    assert (code, len(message.splitlines())) == (1, 1)
    assert "cannot be used: Not a directory; choose another one" in message


# -- a hub that runs when the disk becomes full ---------------------------------------------------


def fill(up: Program) -> None:
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def free(up: Program) -> None:
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, limit)


def output(start: Start, connection: str, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    command = start(*args, connection=connection)
    code, errors = command.wait()
    assert command.process.stdout is not None
    return code, command.process.stdout.read(), errors


def test_a_running_hub_refuses_changes_until_there_is_space(program: Start, data: Path) -> None:
    options = ["--port", "0", "--http-port", "0", "--data", str(data), "-o", "json"]
    up = program("up", *options, "sensors:2", "-v")
    ready = json.loads(up.line())
    connection = ready["namespace_connection_string"]
    assert output(program, connection, "groups", "create", "first", "--hub", "sensors")[0] == 0
    assert output(program, connection, "send", "sensors", "x")[0] == 0

    fill(up)
    for command in (
        ["hubs", "create", "doors"],
        ["hubs", "grow", "sensors", "--partitions", "3"],
        ["hubs", "delete", "sensors"],
        ["groups", "create", "second", "--hub", "sensors"],
        ["groups", "delete", "first", "--hub", "sensors"],
    ):
        code, out, errors = output(program, connection, *command)
        assert (code, out) == (1, "")
        assert len(errors.splitlines()) == 1
        assert "namespace.json cannot be written (File too large): nothing was changed" in errors
    assert put_hub(ready["http_port"], connection, "windows") == 500
    assert output(program, connection, "hubs", "list", "-o", "json")[1].count("\n") == 1
    listed = output(program, connection, "groups", "list", "--hub", "sensors")[1]
    assert listed.split() == ["$Default", "first"]

    free(up)
    assert output(program, connection, "send", "sensors", "y")[0] == 0
    assert output(program, connection, "hubs", "create", "doors")[0] == 0
    assert put_hub(ready["http_port"], connection, "windows") == 201
    code, logs = up.end(signal.SIGKILL)
    assert logs.count("change_not_stored") == 6
    with EmbeddedHub(data=data) as hub:
        assert hub.hubs == {"sensors": 2, "doors": 4, "windows": 4}
        assert hub.groups("sensors") == ["$Default", "first"]


def put_hub(port: int, connection: str, name: str) -> int:
    """Create a hub over HTTP; the status."""
    parsed = parse_connection_string(connection)
    token = sign(f"sb://localhost:{port}/", parsed.key_name, parsed.key, 9_000_000_000)
    request = urllib.request.Request(
        f"http://localhost:{port}/hubs/{name}", b"{}", {"Authorization": token}, method="PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return int(response.status)
    except HTTPError as refusal:
        with refusal:
            return refusal.code
