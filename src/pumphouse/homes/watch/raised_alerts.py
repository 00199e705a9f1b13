"""Reads the alerts that the hub holds already, in the task that first processes a partition.

An application that watches alone reads them once, at its start. One that shares partitions may
acquire one later, from an application that has died; its alerts until then are in the hub.

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

AT_ONCE = 2000  # events
EVENT_S = 60.0  # for one that must be there

AlertsReader = Callable[[], list[Alert]]


def alerts_reader(hub: Mapping[str, str], group: str) -> AlertsReader:
    """What a task calls: it answers with the alerts of the hub that the options name."""
    return partial(look, read_sink(hub), group)


def look(hub: SinkOptions, group: str) -> list[Alert]:
    return list(alerts_in(asyncio.run(read_hub(hub, group))))


async def read_hub(hub: SinkOptions, group: str) -> list[Event]:
    async with asyncio.timeout(hub.identity.operation_timeout_s), open_hub(hub.identity) as client:
        partitions = (await client.properties()).partitions
        found = [await read_partition(client, one, group) for one in partitions]
    return [event for events in found for event in events]


async def read_partition(client: HubClient, partition: str, group: str) -> list[Event]:
    """Up to the last event that is there now; beside others who read."""
    told = await client.partition_properties(partition)
    if told.first_sequence > told.last_sequence or told.empty:
        return []
    reader = await client.reader(ReaderOptions(partition, group, prefetch=AT_ONCE))
    found: list[Event] = []
    while not found or (found[-1].sequence or 0) < told.last_sequence:
        events = await reader.receive(AT_ONCE, EVENT_S)
        if not events:
            raise ConnectionFailed(f"{client.hub}/{partition} said nothing for {EVENT_S:g} s")
        found += events
    await reader.close()
    return found


def alerts_in(events: Iterable[Event]) -> Iterator[Alert]:
    """Those of the events that are alerts; anybody may write into a hub."""
    for event in events:
        try:
            alert = decode_alert(event.body)
            home_number(alert.home)
        except BadRecord:
            continue
        if alert.kind in ALERT_KINDS and alert.sensor in KINDS:
            yield alert
