"""An event hub to read ranges from, and the small things that tests of ranges need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from pumphouse.amqp.messages import SINGLE_FORMAT, Message, encode_message
from pumphouse.client.base import RetryOptions
from pumphouse.client.bulk.client import Connect, RangeOptions, read_range
from pumphouse.client.bulk.streams import Stream, open_stream
from pumphouse.clock import SystemClock, now_ms
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.embedded import EmbeddedHub

SOON = RangeOptions(deadline_s=0.3)
ONCE = RetryOptions(attempts=0)
QUICKLY = RetryOptions(attempts=20, first_s=0.01, most_s=0.5)
WAIT_S = 30.0
names = count(1)


class Entity:
    """One event hub, and a way to put events into it."""

    def __init__(self, house: EmbeddedHub, partitions: int = 2) -> None:
        self.house = house
        self.name = f"bulk-{next(names)}"
        house.create_hub(self.name, partitions)
        self.connection = house.connection_string(self.name)

    @classmethod
    def of(cls, house: EmbeddedHub, name: str) -> Entity:
        """An event hub that is there already."""
        found = cls.__new__(cls)
        found.house, found.name = house, name
        found.connection = house.connection_string(name)
        return found

    def put(self, payloads: list[bytes], partition: int = 0) -> None:
        """Publish messages, one by one."""

        def publish() -> None:
            place = self.house.namespace.hub(self.name).partitions[partition]
            for payload in payloads:
                batch = parse_payload(payload, SINGLE_FORMAT)
                # On disk they are there once they are committed, not before.
                place.log.publish(batch, now_ms(SystemClock()), None, lambda _: place.wake())

        self.house._call(publish)

    def begin_at(self, sequence: int) -> None:
        """Let retention pass everything before this event."""

        def move() -> None:
            log: Any = self.house.namespace.hub(self.name).partitions[0].log
            log.begin = sequence

        self.house._call(move)

    @property
    def readers(self) -> int:
        group = self.house.namespace.hub(self.name).partitions[0].readers.get("$default", [])
        return len(group)


def numbered(numbers: range, size: int = 0) -> list[bytes]:
    return [
        encode_message(Message(application={"n": n}, data=(b"%d" % n + bytes(size),)))
        for n in numbers
    ]


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def sequences(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["sequenceNumber"] for row in rows(batches)]


def eventually(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def filled(house: EmbeddedHub) -> Entity:
    """An event hub with 300 events, made once."""
    found: Entity | None = getattr(house, "_filled", None)
    if found is None:
        found = Entity(house)
        found.put(numbered(range(300)))
        house._filled = found  # type: ignore[attr-defined]
    return found


class Tampered:
    """A stream, with a hand on what it receives."""

    def __init__(self, stream: Stream, receive: Callable[[Stream, memoryview], int]) -> None:
        self.stream = stream
        self.receive = receive

    def settimeout(self, seconds: float, /) -> None:
        self.stream.settimeout(seconds)

    def recv_into(self, buffer: memoryview, /) -> int:
        return self.receive(self.stream, buffer)

    def sendall(self, data: bytes, /) -> None:
        self.stream.sendall(data)

    def close(self) -> None:
        self.stream.close()


def tampering(receive: Callable[[Stream, memoryview], int]) -> Connect:
    return lambda route, timeout_s: Tampered(open_stream(route, timeout_s), receive)


def waiting(
    eh: Entity, retry: RetryOptions | None = None, **options: Any
) -> Iterator[pa.RecordBatch]:
    """A reader that has had its first batch and waits for events that are not there."""
    eh.put(numbered(range(5)))
    chosen = RangeOptions(batch_rows=5, deadline_s=30, **options)
    batches = read_range(eh.connection, "0", 0, 20, chosen, retry=retry)
    assert next(batches).num_rows == 5
    return batches


def by(way: str, house: EmbeddedHub, hub: str) -> dict[str, Any]:
    """What leads to an event hub by one of its doors."""
    tls = way in ("tls", "wss")
    place: dict[str, Any] = {"connection": house.connection_string(hub, tls=tls)}
    if tls:
        place["ca_file"] = house.ca_file
    if way in ("ws", "wss"):
        place |= {"transport": "websocket", "endpoint": f"127.0.0.1:{house.ws_port}"}
    return place
