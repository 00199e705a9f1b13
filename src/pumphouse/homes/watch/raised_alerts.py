"""Reads the alerts that the hub holds already, in the task that first processes a partition.

An application that does not share partitions reads the alerts once, at its start (stage.py). An
application that shares partitions may acquire a partition later, from an application that has died.
The alerts that the other application has raised are in the hub.

    Watcher (a partition without history) -> read_alerts -> history_of_alerts -> PartitionHistory
                                             ^^^^^^^^^^^ this module, in an executor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.errors import BadRecord, ConnectionFailed
from pumphouse.events import Event
from pumphouse.homes.schema import ALERT_KINDS, KINDS, Alert, decode_alert, home_number
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import SinkOptions, read_sink

EVENTS_MAX = 2000  # per call
EVENT_S = 60.0  # how long to wait for an event that the hub holds

AlertsReader = Callable[[], list[Alert]]


def alerts_reader(hub: Mapping[str, str], group: str) -> AlertsReader:
    """A function that reads all alerts of a hub. It can be pickled, because a task calls it."""
    return partial(read_alerts, read_sink(hub), group)


def read_alerts(hub: SinkOptions, group: str) -> list[Alert]:
    return list(alerts_in(asyncio.run(read_hub(hub, group))))


async def read_hub(hub: SinkOptions, group: str) -> list[Event]:
    async with asyncio.timeout(hub.identity.operation_timeout_s), open_hub(hub.identity) as client:
        partitions = (await client.properties()).partitions
        read = [await read_partition(client, partition, group) for partition in partitions]
    return [event for events in read for event in events]


async def read_partition(client: HubClient, partition: str, group: str) -> list[Event]:
    """All events up to the current end. Other readers may read at the same time."""
    properties = await client.partition_properties(partition)
    if properties.first_sequence > properties.last_sequence or properties.empty:
        return []
    reader = await client.reader(ReaderOptions(partition, group, prefetch=EVENTS_MAX))
    events: list[Event] = []
    while not events or (events[-1].sequence or 0) < properties.last_sequence:
        received = await reader.receive(EVENTS_MAX, EVENT_S)
        if not received:
            raise ConnectionFailed(
                f"no event from {client.hub}/{partition} for {EVENT_S:g} s: check the hub"
            )
        events += received
    await reader.close()
    return events


def alerts_in(events: Iterable[Event]) -> Iterator[Alert]:
    """The events that are alerts. Any program may write to the hub, so others are skipped."""
    for event in events:
        try:
            alert = decode_alert(event.body)
            home_number(alert.home)
        except BadRecord:
            continue
        if alert.kind in ALERT_KINDS and alert.sensor in KINDS:
            yield alert
