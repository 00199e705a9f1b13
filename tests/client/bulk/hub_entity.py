"""The event hub of the tests of ranges, and their helpers."""

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

SHORT_DEADLINE = RangeOptions(deadline_s=0.3)
NO_RETRIES = RetryOptions(attempts=0)
FAST_RETRIES = RetryOptions(attempts=20, first_s=0.01, most_s=0.5)
WAIT_S = 30.0
entity_numbers = count(1)


class Entity:
    """One event hub, with methods to store events in it."""

    def __init__(self, server: EmbeddedHub, partitions: int = 2) -> None:
        self.server = server
        self.name = f"bulk-{next(entity_numbers)}"
        server.create_hub(self.name, partitions)
        self.connection = server.connection_string(self.name)

    @classmethod
    def of(cls, server: EmbeddedHub, name: str) -> Entity:
        """An existing event hub."""
        entity = cls.__new__(cls)
        entity.server, entity.name = server, name
        entity.connection = server.connection_string(name)
        return entity

    def put(self, payloads: list[bytes], partition: int = 0) -> None:
        """Store messages, one by one."""

        def publish() -> None:
            target = self.server.namespace.hub(self.name).partitions[partition]
            for payload in payloads:
                batch = parse_payload(payload, SINGLE_FORMAT)
                # A log on disk wakes readers after the commit.
                target.log.publish(batch, now_ms(SystemClock()), None, lambda _: target.wake())

        self.server._call(publish)

    def expire_before(self, sequence: int) -> None:
        """Expire all events before this one."""

        def move() -> None:
            log: Any = self.server.namespace.hub(self.name).partitions[0].log
            log.begin = sequence

        self.server._call(move)

    @property
    def readers(self) -> int:
        group = self.server.namespace.hub(self.name).partitions[0].readers.get("$default", [])
        return len(group)


def numbered_messages(numbers: range, size: int = 0) -> list[bytes]:
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


def filled_entity(server: EmbeddedHub) -> Entity:
    """An event hub with 300 events, made once per server."""
    entity: Entity | None = getattr(server, "_filled", None)
    if entity is None:
        entity = Entity(server)
        entity.put(numbered_messages(range(300)))
        server._filled = entity  # type: ignore[attr-defined]
    return entity


class TamperedStream:
    """A stream whose received bytes a test can change."""

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


def connect_tampered(receive: Callable[[Stream, memoryview], int]) -> Connect:
    return lambda route, timeout_s: TamperedStream(open_stream(route, timeout_s), receive)


def start_waiting_range(
    eh: Entity, retry: RetryOptions | None = None, **options: Any
) -> Iterator[pa.RecordBatch]:
    """A range reader that has returned its first batch and waits for more events."""
    eh.put(numbered_messages(range(5)))
    range_options = RangeOptions(batch_rows=5, deadline_s=30, **options)
    batches = read_range(eh.connection, "0", 0, 20, range_options, retry=retry)
    assert next(batches).num_rows == 5
    return batches


def client_arguments(transport: str, server: EmbeddedHub, hub: str) -> dict[str, Any]:
    """The arguments for a client of an event hub over a transport."""
    tls = transport in ("tls", "wss")
    arguments: dict[str, Any] = {"connection": server.connection_string(hub, tls=tls)}
    if tls:
        arguments["ca_file"] = server.ca_file
    if transport in ("ws", "wss"):
        arguments |= {"transport": "websocket", "endpoint": f"127.0.0.1:{server.ws_port}"}
    return arguments
