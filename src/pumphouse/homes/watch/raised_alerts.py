"""Reads the alerts that the hub holds already, so that they are not raised a second time.

An application that does not share partitions reads the alerts once, at its start. An application
that shares partitions may acquire a partition later, from an application that has died. The alerts
that the other application has raised are in the hub, and are read in the task that first processes
the partition.

    start of a stage -> raised_fingerprints
                        ^^^^^^^^^^^^^^^^^^^ this module, in the driver
    Watcher (a partition without history) -> read_alerts -> history_of_alerts -> PartitionHistory
                                             ^^^^^^^^^^^ this module, in an executor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.errors import BadRecord, ConnectionFailed
from pumphouse.events import Event
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import (
    ALERT_DDL,
    ALERTS_HUB,
    Alert,
    decode_alert,
    home_number,
)
from pumphouse.homes.watch.alerts import fingerprints_of
from pumphouse.homes.watch.history import UInt64s
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import SinkOptions, read_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_MAX = 2000  # per call
EVENT_S = 60.0  # how long to wait for an event that the hub holds

GROUP = "watch"  # its readers, and those of sift, read side by side

AlertsReader = Callable[[], list[Alert]]
Ends = Mapping[str, int]  # the last sequence number of each partition


def raised_fingerprints(
    spark: SparkSession, namespace: HomesNamespace, kinds: Kinds = DEFAULT
) -> UInt64s:
    """The fingerprints of the alerts that the hub holds."""
    from pyspark.sql import functions as f

    from pumphouse.homes.validation import HOME

    options = namespace.hub_options(
        ALERTS_HUB, GROUP, partitionsPerTask=64, useExclusiveReceiver=False
    )
    events = spark.read.format("eventhubs").schema("body BINARY").options(**options).load()
    parsed = events.select(f.from_json(f.col("body").cast("string"), ALERT_DDL).alias("a"))
    rows = parsed.select("a.kind", "a.home", "a.sensor", "a.since").where("since is not null")
    rows = rows.where(f.col("home").rlike(HOME))
    alerts = [Alert(r.home, r.kind, r.sensor, 0, r.since, "", "") for r in rows.collect()]
    return fingerprints_of([alert for alert in alerts if is_known(alert, kinds)], kinds)


def is_known(alert: Alert, kinds: Kinds) -> bool:
    return alert.kind in kinds.alert_names and alert.sensor in kinds.by_name


def read_ends(hub: Mapping[str, str]) -> dict[str, int]:
    """The last sequence number of each partition of a hub, now."""

    async def work(sink: SinkOptions) -> dict[str, int]:
        timeout = asyncio.timeout(sink.identity.operation_timeout_s)
        async with timeout, open_hub(sink.identity) as client:
            names = (await client.properties()).partitions
            states = await asyncio.gather(*map(client.partition_properties, names))
        return {name: state.last_sequence for name, state in zip(names, states, strict=True)}

    return asyncio.run(work(read_sink(hub)))


def alerts_reader(hub: Mapping[str, str], group: str, kinds: Kinds = DEFAULT) -> AlertsReader:
    """A function that reads all alerts of a hub. It can be pickled, because a task calls it."""
    return partial(read_alerts, read_sink(hub), group, kinds)


def read_alerts(hub: SinkOptions, group: str, kinds: Kinds = DEFAULT) -> list[Alert]:
    return list(alerts_in(asyncio.run(read_hub(hub, group)), kinds))


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


def alerts_in(events: Iterable[Event], kinds: Kinds = DEFAULT) -> Iterator[Alert]:
    """The events that are alerts. Any program may write to the hub, so others are skipped."""
    for event in events:
        try:
            alert = decode_alert(event.body)
            home_number(alert.home)
        except BadRecord:
            continue
        if is_known(alert, kinds):
            yield alert
