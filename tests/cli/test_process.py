"""`pumphouse process`: runs a handler of a user."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, Program, refused

HANDLERS = """
import asyncio

def plain(partition, batch):
    with open("seen.txt", "a") as file:
        for event in batch:
            file.write(f"{partition.id} {event.body.decode()}\\n")

async def waiting(partition, batch):
    await asyncio.sleep(0)
    plain(partition, batch)

def picky(partition, batch):
    if any(event.body == b"bad" for event in batch):
        raise ValueError("cannot stand it")
    plain(partition, batch)

number = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app_of_a_user.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def send(connection: str, *bodies: str) -> None:
    async def work() -> None:
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in bodies])

    asyncio.run(work())


def report_of(process: Program, event: str) -> dict[str, object]:
    """The next report of this event."""
    while line := process.line():
        report: dict[str, object] = json.loads(line)
        if report["event"] == event:
            return report
    raise AssertionError(process.wait())


@pytest.mark.parametrize("handler", ["plain", "waiting"])
def test_events_are_handled_and_checkpointed(
    handler: str, folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 2)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "b")
    for sent, bodies, number in (([], ["a", "b"], signal.SIGINT), (["c"], ["c"], signal.SIGTERM)):
        send(connection, *sent)
        process = program(
            "process", f"app_of_a_user:{handler}", "-o", "json", connection=connection
        )
        report_of(process, "started")
        wait_for_text(folder / "seen.txt", f"0 {bodies[-1]}\n", process)
        process.process.send_signal(number)
        # The second process starts after the checkpoint of the first.
        assert report_of(process, "stopped")["events"] == len(bodies)
        assert process.wait()[0] == 0
    assert (folder / "seen.txt").read_text() == "0 a\n0 b\n0 c\n"


def wait_for_text(path: Path, text: str, process: Program) -> None:
    while not (path.exists() and text in path.read_text()):
        assert process.process.poll() is None
        time.sleep(0.01)


def test_a_failed_event_becomes_a_dead_letter(
    folder: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "bad", "b")
    options = ("--retries", "0", "--dead-letter", "dead.jsonl", "-o", "json")
    process = program("process", "app_of_a_user:picky", *options, connection=connection)
    report = report_of(process, "error")
    assert report["error"] == "ValueError: cannot stand it"
    wait_for_text(folder / "seen.txt", "0 b", process)
    assert process.end(signal.SIGINT)[0] == 0
    (letter,) = [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]
    assert (letter["text"], letter["cause"]) == ("bad", "ValueError: cannot stand it")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["app_of_a_user"], "invalid handler 'app_of_a_user': use MODULE:HANDLER"),
        (["nowhere_at_all:handle"], "no module 'nowhere_at_all' in this folder or installed"),
        (["app_of_a_user:missing"], "module app_of_a_user has no function 'missing'"),
        (["app_of_a_user:number"], "module app_of_a_user has no function 'number'"),
        (["app_of_a_user:plain", "--strategy", "clever"], "unknown strategy 'clever'"),
        (
            ["app_of_a_user:plain", "--checkpoint-every", "often"],
            "invalid checkpoint interval 'often': use 100, 5s or 100,5s",
        ),
        (["app_of_a_user:plain", "--store", "ftp://x"], "ftp: is not a store"),
    ],
)
def test_invalid_options_are_rejected(
    folder: Path, call: Call, args: list[str], message: str
) -> None:
    assert message in refused(call("process", *args, "--hub", "orders"), code=2)
