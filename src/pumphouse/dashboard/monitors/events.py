"""The data of the Events page: a filtered tail of a hub, and sample events to send.

    Reader per partition -> Tail -> filter -> bounded buffer -> stream
                            ^^^^ this module

If events arrive faster than the browser takes them, the buffer fills up. Further events are dropped
and counted, and the page shows the count.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pumphouse.client.base import HubClient, PartitionProperties, Reader, ReaderOptions
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position

BATCH = 200
WAIT_S = 5.0
BUFFER_MAX = 200  # events in the buffer for the browser
BODY_CHARS_MAX = 4096
TEXT_CHARS_MAX = 200  # of a key, and of a name and a value of a property
PROPERTIES_MAX = 50
SEARCHED_BYTES_MAX = 64 * 1024  # of a body; the filter runs in the event loop of the page
UTF8_BYTES_MAX = 4  # of a character
SAMPLES_MAX = 100
LAST = "last"  # the default position: a few of the newest events, then new events


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The events to show."""

    hub: str
    group: str
    partition: str = ""  # "": all partitions
    position: Position | None = None  # None: the last few events, then new events
    text: str = ""  # substring of the beginning of the body, or of the key, ignoring case

    def matches(self, event: Event) -> bool:
        if not self.text:
            return True
        text = self.text.casefold()
        body = event.body[:SEARCHED_BYTES_MAX].decode("utf-8", "replace")
        return text in body.casefold() or text in (event.partition_key or "").casefold()


class Tail:
    """Reads events into a bounded buffer; `take` empties it."""

    def __init__(self, query: TailQuery) -> None:
        self.query = query
        self.seen = self.matched = self.left_out = 0
        self.changed = asyncio.Event()
        # What the page shows of the events: whole bodies would fill the memory.
        self._buffer: deque[dict[str, Any]] = deque()

    async def run(self, client: HubClient) -> None:
        """Read until cancelled or until an error that retries do not solve."""
        existing = (await client.properties()).partitions
        partition = self.query.partition
        if partition and partition not in existing:
            raise OptionError(
                f"hub {client.hub} has no partition {partition}; it has {', '.join(existing)}"
            )
        names = (partition,) if partition else existing
        readers = [await self.open_reader(client, name, len(names)) for name in names]
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(self.read(reader))

    async def open_reader(self, client: HubClient, partition: str, count: int) -> Reader:
        position = self.query.position
        if position is None:
            properties = await client.partition_properties(partition)
            position = position_of_last(properties, max(1, BUFFER_MAX // 10 // count))
        options = ReaderOptions(partition, self.query.group, position, name="page")
        return await client.reader(options)

    async def read(self, reader: Reader) -> None:
        while True:
            self.add(await reader.receive(BATCH, WAIT_S))
            await asyncio.sleep(0)

    def add(self, events: Sequence[Event]) -> None:
        self.seen += len(events)
        matching = [event for event in events if self.query.matches(event)]
        self.matched += len(matching)
        room = BUFFER_MAX - len(self._buffer)
        self.left_out += max(0, len(matching) - room)
        self._buffer.extend(map(event_json, matching[:room]))
        if events:
            self.changed.set()

    def take(self) -> dict[str, Any]:
        """The buffered events and the counters; empties the buffer."""
        events = list(self._buffer)
        self._buffer.clear()
        self.changed.clear()
        return {
            "events": events,
            "seen": self.seen,
            "matched": self.matched,
            "left_out": self.left_out,
        }


def position_of_last(properties: PartitionProperties, count: int) -> Position:
    """The position of the last `count` events of a partition."""
    first = max(properties.first_sequence, properties.last_sequence - count + 1)
    if properties.empty or properties.last_sequence < 0:
        return EARLIEST
    return Position("sequence", str(first), inclusive=True)


def event_json(event: Event) -> dict[str, Any]:
    """What the page shows of an event. Long texts are cut."""
    shown = event.body[: UTF8_BYTES_MAX * (BODY_CHARS_MAX + 1)]
    text = shown.decode("utf-8", "backslashreplace")
    cut = len(text) > BODY_CHARS_MAX
    return {
        "partition": event.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "at": event.enqueued_ms,
        "key": cut_text(event.partition_key),
        "size": len(event.body),
        "body": text[:BODY_CHARS_MAX],
        "cut": cut,
        "json": not cut and is_json(event.body),
        "properties": {
            cut_text(str(name)): cut_text(str(value))
            for name, value in islice(event.properties.items(), PROPERTIES_MAX)
        },
    }


def cut_text(text: str | None) -> str | None:
    if text is None or len(text) <= TEXT_CHARS_MAX:
        return text
    return f"{text[:TEXT_CHARS_MAX]} …"


def is_json(body: bytes) -> bool:
    """Whether a browser can parse the body as an object or a list.

    Python also accepts NaN and Infinity, and bodies in UTF-16 or with a byte order mark.
    """
    try:
        value = json.loads(body.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True)
class Sample:
    """Events that a user sends from the page."""

    hub: str
    body: str
    key: str | None = None
    partition: str | None = None
    count: int = 1


def sample_from(fields: Any, hubs: Sequence[str]) -> Sample:
    """The sample that a request describes. Raises OptionError if it is invalid."""
    hub, body, count = fields.get("hub"), fields.get("body"), fields.get("count", 1)
    key, partition = fields.get("key") or None, fields.get("partition") or None
    if hub not in hubs:
        raise OptionError(f"unknown hub {hub!r:.60}: use one of {', '.join(hubs)}")
    if not isinstance(body, str) or not body:
        raise OptionError("empty body: enter some text")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= SAMPLES_MAX:
        raise OptionError(f"invalid count {count!r:.20}: use 1 to {SAMPLES_MAX}")
    if not all(field is None or isinstance(field, str) for field in (key, partition)):
        raise OptionError("key and partition must be text")
    if any(has_half_a_character(field or "") for field in (body, key, partition)):
        raise OptionError("the text has half a character (a lone surrogate): remove it")
    if key is not None and partition is not None:
        raise OptionError("use a key or a partition, not both: a key determines the partition")
    return Sample(hub, body, key, partition, count)


def has_half_a_character(text: str) -> bool:
    """Whether a text cannot be written as UTF-8. JSON can contain such a text."""
    return any("\ud800" <= character <= "\udfff" for character in text)


async def send_sample(client: HubClient, sample: Sample) -> int:
    """Send the sample; returns the number of accepted events."""
    sender = await client.sender(sample.partition)
    try:
        event = Event(sample.body.encode(), partition_key=sample.key)
        return await sender.send([event] * sample.count)
    finally:
        await sender.close()
