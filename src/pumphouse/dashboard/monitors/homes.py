"""Reads the hubs `activity` and `alerts` and keeps the state of all homes.

    Reader -> HomesMonitor -> columns -> HomeStates, AlertHistory, Delays -> streams
              ^^^^^^^^^^^^ this module

Every partition is read without an epoch, beside other readers, starting a day ago. After an error
reading continues at the last position, and the page shows the error meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, now_ms
from pumphouse.dashboard.monitors.hub_rate import HubRateMonitor
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.options import HomesFeed
from pumphouse.dashboard.views.alerts import AlertHistory
from pumphouse.dashboard.views.columns import read_columns
from pumphouse.dashboard.views.delays import FRESH_MS, Delays
from pumphouse.dashboard.views.home_states import CLOCKS_APART_MS, HomeStates
from pumphouse.errors import BadRecord, PumphouseError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    HOUR_MS,
    SENSORS_HUB,
    Alert,
    decode_alert,
    home_number,
)

BATCH = 500
PREFETCH = 1000
WAIT_S = 5.0
OPEN_S = 30.0
RETRY_S = 2.0


class HomesMonitor:
    """The current state of all homes."""

    def __init__(self, feed: HomesFeed, clock: Clock, ca_file: str | None) -> None:
        self.feed, self.clock, self.ca_file = feed, clock, ca_file
        self.homes = HomeStates(feed.homes)
        self.alerts = AlertHistory()
        self.delays = Delays()
        self.meters = {
            hub: HubRateMonitor(feed.connection, hub, clock, ca_file)
            for hub in (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB)
        }
        self.trouble: dict[str, str] = {}  # by hub
        self._positions: dict[tuple[str, str], Position] = {}  # by hub and partition
        self._behind_ms: dict[str, int] = {}  # by partition of `activity`
        self._start = Position("time", str(int(now_ms(clock) - feed.hours * HOUR_MS)))

    async def run(self, interval_s: float, updates: UpdateSignal) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for meter in self.meters.values():
                tasks.create_task(meter.run(2 * interval_s))
            tasks.create_task(self.keep_reading(ACTIVITY_HUB))
            tasks.create_task(self.keep_reading(ALERTS_HUB))
            while True:
                await self.clock.sleep(interval_s)
                updates.notify()

    async def keep_reading(self, hub: str) -> None:
        while True:
            try:
                await self.read_hub(hub)
            except* (PumphouseError, OSError, TimeoutError) as errors:
                self.trouble[hub] = f"{hub}: {first_error(errors)}"
            await self.clock.sleep(RETRY_S)

    async def read_hub(self, hub: str) -> None:
        async with open_client(self.feed.connection, hub, ca_file=self.ca_file) as client:
            async with asyncio.timeout(OPEN_S):
                names = (await client.properties()).partitions
                readers = [await self.open_reader(client, name) for name in names]
            self.trouble.pop(hub, None)
            async with asyncio.TaskGroup() as tasks:
                for name, reader in zip(names, readers, strict=True):
                    tasks.create_task(self.read_partition(hub, name, reader))

    async def open_reader(self, client: HubClient, partition: str) -> Reader:
        position = self._positions.get((client.hub, partition), self._start)
        properties = await client.partition_properties(partition)
        if position.kind == "sequence" and int(position.value) > properties.last_sequence:
            position = EARLIEST  # the hub was re-created
        options = ReaderOptions(
            partition, self.feed.group, position, prefetch=PREFETCH, name="page"
        )
        return await client.reader(options)

    async def read_partition(self, hub: str, partition: str, reader: Reader) -> None:
        take = self.take_activity if hub == ACTIVITY_HUB else self.take_alerts
        while True:
            events = await reader.receive(BATCH, WAIT_S)
            if events:
                take(partition, events)
                self._positions[(hub, partition)] = Position("sequence", str(events[-1].sequence))
            elif hub == ACTIVITY_HUB:
                self._behind_ms[partition] = 0
            # Let the streams run while this task catches up.
            await asyncio.sleep(0)

    def take_activity(self, partition: str, events: list[Event]) -> None:
        at_ms = now_ms(self.clock)
        columns = read_columns([event.body for event in events])
        self.homes.add(columns, at_ms)
        enqueued_ms = events[-1].enqueued_ms or at_ms
        self._behind_ms[partition] = at_ms - enqueued_ms
        if len(columns):
            self.delays.add(int(columns.at[-1]), enqueued_ms, at_ms)

    def take_alerts(self, partition: str, events: list[Event]) -> None:
        latest_ms = now_ms(self.clock) + CLOCKS_APART_MS
        for event in events:
            alert = read_alert(event.body, latest_ms)
            if alert is None:
                self.homes.unreadable += 1
            elif self.alerts.add(alert):
                self.homes.set_alert(home_number(alert.home), alert.at)

    def to_json(self) -> dict[str, Any]:
        """Delay, rates and errors of the homes data."""
        behind_ms = max(self._behind_ms.values(), default=0)
        rates = {hub: meter.rate for hub, meter in self.meters.items()}
        troubles = [*self.trouble.values(), *(meter.trouble for meter in self.meters.values())]
        return {
            "delay": self.delays.to_json(now_ms(self.clock)),
            "behind_s": round(behind_ms / 1000) if behind_ms > FRESH_MS else 0,
            "rates": {hub: None if rate is None else round(rate, 1) for hub, rate in rates.items()},
            "trouble": next((text for text in troubles if text), ""),
        }


def read_alert(body: bytes, latest_ms: int) -> Alert | None:
    """Decode an alert; None if it is invalid or from the future."""
    try:
        alert = decode_alert(body)
        home_number(alert.home)
    except BadRecord:
        return None
    return alert if 0 < alert.at <= latest_ms else None


def first_error(errors: BaseExceptionGroup[Any]) -> str:
    """The text of the first error in a group."""
    inner: BaseException = errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return str(inner) or type(inner).__name__
