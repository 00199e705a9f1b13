"""Reads the database and the hubs `sensors`, `activity` and `alerts`; keeps the state of all homes.

    RecordsMonitor, Reader -> HomesMonitor -> HomeStates, AlertHistory, HeardHomes -> streams
                              ^^^^^^^^^^^^ this module

The past comes from the database. The hubs `activity` and `alerts` are read from the positions after
the recorded events, so nothing is missing after a restart. Without a database they are read from
`feed.hours` ago. Every partition is read without an epoch, beside other readers. After an error
reading continues at the last position, and the page shows the error meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, now_ms
from pumphouse.dashboard.monitors.hub_rate import HubRateMonitor
from pumphouse.dashboard.monitors.readiness import Source
from pumphouse.dashboard.monitors.records import Past, RecordsMonitor
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.options import HomesFeed
from pumphouse.dashboard.views.alert_delays import AlertDelays, alert_delays
from pumphouse.dashboard.views.alerts import (
    ALERTS_MAX,
    COUNTED_MAX,
    NEW,
    AlertHistory,
    CountedAlert,
)
from pumphouse.dashboard.views.columns import is_home, read_columns
from pumphouse.dashboard.views.delays import FRESH_MS, Delays
from pumphouse.dashboard.views.fleet import rounded
from pumphouse.dashboard.views.heard_homes import HEARD_MS, HeardHomes, home_numbers
from pumphouse.dashboard.views.home_states import CLOCKS_APART_MS, Bytes, HomeStates
from pumphouse.dashboard.views.homes import (
    CHART_MINUTES,
    MinuteRow,
    recorded_minutes,
    with_alerts,
)
from pumphouse.dashboard.views.recorded_day import Levels, recorded_levels
from pumphouse.errors import BadRecord, PumphouseError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    DAY_MS,
    HOUR_MS,
    SENSORS_HUB,
    Alert,
    decode_alert,
    home_id,
    home_number,
)

BATCH = 500
PREFETCH = 1000
WAIT_S = 5.0
RECORDS_S = 1.0  # between two queries of the database
OPEN_S = 30.0
RETRY_S = 2.0
# Of an alert: thousands are kept in memory.
NAME_CHARS_MAX, TEXT_CHARS_MAX = 60, 500
LATEST_MS = 253_402_300_799_999  # the end of the year 9999


class HomesMonitor:
    """The current state of all homes."""

    def __init__(self, feed: HomesFeed, clock: Clock, ca_file: str | None) -> None:
        self.feed, self.clock, self.ca_file = feed, clock, ca_file
        self.homes = HomeStates(feed.homes, feed.kinds)
        self.alerts = AlertHistory()
        self.heard = HeardHomes(feed.homes)
        self.delays = Delays()
        self.records = RecordsMonitor(feed.database, clock, feed.kinds) if feed.database else None
        self.meters = {
            hub: HubRateMonitor(feed.connection, hub, clock, ca_file)
            for hub in (SENSORS_HUB, ACTIVITY_HUB)
        }
        # Only its count is shown, as a part of the lag of the stage `record`.
        self._alerts_meter = HubRateMonitor(feed.connection, ALERTS_HUB, clock, ca_file)
        self.trouble: dict[str, str] = {}  # by hub
        self._positions: dict[tuple[str, str], Position] = {}  # by hub and partition
        self._behind_ms: dict[str, int] = {}  # by partition of `activity`
        self._past_is_loaded = False

    async def run(self, interval_s: float, updates: UpdateSignal) -> None:
        """Read until cancelled."""
        if self.records is not None:
            await self.read_records(self.records)
        async with asyncio.TaskGroup() as tasks:
            for meter in (*self.meters.values(), self._alerts_meter):
                tasks.create_task(meter.run(2 * interval_s))
            for hub in (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB):
                tasks.create_task(self.keep_reading(hub))
            if self.records is not None:
                tasks.create_task(self.keep_reading_records(self.records, interval_s))
            while True:
                await self.clock.sleep(interval_s)
                updates.notify()

    def close(self) -> None:
        if self.records is not None:
            self.records.close()

    # -- the database -----------------------------------------------------------------------------

    async def keep_reading_records(self, records: RecordsMonitor, interval_s: float) -> None:
        while True:
            await self.clock.sleep(max(RECORDS_S, interval_s) if not records.trouble else RETRY_S)
            await self.read_records(records)

    async def read_records(self, records: RecordsMonitor) -> None:
        """Read the past, or what changed since then; an error is shown and retried."""
        try:
            if not self._past_is_loaded:
                await self.take_past(await records.load(ALERTS_MAX, COUNTED_MAX - ALERTS_MAX + 1))
                return
            for alert_id, state in (await records.poll()).alerts:
                self.set_alert_state(alert_id, state)
        except (PumphouseError, OSError, TimeoutError) as error:
            records.trouble = str(error) or type(error).__name__

    async def take_past(self, past: Past) -> None:
        """Add what the database contains. Events already read from the hubs do not count twice."""
        for columns in past.values:
            self.homes.add(columns, now_ms(self.clock))
            await asyncio.sleep(0)  # let the streams run
        latest_ms = now_ms(self.clock) + CLOCKS_APART_MS
        self.count_alerts(past.counted, latest_ms)
        for recorded in past.alerts:
            alert = showable(recorded.alert, latest_ms)
            if alert and not self.add_alert(alert, recorded.state, recorded.enqueued):
                self.set_alert_state(alert.id, recorded.state)
        for hub, partitions in past.positions.items():
            for partition, following in partitions.items():
                position = Position("sequence", str(following), inclusive=True)
                self._positions.setdefault((hub, partition), position)
        self._past_is_loaded = True

    def count_alerts(self, counted: list[tuple[str, str, int, bool]], latest_ms: int) -> None:
        """Count the recorded alerts that are not shown. They come oldest first."""
        if len(counted) > COUNTED_MAX - ALERTS_MAX:
            self.alerts.left_out(now_ms(self.clock))
            counted = counted[1:]
        for alert_id, home, at, is_open in counted:
            if is_home(home) and 0 < at <= latest_ms:
                self.alerts.count(alert_id, CountedAlert(home, at, is_open))
        for home in {home for _, home, _, _ in counted if is_home(home)}:
            self.count_open_alerts(home)

    def add_alert(self, alert: Alert, state: AlertState, enqueued: int | None) -> bool:
        """Add an alert; False if it is a duplicate."""
        homes = self.alerts.add(alert, state, enqueued)
        for home in homes:
            self.count_open_alerts(home)
        return bool(homes)

    def set_alert_state(self, alert_id: str, state: AlertState) -> None:
        if home := self.alerts.set_state(alert_id, state):
            self.count_open_alerts(home)

    def count_open_alerts(self, home: str) -> None:
        self.homes.set_open_alerts(home_number(home), self.alerts.open_of_home(home))

    async def recorded_day(self, home: int) -> Levels:
        """The last day of a home in the database; empty without one."""
        if self.records is None:
            return {}
        at_ms, name = now_ms(self.clock), home_id(home)
        try:
            rows = await self.records.call(
                lambda records: records.activities(name, at_ms - DAY_MS, at_ms)
            )
        except (PumphouseError, OSError, TimeoutError) as error:
            self.records.trouble = str(error) or type(error).__name__
            return {}
        return recorded_levels(name, rows, self.feed.kinds)

    def states(self) -> Bytes:
        """One byte per home: its most severe state."""
        at_ms = now_ms(self.clock)
        return self.homes.states(at_ms, self.heard.are_heard(at_ms, self.homes.size))

    def minutes(self) -> list[MinuteRow]:
        """The rows of the chart."""
        at_ms = now_ms(self.clock)
        if self.records is not None and self.records.minutes is not None:
            rows = recorded_minutes(self.records.minutes, at_ms, CHART_MINUTES, self.feed.kinds)
        else:
            rows = self.homes.per_minute(at_ms, CHART_MINUTES)
        return with_alerts(rows, self.alerts, at_ms)

    # -- the hubs ---------------------------------------------------------------------------------

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
        position = self._positions.get((client.hub, partition), self.start_of(client.hub))
        properties = await client.partition_properties(partition)
        if is_beyond(position, properties.last_sequence):
            position = EARLIEST  # the hub was re-created
        options = ReaderOptions(
            partition, self.feed.group, position, prefetch=PREFETCH, name="page"
        )
        return await client.reader(options)

    def start_of(self, hub: str) -> Position:
        """Where reading starts if the database has no position."""
        age_ms = HEARD_MS if hub == SENSORS_HUB else self.feed.hours * HOUR_MS
        return Position("time", str(int(now_ms(self.clock) - age_ms)))

    async def read_partition(self, hub: str, partition: str, reader: Reader) -> None:
        take = {
            SENSORS_HUB: self.take_readings,
            ACTIVITY_HUB: self.take_activity,
            ALERTS_HUB: self.take_alerts,
        }[hub]
        while True:
            events = await reader.receive(BATCH, WAIT_S)
            if events:
                take(partition, events)
                self._positions[(hub, partition)] = Position("sequence", str(events[-1].sequence))
            elif hub == ACTIVITY_HUB:
                self._behind_ms[partition] = 0
            # Let the streams run while this task catches up.
            await asyncio.sleep(0)

    def take_readings(self, partition: str, events: list[Event]) -> None:
        numbers = home_numbers(event.partition_key for event in events)
        self.heard.add(numbers, events[-1].enqueued_ms or now_ms(self.clock))

    def take_activity(self, partition: str, events: list[Event]) -> None:
        at_ms = now_ms(self.clock)
        columns = read_columns([event.body for event in events], self.feed.kinds)
        self.homes.add(columns, at_ms)
        enqueued_ms = np.array([event.enqueued_ms or at_ms for event in events], np.int64)
        self._behind_ms[partition] = at_ms - int(enqueued_ms[-1])
        self.delays.add(columns.at, enqueued_ms[columns.body], at_ms)

    def take_alerts(self, partition: str, events: list[Event]) -> None:
        latest_ms = now_ms(self.clock) + CLOCKS_APART_MS
        for event in events:
            alert = read_alert(event.body, latest_ms)
            if alert is None:
                self.homes.unreadable += 1
            else:
                self.add_alert(alert, NEW, event.enqueued_ms)

    def alert_delays(self) -> AlertDelays:
        """The delays of recent alerts, from the sensor to the hub."""
        return alert_delays(self.alerts.all(), now_ms(self.clock))

    def received(self) -> dict[str, int]:
        """The number of events that each hub has received, if it was read already."""
        totals = {hub: meter.total for hub, meter in self.meters.items()}
        totals[ALERTS_HUB] = self._alerts_meter.total
        return {hub: total for hub, total in totals.items() if total is not None}

    def sources(self) -> Iterator[Source]:
        """What it reads, for the readiness of the page."""
        for meter in self.meters.values():
            yield meter.source()
        # No time of a response: a hub without events sends nothing.
        for hub, trouble in list(self.trouble.items()):
            yield Source(f"events of {hub}", trouble, None)
        if self.records is not None:
            yield self.records.source()

    def to_json(self) -> dict[str, Any]:
        """Homes heard, rates, delays and errors; views/numbers.py defines the numbers."""
        at_ms = now_ms(self.clock)
        behind_ms = max(self._behind_ms.values(), default=0)
        rates = {hub: meter.rate for hub, meter in self.meters.items()}
        troubles = [*self.trouble.values(), *(meter.trouble for meter in self.meters.values())]
        return {
            "homes_heard": self.heard.count(at_ms),
            "readings_per_s": rounded(rates[SENSORS_HUB]),
            "activities_per_s": rounded(rates[ACTIVITY_HUB]),
            "sensor_to_page": self.delays.to_json(at_ms),
            "sensor_to_alert": self.alert_delays().to_json(),
            "behind_s": round(behind_ms / 1000) if behind_ms > FRESH_MS else 0,
            "trouble": next((text for text in troubles if text), ""),
            "records_trouble": self.records.trouble if self.records is not None else "",
        }


def is_beyond(position: Position, last_sequence: int) -> bool:
    """Whether a position is after the next event of a partition."""
    if position.kind != "sequence":
        return False
    return int(position.value) > last_sequence + position.inclusive


def read_alert(body: bytes, latest_ms: int) -> Alert | None:
    """Decode an alert; None if it is invalid or from the future. A long text is cut."""
    try:
        return showable(decode_alert(body), latest_ms)
    except BadRecord:
        return None


def showable(alert: Alert, latest_ms: int) -> Alert | None:
    """The alert with a text of limited length; None if the page cannot show it."""
    if not is_home(alert.home):
        return None
    names = (alert.kind, alert.sensor, alert.region)
    if max(map(len, names)) > NAME_CHARS_MAX or abs(alert.since) > LATEST_MS:
        return None
    return replace(alert, text=alert.text[:TEXT_CHARS_MAX]) if 0 < alert.at <= latest_ms else None


def first_error(errors: BaseExceptionGroup[Any]) -> str:
    """The text of the first error in a group."""
    inner: BaseException = errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return str(inner) or type(inner).__name__
