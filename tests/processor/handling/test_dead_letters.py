"""Dead letters in a file and in a hub: complete for every event and cause."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import EventTooLarge, PoisonEvent, PumphouseError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.processor.dead_letters import (
    CAUSE_MAX,
    DeadLetter,
    DeadLetterFile,
    DeadLetterHub,
    as_event,
    as_line,
)
from pumphouse.processor.options import PoisonPolicy
from pumphouse.processor.partition import PartitionClient
from tests.processor.handling.test_handlers import BAD, OPTIONS, HandlerHost, Picky
from tests.processor.support.virtual_time import run


def test_dead_letters_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"

    async def scenario() -> None:
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="dead-letter"))
        async with HandlerHost(Picky(), options, dead_letters=DeadLetterFile(path)) as host:
            await host.send(b"1", BAD)
            await host.until_checkpoint(1)

    run(scenario())
    (line,) = path.read_text().splitlines()
    fields = json.loads(line)
    assert (fields["partition"], fields["sequence"], fields["text"]) == ("0", 1, "bad")
    assert fields["cause"] == "ValueError: it is bad"
    assert fields["body"] == "YmFk"


def test_dead_letters_in_a_hub() -> None:
    async def scenario() -> None:
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="dead-letter"))

        def dead(hub: EmbeddedHub) -> DeadLetterHub:
            return DeadLetterHub(hub.connection_string("dead"))

        async with HandlerHost(Picky(), options, dead_letters=dead) as host:
            await host.send(BAD)
            await host.until_checkpoint(0)
            async with open_client(host.hub.connection_string("dead")) as client:
                reader = await client.reader(ReaderOptions("0"))
                (event,) = await reader.receive(10, 10)
            assert event.body == BAD
            assert event.properties["dead-letter-cause"] == "ValueError: it is bad"
            assert event.properties["dead-letter-sequence"] == 0

    run(scenario())


def test_a_partition_waits_until_its_dead_letter_is_written() -> None:
    class Shaky:
        tried = 0

        async def write(self, letter: DeadLetter) -> None:
            self.tried += 1
            if self.tried < 4:
                raise PumphouseError("the disk is full")

        async def close(self) -> None: ...

    async def scenario() -> None:
        shaky = Shaky()
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="dead-letter"))
        async with HandlerHost(Picky(), options, dead_letters=shaky) as host:
            await host.send(BAD)
            await host.until_checkpoint(0)
            assert shaky.tried == 4
            assert host.kinds().count("PumphouseError") == 3

    run(scenario())


def test_properties_of_any_type_are_written() -> None:
    event = Event(b"\xff", {"b": b"x", "n": 1, "o": 1j})
    fields = json.loads(as_line(DeadLetter(event, "0", "g", "h", 1, ValueError("no"))))
    assert fields["properties"]["b"] == {"base64": "eA=="}
    assert fields["properties"]["o"] == {"type": "complex", "value": "1j"}
    assert fields["text"] is None


def test_numbers_that_json_does_not_have_are_written_with_their_type() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    event = Event(b"", {"a": math.nan, "b": -math.inf, "c": 1.5, "d": [math.inf, {"e": math.nan}]})
    line = as_line(DeadLetter(event, "0", "g", "h", 1, ValueError("no")))
    infinity = {"type": "float", "value": "inf"}
    assert json.loads(line, parse_constant=refuse)["properties"] == {
        "a": {"type": "float", "value": "nan"},
        "b": {"type": "float", "value": "-inf"},
        "c": 1.5,
        "d": [infinity, {"e": {"type": "float", "value": "nan"}}],
    }


PLAIN = DeadLetter(Event(BAD), "0", "g", "h", 1, ValueError("no"))
# `body.decode("utf-8", "surrogateescape")` gives such texts, and handlers quote them.
UNSENDABLE = DeadLetter(
    Event(b"bad\xff", {"key \udcff": "value \udcff"}, "k\udcff"),
    "0",
    "group \udcff",
    "host \udcff",
    1,
    ValueError("cannot parse bad\udcff"),
)


def test_a_cause_with_a_lone_surrogate_is_escaped() -> None:
    assert UNSENDABLE.reason == r"ValueError: cannot parse bad\udcff"
    huge = replace(UNSENDABLE, cause=ValueError("\udcff" * 5000))
    assert len(huge.reason) == CAUSE_MAX


def test_a_text_with_a_lone_surrogate_is_escaped_in_a_file() -> None:
    fields = json.loads(as_line(UNSENDABLE).decode())
    assert fields["cause"] == UNSENDABLE.reason
    assert (fields["host"], fields["partition_key"]) == ("host \udcff", "k\udcff")
    assert fields["properties"] == {"key \udcff": "value \udcff"}


def test_valid_text_is_readable_in_a_file() -> None:
    letter = DeadLetter(Event("größe".encode()), "0", "g", "h", 1, ValueError("größe"))
    assert as_line(letter).decode().count("größe") == 2


def test_a_text_with_a_lone_surrogate_is_escaped_in_a_hub() -> None:
    event = as_event(UNSENDABLE)
    assert event.partition_key == r"k\udcff"
    assert event.properties[r"key \udcff"] == r"value \udcff"
    assert event.properties["dead-letter-host"] == r"host \udcff"
    for text in (event.partition_key, *event.properties, *event.properties.values()):
        str(text).encode()


def test_an_event_whose_cause_has_a_lone_surrogate_is_dead_lettered(tmp_path: Path) -> None:
    async def quoting(partition: PartitionClient, batch: list[Event]) -> None:
        for event in batch:
            if event.body.startswith(BAD):
                raise ValueError(event.body.decode("utf-8", "surrogateescape"))

    async def host(dead_letters: Any) -> None:
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="dead-letter"))
        async with HandlerHost(quoting, options, dead_letters=dead_letters) as host:
            await host.send(b"bad\xff", b"1")
            await host.until_checkpoint(1)
            assert set(host.kinds()) == {"ValueError", "PoisonEvent"}

    run(host(DeadLetterFile(tmp_path / "dead.jsonl")))
    run(host(lambda hub: DeadLetterHub(hub.connection_string("dead"))))


class SlowClient:
    """A client that opens slowly, and records whether it was opened and closed."""

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.closed = 0

    async def __aenter__(self) -> SlowClient:
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closed += 1

    async def sender(self) -> SlowClient:
        return self

    async def send(self, events: list[Event]) -> None:
        self.sent += events


async def test_concurrent_letters_share_a_client() -> None:
    made: list[SlowClient] = []

    def make() -> Any:
        made.append(SlowClient())
        return made[-1]

    letters = DeadLetterHub(make)
    await asyncio.gather(*(letters.write(UNSENDABLE) for _ in range(3)))
    await letters.close()
    assert [(len(each.sent), each.closed) for each in made] == [(3, 1)]
    await letters.write(UNSENDABLE)  # as when a host is registered again
    await letters.close()
    assert [(len(each.sent), each.closed) for each in made] == [(3, 1), (1, 1)]


async def test_a_hub_that_closes_while_it_opens_leaves_nothing_open() -> None:
    client: Any = SlowClient()
    letters = DeadLetterHub(lambda: client)
    writing = asyncio.create_task(letters.write(UNSENDABLE))
    await asyncio.sleep(0)
    await letters.close()
    await writing
    assert client.closed == 1


async def test_a_slow_disk_blocks_nothing_and_lines_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, in_time = threading.Event(), []
    monkeypatch.setattr(os, "fsync", lambda file: in_time.append(mended.wait(2)))
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    writing = [asyncio.create_task(letters.write(PLAIN)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    mended.set()
    await asyncio.gather(*writing)
    assert in_time == [True] * 3
    assert letters.path.read_bytes() == as_line(PLAIN) * 3


async def test_a_file_that_cannot_be_written_raises(tmp_path: Path) -> None:
    with pytest.raises(PumphouseError, match=r"cannot write a dead letter.*No such file"):
        await DeadLetterFile(tmp_path / "nowhere" / "dead.jsonl").write(UNSENDABLE)


# -- a full disk ----------------------------------------------------------------------------------


def letter(body: bytes = b"x", cause: str = "bad") -> DeadLetter:
    return DeadLetter(Event(body, sequence=1), "0", "g", "h", 1, ValueError(cause))


async def test_a_full_disk_keeps_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = DeadLetterFile(tmp_path / "dead.jsonl")
    await dead.write(letter(b"first"))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(PumphouseError, match="No space left on device"):
        await dead.write(letter(b"second"))
    assert [json.loads(line)["text"] for line in dead.path.read_text().splitlines()] == ["first"]
    monkeypatch.undo()
    await dead.write(letter(b"second"))
    texts = [json.loads(line)["text"] for line in dead.path.read_text().splitlines()]
    assert texts == ["first", "second"]


@pytest.mark.parametrize("whole", [b"", b'{"text": "first"}\n'])
@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_line_that_a_killed_process_left_unfinished_is_removed(
    whole: bytes, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_bytes(whole + b"{" * size)
    await DeadLetterFile(path).write(letter(b"second"))
    assert texts_of(path) == [*(["first"] if whole else []), "second"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"dead_letter_truncated file={path} bytes={size} todo=" in record.getMessage()


@pytest.mark.parametrize("whole", [b"", b'{"text": "zero"}\n'])
async def test_a_last_line_that_only_lacks_its_newline_is_kept(
    whole: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_bytes(whole + as_line(letter(b"first")).rstrip(b"\n"))
    await DeadLetterFile(path).write(letter(b"second"))
    assert texts_of(path) == [*(["zero"] if whole else []), "first", "second"]
    assert caplog.records == []


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It contains events. The mode of a file that exists is kept."""
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch(0o640)
    old.chmod(0o640)
    for path in (new, old):
        await DeadLetterFile(path).write(letter(b"x"))
    assert [path.stat().st_mode & 0o777 for path in (new, old)] == [0o600, 0o640]


async def test_dead_letters_can_go_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await DeadLetterFile(path).write(letter(b"x"))
        assert json.loads(os.read(reader, 10_000))["text"] == "x"
    finally:
        os.close(reader)


# -- letters that are too large -------------------------------------------------------------------


async def test_the_cause_of_a_letter_that_is_too_large_is_shortened() -> None:
    async with EmbeddedHub({"dead": 1}) as hub:
        connection = hub.connection_string("dead")
        dead = DeadLetterHub(connection)
        await dead.write(letter(b"x" * (1024 * 1024 - 1500), "y" * 2000))
        with pytest.raises(EventTooLarge):
            await dead.write(letter(b"x" * (1024 * 1024 - 100)))
        await dead.close()
        async with open_client(connection) as client:
            (event,) = await (await client.reader(ReaderOptions("0"))).receive(2, 5)
    assert event.properties["dead-letter-cause"] == "ValueError: " + "y" * 88


def test_a_partition_stops_if_a_dead_letter_is_too_large() -> None:
    """It would be retried without end, and dropping it would lose the event."""

    async def scenario() -> None:
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="dead-letter"))
        tried: list[DeadLetter] = []

        class TooSmall:
            async def write(self, letter: DeadLetter) -> None:
                tried.append(letter)
                raise EventTooLarge("the event has 9 bytes")

            async def close(self) -> None: ...

        async with HandlerHost(Picky(), options, dead_letters=TooSmall()) as host:
            await host.send(b"1", BAD, b"2")
            await host.until_checkpoint(0)
            await asyncio.sleep(100)
            poisons = [error for _, error in host.errors if isinstance(error, PoisonEvent)]
            assert len(tried) == 1
            assert "its dead letter is too large, so the partition stops" in str(poisons[0])

    run(scenario())
