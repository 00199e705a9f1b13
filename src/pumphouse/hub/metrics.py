"""The metrics of a hub.

    namespace, server -> HubMetrics -> telemetry
                         ^^^^^^^^^^ this module

Most values are counted elsewhere and only read here, whenever metrics are collected. Another thread
may collect them, so lists and sets of the hub are copied before they are iterated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pumphouse.hub.faults.rules import SERVER_BUSY
from pumphouse.hub.namespace import EventHub, Namespace, Partition
from pumphouse.telemetry import definitions as metrics
from pumphouse.telemetry.definitions import Metric
from pumphouse.telemetry.meter import (
    Labels,
    Series,
    add_source,
    close_series,
    open_series,
    remove_source,
)

if TYPE_CHECKING:
    from pumphouse.hub.server import HubServer

Values = Iterable[tuple[float, Labels]]

OF_PARTITIONS: dict[str, Callable[[Partition], float]] = {
    metrics.RECEIVED_EVENTS.name: lambda partition: partition.events_received,
    metrics.RECEIVED_BYTES.name: lambda partition: partition.bytes_received,
    metrics.SENT_EVENTS.name: lambda partition: partition.events_sent,
    metrics.SENT_BYTES.name: lambda partition: partition.bytes_sent,
    metrics.BEGIN_SEQUENCE.name: lambda partition: partition.log.begin,
    metrics.END_SEQUENCE.name: lambda partition: partition.log.next_sequence - 1,
}
OBSERVED = (
    metrics.RECEIVED_EVENTS,
    metrics.RECEIVED_BYTES,
    metrics.SENT_EVENTS,
    metrics.SENT_BYTES,
    metrics.BEGIN_SEQUENCE,
    metrics.END_SEQUENCE,
    metrics.REJECTED_SENDS,
    metrics.THROTTLED,
    metrics.CONNECTIONS,
    metrics.READERS,
    metrics.EPOCH_EVICTIONS,
    metrics.LOG_BYTES,
)


class HubMetrics:
    """The metrics of one running hub."""

    def __init__(self, namespace: Namespace, server: HubServer) -> None:
        self.namespace, self.server = namespace, server
        self._appends: dict[str, Series] = {}  # by hub
        self._sync = open_series(metrics.SYNC_SECONDS, {})
        namespace.on_append = self.appended
        namespace.storage.measure_syncs(self._sync.record)
        add_source(self, *OBSERVED)

    def close(self) -> None:
        remove_source(self)
        self.namespace.on_append = None
        close_series(self._sync, *self._appends.values())

    def appended(self, hub: str, seconds: float) -> None:
        if hub not in self._appends:
            self._appends[hub] = open_series(metrics.APPEND_SECONDS, {"hub": hub})
        self._appends[hub].record(seconds)

    def observe(self, metric: Metric) -> Values:
        if metric is metrics.CONNECTIONS:
            return self._connections()
        hubs = list(self.namespace.hubs)
        if metric.name in OF_PARTITIONS:
            return of_partitions(hubs, OF_PARTITIONS[metric.name])
        return OF_HUBS[metric.name](hubs)

    def _connections(self) -> Iterator[tuple[float, Labels]]:
        listeners = Counter(
            connection.slot.listener for connection in list(self.server.connections)
        )
        for listener, count in listeners.items():
            yield count, {"listener": listener}


def of_partitions(hubs: list[EventHub], value: Callable[[Partition], float]) -> Values:
    for hub in hubs:
        for partition in list(hub.partitions):
            yield value(partition), {"hub": hub.name, "partition": partition.id}


def rejected_sends(hubs: list[EventHub]) -> Values:
    for hub in hubs:
        for condition, count in list(hub.rejected.items()):
            yield count, {"hub": hub.name, "condition": condition}


def throttled(hubs: list[EventHub]) -> Values:
    for hub in hubs:
        waits = sum(partition.throttled for partition in list(hub.partitions))
        yield hub.rejected[SERVER_BUSY] + waits, {"hub": hub.name}


def log_bytes(hubs: list[EventHub]) -> Values:
    for hub in hubs:
        yield sum(partition.log.size for partition in list(hub.partitions)), {"hub": hub.name}


def readers(hubs: list[EventHub]) -> Values:
    for hub in hubs:
        present = Counter(
            name
            for partition in list(hub.partitions)
            for name, links in list(partition.readers.items())
            for _ in links
        )
        for key, name in list(hub.groups.items()):
            yield present[key], {"hub": hub.name, "group": name}


def epoch_evictions(hubs: list[EventHub]) -> Values:
    for hub in hubs:
        evicted: Counter[str] = Counter()
        for partition in list(hub.partitions):
            evicted.update(dict(partition.evicted))
        for key, name in list(hub.groups.items()):
            yield evicted[key], {"hub": hub.name, "group": name}


OF_HUBS: dict[str, Callable[[list[EventHub]], Values]] = {
    metrics.REJECTED_SENDS.name: rejected_sends,
    metrics.THROTTLED.name: throttled,
    metrics.LOG_BYTES.name: log_bytes,
    metrics.READERS.name: readers,
    metrics.EPOCH_EVICTIONS.name: epoch_evictions,
}
