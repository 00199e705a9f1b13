"""The official client, azure-eventhub, used as its documentation recommends for throughput.

    python -m benchmarks._sdk fill  CONNECTION HUB_PID SIZE EVENTS
    python -m benchmarks._sdk send  CONNECTION HUB_PID SIZE EVENTS
    python -m benchmarks._sdk read  CONNECTION HUB_PID SIZE EVENTS

It reads the CPU clocks of client and hub at the same two moments, so that both are measured over
the same events.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, NamedTuple

from azure.eventhub import EventData, EventDataBatch, EventHubConsumerClient, EventHubProducerClient

from benchmarks._processes import TIMEOUT_S, cpu_s, print_result

PREFETCH = 3000
PARTITION = "0"


class Clocks(NamedTuple):
    """CPU seconds of the client (this process) and of the hub."""

    client_s: float
    hub_s: float


def read_clocks(hub_pid: int) -> Clocks:
    return Clocks(cpu_s(os.getpid()), cpu_s(hub_pid))


def report(events: int, start: Clocks, end: Clocks) -> None:
    print_result(
        events=events, client_s=end.client_s - start.client_s, hub_s=end.hub_s - start.hub_s
    )


def full_batch(producer: EventHubProducerClient, body: bytes, limit: int) -> EventDataBatch:
    """A new batch with as many events as it takes, `limit` at the most."""
    batch = producer.create_batch(partition_id=PARTITION)
    for _ in range(limit):
        try:
            batch.add(EventData(body))
        except ValueError:  # the batch is full
            break
    return batch


def fill(connection: str, hub_pid: int, size: int, events: int) -> None:
    """Send exactly `events` events to the partition: one batch, sent many times."""
    start, left = read_clocks(hub_pid), events
    with EventHubProducerClient.from_connection_string(connection) as producer:
        batch = full_batch(producer, bytes(size), left)
        while left:
            if left < len(batch):
                batch = full_batch(producer, bytes(size), left)
            producer.send_batch(batch)
            left -= len(batch)
    report(events, start, read_clocks(hub_pid))


def send(connection: str, hub_pid: int, size: int, events: int) -> None:
    """Build full batches and send them."""
    body, done = bytes(size), 0
    with EventHubProducerClient.from_connection_string(connection) as producer:
        producer.send_batch(full_batch(producer, body, events))  # connects
        start = read_clocks(hub_pid)
        while done < events:
            batch = full_batch(producer, body, events)
            producer.send_batch(batch)
            done += len(batch)
        end = read_clocks(hub_pid)
    report(done, start, end)


def read(connection: str, hub_pid: int, size: int, events: int) -> None:
    """Read `events` events, after a first window that connects and warms up.

    This client grants its next window when the last event of the window before was delivered, so at
    both moments the hub has sent exactly what was received.
    """
    consumer = EventHubConsumerClient.from_connection_string(connection, "$Default")
    seen, marks, done = 0, list[Clocks](), threading.Event()

    def on_batch(_: Any, batch: list[EventData]) -> None:
        nonlocal seen
        before, seen = seen, seen + len(batch)
        if any(before < mark <= seen for mark in (PREFETCH, PREFETCH + events)):
            marks.append(read_clocks(hub_pid))
        if seen >= PREFETCH + events:
            done.set()

    options = {"prefetch": PREFETCH, "partition_id": PARTITION, "starting_position": "-1"}
    reading = threading.Thread(target=consumer.receive_batch, args=(on_batch,), kwargs=options)
    with consumer:
        reading.start()
        done.wait(TIMEOUT_S)
    reading.join()
    if not done.is_set():
        raise TimeoutError(f"received {seen} of {PREFETCH + events} events in {TIMEOUT_S:g} s")
    report(events, *marks)


if __name__ == "__main__":
    task = {"fill": fill, "send": send, "read": read}[sys.argv[1]]
    task(sys.argv[2], *map(int, sys.argv[3:]))
