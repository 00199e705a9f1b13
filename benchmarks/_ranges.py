"""Reads a filled partition into Arrow, in one of several ways, and measures the cost.

    python -m benchmarks._ranges fill   CONNECTION SIZE DRESSED EVENTS
    python -m benchmarks._ranges bulk   CONNECTION EVENTS PASSES
    python -m benchmarks._ranges sdk    CONNECTION EVENTS
    python -m benchmarks._ranges count  BYTES PASSES

`fill` sends events with a key and two properties (DRESSED 1) or without (0). `bulk` is the range
reader, `sdk` the official client whose events are converted to the same columns. `count` receives
BYTES over loopback and discards them: no reader can be cheaper. Each is measured after a warm-up.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch, EventHubConsumerClient, EventHubProducerClient

from benchmarks._processes import TIMEOUT_S, cpu_s, print_result
from benchmarks._sdk import PARTITION, PREFETCH
from pumphouse.client.bulk.arrow import TYPES
from pumphouse.client.bulk.client import BulkClient, RangeOptions

COLUMNS = ("body", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "properties")
SCHEMA = pa.schema([(name, TYPES[name]) for name in COLUMNS])
KEYS = 8  # a full batch for each
WARM_EVENTS = 20_000
SEND_BYTES, RECEIVE_BYTES = 1 << 19, 1 << 20  # of `count`: what the hub sends, what we read


# -- filling --------------------------------------------------------------------------------------


def fill(connection: str, size: int, dressed: int, events: int) -> None:
    """Send at least `events` events to the only partition: a few batches, sent repeatedly."""
    chance, sent = random.Random(1), 0
    with EventHubProducerClient.from_connection_string(connection) as producer:
        batches = [full_batch(producer, size, dressed, chance) for _ in range(KEYS)]
        while sent < events:
            batch = chance.choice(batches)
            producer.send_batch(batch)
            sent += len(batch)
        last = producer.get_partition_properties(PARTITION)
    # The offset counts bytes, as the hub stores and sends events.
    print_result(events=sent, bytes=int(last["last_enqueued_offset"]))


def full_batch(
    producer: EventHubProducerClient, size: int, dressed: int, chance: random.Random
) -> EventDataBatch:
    key = f"device-{chance.randrange(1000)}" if dressed else None
    batch = producer.create_batch(partition_key=key)
    while True:
        event = EventData(chance.randbytes(size))
        if dressed:
            event.properties = {"kind": "temperature", "reading": chance.randrange(-1000, 100_000)}
        try:
            batch.add(event)
        except ValueError:  # the batch is full
            return batch


# -- reading --------------------------------------------------------------------------------------


def bulk(connection: str, events: int, passes: int) -> None:
    """Measure the range reader."""
    options = RangeOptions(columns=COLUMNS)

    def read(count: int) -> int:
        return sum(batch.num_rows for batch in client.read_range(PARTITION, 0, count, options))

    with BulkClient(connection) as client:
        read(min(events, WARM_EVENTS))
        start, began = cpu_s(os.getpid()), time.perf_counter()
        done = sum(read(events) for _ in range(passes))
        print_result(
            events=done,
            client_s=cpu_s(os.getpid()) - start,
            wall_s=time.perf_counter() - began,
        )


def sdk(connection: str, events: int) -> None:
    """Measure the official client."""
    consumer = EventHubConsumerClient.from_connection_string(connection, "$Default")
    seen, marks, done = 0, list[float](), threading.Event()

    def on_batch(_: Any, batch: list[EventData]) -> None:
        nonlocal seen
        to_columns(batch)
        before, seen = seen, seen + len(batch)
        if any(before < mark <= seen for mark in (PREFETCH, PREFETCH + events)):
            marks.append(cpu_s(os.getpid()))
        if seen >= PREFETCH + events:
            done.set()

    options = {
        "prefetch": PREFETCH,
        "max_batch_size": PREFETCH,
        "partition_id": PARTITION,
        "starting_position": "-1",
    }
    reading = threading.Thread(target=consumer.receive_batch, args=(on_batch,), kwargs=options)
    with consumer:
        reading.start()
        done.wait(TIMEOUT_S)
    reading.join()
    if not done.is_set():
        raise TimeoutError(f"received {seen} of {PREFETCH + events} events in {TIMEOUT_S:g} s")
    print_result(events=events, client_s=marks[1] - marks[0])


def to_columns(events: list[EventData]) -> pa.RecordBatch:
    """The events of one call, as the same columns that the range reader returns."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([body_of(event) for event in events], TYPES["body"]),
            pa.array([event.sequence_number for event in events], TYPES["sequenceNumber"]),
            pa.array([event.offset for event in events], TYPES["offset"]),
            pa.array([event.enqueued_time for event in events], TYPES["enqueuedTime"]),
            pa.array([event.partition_key for event in events], TYPES["partitionKey"]),
            pa.array([texts(event.properties) for event in events], TYPES["properties"]),
        ],
        schema=SCHEMA,
    )


def body_of(event: EventData) -> bytes:
    pieces: Any = event.body
    return b"".join(pieces)


def texts(properties: dict[Any, Any] | None) -> list[tuple[str, str]]:
    """Properties as text; the client returns strings as bytes."""
    return [(text(key), text(value)) for key, value in (properties or {}).items()]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- the limit ------------------------------------------------------------------------------------


def count(size: int, passes: int) -> None:
    """Receive bytes and count them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        sender = multiprocessing.Process(target=send, args=(address, size * (passes + 1)))
        sender.start()
        receiving, _ = listening.accept()
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    with receiving:
        receive(receiving, buffer, size)
        start = cpu_s(os.getpid())
        receive(receiving, buffer, size * passes)
        spent = cpu_s(os.getpid()) - start
    sender.join()
    print_result(bytes=size * passes, client_s=spent)


def send(address: tuple[str, int], size: int) -> None:
    block = bytes(SEND_BYTES)
    with socket.create_connection(address) as sending:
        while size > 0:
            sending.sendall(block[:size])
            size -= SEND_BYTES


def receive(receiving: socket.socket, buffer: memoryview, size: int) -> None:
    while size > 0:
        received = receiving.recv_into(buffer[: min(size, RECEIVE_BYTES)])
        if not received:
            raise ConnectionError(f"the sender closed the connection, {size} bytes missing")
        size -= received


if __name__ == "__main__":
    tasks: dict[str, Callable[..., None]] = {"fill": fill, "bulk": bulk, "sdk": sdk, "count": count}
    task, *rest = sys.argv[1:]
    tasks[task](*(int(argument) if argument.isdigit() else argument for argument in rest))
