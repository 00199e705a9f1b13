"""`pumphouse process`: somebody's handler on the partitions this host gets."""

from __future__ import annotations

import asyncio
import json
import signal
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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app_of_a_user.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def send(connection: str, *bodies: str) -> None:
    async def work() -> None:
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in bodies])

    asyncio.run(work())


def until(process: Program, word: str) -> dict[str, object]:
    """The line that tells of this."""
    while line := process.line():
        told: dict[str, object] = json.loads(line)
        if told["event"] == word:
            return told
    raise AssertionError(process.wait())


@pytest.mark.parametrize("handler", ["plain", "waiting"])
def test_events_are_handled_and_checkpointed(
    handler: str, here: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 2)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "b")
    first = program("process", f"app_of_a_user:{handler}", "-o", "json", connection=connection)
    until(first, "started")
    assert until(first, "handled")["events"] == 2
    assert first.end(signal.SIGINT)[0] == 0
    send(connection, "c")
    second = program("process", f"app_of_a_user:{handler}", "-o", "json", connection=connection)
    assert until(second, "handled")["events"] == 1  # the others were checkpointed
    assert second.end(signal.SIGTERM)[0] == 0
    assert (here / "seen.txt").read_text() == "0 a\n0 b\n0 c\n"


def test_what_cannot_be_handled_becomes_a_dead_letter(
    here: Path, event_hub: EmbeddedHub, program: Callable[..., Program]
) -> None:
    event_hub.create_hub("orders", 1)
    connection = event_hub.connection_string("orders")
    send(connection, "a", "bad", "b")
    options = ("--retries", "0", "--dead-letter", "dead.jsonl", "-o", "json")
    process = program("process", "app_of_a_user:picky", *options, connection=connection)
    told = until(process, "error")
    assert told["error"] == "ValueError: cannot stand it"
    while not (here / "seen.txt").exists() or "0 b" not in (here / "seen.txt").read_text():
        assert process.process.poll() is None
    assert process.end(signal.SIGINT)[0] == 0
    (letter,) = [json.loads(line) for line in (here / "dead.jsonl").read_text().splitlines()]
    assert (letter["text"], letter["cause"]) == ("bad", "ValueError: cannot stand it")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["app_of_a_user"], "'app_of_a_user' names no handler; write MODULE:HANDLER"),
        (["nowhere_at_all:handle"], "there is no module 'nowhere_at_all' here or installed"),
        (["app_of_a_user:missing"], "module app_of_a_user has no function 'missing'"),
        (["app_of_a_user:number"], "module app_of_a_user has no function 'number'"),
        (["app_of_a_user:plain", "--strategy", "clever"], "unknown strategy 'clever'"),
        (["app_of_a_user:plain", "--checkpoint-every", "often"], "'often' is no rhythm"),
        (["app_of_a_user:plain", "--store", "ftp://x"], "ftp: is not a store"),
    ],
)
def test_what_cannot_be_run(here: Path, call: Call, args: list[str], why: str) -> None:
    assert why in refused(call("process", *args, "--hub", "orders"), code=2)
