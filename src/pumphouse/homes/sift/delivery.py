"""Sends the results of a sift task: alerts, activities and dead letters, each to their hub.

The task collects all three, and sends them at its end. Alerts are sent first. Activities follow
after the hub has acknowledged the alerts. So `watch` never reads an activity before its alert is in
the hub. If sending fails, the task fails, and Spark repeats it without the state that it computed.

The key of an activity is its home, and a batch that is sent by key has one key only. So activities
are sent to the partitions of their keys (see partition_hash.py): a batch has many homes, each event
with its key. A client without batch senders sends one batch per key. Delivery is at least once, as
with any sink: a task that Spark repeats sends its rows a second time.

    Sifter -> OutgoingEvents -> Delivery -> alerts, activity, deadletter
              ^^^^^^^^^^^^^^^^^^^^^^^^^^ this module, in an executor
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from pumphouse.client.base import batch_section, encode_event, prepared_batch
from pumphouse.events import Event
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import decode_alert
from pumphouse.homes.sift.open_hubs import OpenHub, OpenHubs, open_hubs
from pumphouse.homes.trace_text import TRACE, trace_properties
from pumphouse.spark.options import SinkOptions, read_sink

BATCH_BYTES_MAX = 240 * 1024  # below the 256 KB of the smallest tier
# The outcome of a valid record. The outcome of an invalid one is a text that describes the problem.
KEPT, REPEATED, DROPPED = "kept", "repeated", "dropped"
COLUMNS = ("partition", "sequence", "home", "outcome", "body", "alert", TRACE)


@dataclass(slots=True)
class OutgoingEvents:
    """The rows of a task as events."""

    alerts: list[Event] = field(default_factory=list)
    activities: list[Event] = field(default_factory=list)
    dead_letters: list[Event] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.alerts) + len(self.activities) + len(self.dead_letters)

    def add(self, table: Mapping[str, Any]) -> None:
        """Add the rows of a table, which are columns of numpy."""
        rows = zip(*(table[name].tolist() for name in COLUMNS), strict=True)
        for partition, sequence, home, outcome, body, alert, trace in rows:
            if alert is not None:
                self.alerts.append(alert_event(alert, home, trace))
            if outcome == KEPT:
                event = Event(body, partition_key=home)
                if trace is not None:
                    event = Event(body, trace_properties(trace), partition_key=home)
                self.activities.append(event)
            elif outcome not in (REPEATED, DROPPED):
                properties = dead_letter_properties(outcome, partition, sequence)
                self.dead_letters.append(Event(body, properties))


def alert_event(body: bytes, home: str, trace: str | None) -> Event:
    """An alert as an event. Its id is also a property, because readers deduplicate by it."""
    identity = {"id": decode_alert(body).id}
    return Event(body, identity | dict(trace_properties(trace)), partition_key=home)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Sends the events of a task; it is pickled and sent to a worker process."""

    alerts: SinkOptions
    activity: SinkOptions
    deadletter: SinkOptions

    def __call__(self, events: OutgoingEvents, hubs: OpenHubs = open_hubs) -> None:
        """Return when the hubs have acknowledged all events."""
        hubs.run(self.send(events, hubs))

    async def send(self, events: OutgoingEvents, hubs: OpenHubs) -> None:
        await send_to(self.alerts, events.alerts, hubs)
        await send_to(self.activity, events.activities, hubs)
        if events.dead_letters:
            async with hubs.borrow(self.deadletter.identity) as hub:
                await send_by_key(hub, events.dead_letters, self.deadletter)


def delivery_to(
    alerts: dict[str, str], activity: dict[str, str], deadletter: dict[str, str]
) -> Delivery:
    return Delivery(read_sink(alerts), read_sink(activity), read_sink(deadletter))


def dead_letter_properties(problem: str, partition: str, sequence: int) -> dict[str, str]:
    """The reason of a dead letter and the position of its record; a repeated task sends the same
    properties."""
    reason, _, detail = problem.partition(": ")
    position = {"partition": partition, "sequence": str(sequence)}
    return {"reason": reason, "detail": detail} | position


async def send_to(options: SinkOptions, events: Sequence[Event], hubs: OpenHubs) -> None:
    """Send events whose partition key is their home."""
    if not events:
        return
    async with hubs.borrow(options.identity) as hub:
        by_partition = hub.client.has_batch_sender
        await (send_by_partition if by_partition else send_by_key)(hub, events, options)


async def send_by_key(hub: OpenHub, events: Sequence[Event], options: SinkOptions) -> None:
    async with asyncio.timeout(options.send_timeout_s * (1 + len(events) // 100)):
        await (await hub.sender()).send(events)


async def send_by_partition(hub: OpenHub, events: Sequence[Event], options: SinkOptions) -> None:
    async with asyncio.timeout(options.identity.operation_timeout_s):
        # Not kept: partitions may be added, and then keys have other partitions.
        partitions = (await hub.client.properties()).partitions
    numbers = np.array([int((event.partition_key or "h0")[1:]) for event in events], np.int32)
    indices = partitions_of(numbers, len(partitions)).tolist()
    order = sorted(range(len(events)), key=indices.__getitem__)  # stable: keeps the order
    async with asyncio.TaskGroup() as group:
        for index, rows in groupby(order, key=indices.__getitem__):
            selected = [events[row] for row in rows]
            group.create_task(send_to_partition(hub, partitions[index], selected, options))


async def send_to_partition(
    hub: OpenHub, partition: str, events: Sequence[Event], options: SinkOptions
) -> None:
    sender = await hub.batch_sender(partition)
    for sections in batches_of(events, min(BATCH_BYTES_MAX, sender.size_max)):
        async with asyncio.timeout(options.send_timeout_s):
            await sender.deliver(prepared_batch(b"".join(sections), len(sections)))


def batches_of(events: Iterable[Event], size_max: int) -> Iterator[list[bytes]]:
    """Events as the sections of batches of at most `size_max` bytes; a larger event is alone."""
    sections: list[bytes] = []
    size = 0
    for event in events:
        section = batch_section(encode_event(event))
        if sections and size + len(section) > size_max:
            yield sections
            sections, size = [], 0
        sections.append(section)
        size += len(section)
    if sections:
        yield sections
