"""The Events page: events of a hub from a position on, filtered; and sending one.

    Reader per partition -> Tail -> filter -> bounded buffer -> stream
                            ^^^^ this module

A hub may be faster than any eye. What does not fit into the buffer before the browser is ready for
more is counted and left out, and the page says how many that were.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.client.base import HubClient, PartitionProperties, Reader, ReaderOptions
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position

BATCH = 200
WAIT_S = 5.0
BUFFER_MAX = 200  # events that wait for the browser
BODY_SHOWN = 4096  # characters of a body
SAMPLES_MAX = 100
LAST = "last"  # the position that people mean without a word: a few of the newest, then what comes


@dataclass(frozen=True, slots=True)
class TailQuery:
    """Which events somebody wants to see."""

    hub: str
    group: str
    partition: str = ""  # "" is all of them
    position: Position | None = None  # None: the last few, and what comes
    text: str = ""  # that a body or key must contain, in whatever case

    def matches(self, event: Event) -> bool:
        if not self.text:
            return True
        wanted = self.text.casefold()
        body = event.body.decode("utf-8", "replace")
        return wanted in body.casefold() or wanted in (event.partition_key or "").casefold()


class Tail:
    """One stream of events. `take` empties the buffer."""

    def __init__(self, wanted: TailQuery) -> None:
        self.wanted = wanted
        self.seen = self.matched = self.left_out = 0
        self.changed = asyncio.Event()
        self._buffer: deque[Event] = deque()

    async def run(self, client: HubClient) -> None:
        """Read until cancelled, or until something fails for good."""
        there = (await client.properties()).partitions
        wanted = self.wanted.partition
        if wanted and wanted not in there:
            raise OptionError(
                f"hub {client.hub} has no partition {wanted}; it has {', '.join(there)}"
            )
        names = (wanted,) if wanted else there
        readers = [await self.open_reader(client, name, len(names)) for name in names]
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(self.read(reader))

    async def open_reader(self, client: HubClient, partition: str, count: int) -> Reader:
        position = self.wanted.position
        if position is None:
            found = await client.partition_properties(partition)
            position = few_before_end(found, max(1, BUFFER_MAX // 10 // count))
        options = ReaderOptions(partition, self.wanted.group, position, name="page")
        return await client.reader(options)

    async def read(self, reader: Reader) -> None:
        while True:
            self.saw(await reader.receive(BATCH, WAIT_S))
            await asyncio.sleep(0)

    def saw(self, events: Sequence[Event]) -> None:
        self.seen += len(events)
        found = [event for event in events if self.wanted.matches(event)]
        self.matched += len(found)
        room = BUFFER_MAX - len(self._buffer)
        self.left_out += max(0, len(found) - room)
        self._buffer.extend(found[:room])
        if events:
            self.changed.set()

    def take(self) -> dict[str, Any]:
        """What there is, and what it is out of."""
        events = [event_shown(event) for event in self._buffer]
        self._buffer.clear()
        self.changed.clear()
        return {
            "events": events,
            "seen": self.seen,
            "matched": self.matched,
            "left_out": self.left_out,
        }


def few_before_end(found: PartitionProperties, few: int) -> Position:
    first = max(found.first_sequence, found.last_sequence - few + 1)
    if found.empty or found.last_sequence < 0:
        return EARLIEST
    return Position("sequence", str(first), inclusive=True)


def event_shown(event: Event) -> dict[str, Any]:
    text = event.body.decode("utf-8", "backslashreplace")
    return {
        "partition": event.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "at": event.enqueued_ms,
        "key": event.partition_key,
        "size": len(event.body),
        "body": text[:BODY_SHOWN],
        "cut": len(text) > BODY_SHOWN,
        "json": is_json(event.body),
        "properties": {str(name): str(value) for name, value in event.properties.items()},
    }


def is_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict | list)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Sample:
    """Events that somebody sends by hand."""

    hub: str
    body: str
    key: str | None = None
    partition: str | None = None
    count: int = 1


def sample_from(asked: Any, hubs: Sequence[str]) -> Sample:
    """A sample out of a request; OptionError for what makes no sense."""
    hub, body, count = asked.get("hub"), asked.get("body"), asked.get("count", 1)
    key, partition = asked.get("key") or None, asked.get("partition") or None
    if hub not in hubs:
        raise OptionError(f"there is no hub {hub!r:.60} here; choose one of {', '.join(hubs)}")
    if not isinstance(body, str) or not body:
        raise OptionError("an event needs a body: write some text")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= SAMPLES_MAX:
        raise OptionError(f"send from 1 to {SAMPLES_MAX} events at once (got {count!r:.20})")
    if not all(one is None or isinstance(one, str) for one in (key, partition)):
        raise OptionError("key and partition are text")
    if key is not None and partition is not None:
        raise OptionError("give a key or a partition, not both: a key chooses the partition")
    return Sample(hub, body, key, partition, count)


async def send_sample(client: HubClient, sample: Sample) -> int:
    """Send it; how many events were taken."""
    sender = await client.sender(sample.partition)
    try:
        event = Event(sample.body.encode(), partition_key=sample.key)
        return await sender.send([event] * sample.count)
    finally:
        await sender.close()
