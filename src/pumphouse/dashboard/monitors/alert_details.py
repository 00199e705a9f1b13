"""Finds what is known about one alert, in the database and in the hub `sensors`.

Records, HubClient -> AlertActions -> JSON -> page
                      ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.clock import now_ms
from pumphouse.dashboard.monitors.homes import HomesMonitor, showable
from pumphouse.dashboard.views.alert_details import AROUND_MS, alert_details_json, name_from
from pumphouse.dashboard.views.alerts import ShownAlert
from pumphouse.dashboard.views.home_states import CLOCKS_APART_MS
from pumphouse.errors import BadRecord, OptionError, PumphouseError
from pumphouse.events import Event, Position
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.record.recorded import RecordedActivity, RecordedAlert
from pumphouse.homes.record.records import Records
from pumphouse.homes.schema import SENSORS_HUB, Alert, decode_reading, home_number

FIND_S = 3.0  # for the search of the reading; after it, the other steps are shown alone
EVENTS_MAX = 50_000
BATCH = 1000
WAIT_S = 0.5
BEFORE_MS = 1000  # clocks of sensors and hub differ


class AlertActions:
    """Shows, acknowledges and closes alerts."""

    def __init__(
        self, monitor: HomesMonitor, client: Callable[[str], HubClient], *, write: bool
    ) -> None:
        self.monitor, self.client, self.write = monitor, client, write

    async def details(self, alert_id: str) -> dict[str, Any]:
        """The details of an alert. Raises OptionError if the alert is unknown."""
        shown = await self.find(alert_id)
        sensors_ms = await self.find_reading(shown.alert)
        activities = await self.activities_around(shown.alert)
        can_change = self.write and self.monitor.records is not None
        kinds = self.monitor.feed.kinds
        return alert_details_json(shown, activities, sensors_ms, can_change=can_change, kinds=kinds)

    async def find(self, alert_id: str) -> ShownAlert:
        """The alert in the database, or the one that the page read from the hub."""
        known = self.monitor.alerts.find(alert_id)
        recorded = await self.recorded_alert(alert_id)
        latest_ms = now_ms(self.monitor.clock) + CLOCKS_APART_MS
        if recorded and (alert := showable(recorded.alert, latest_ms)):
            return ShownAlert(0, alert, recorded.state, recorded.enqueued, recorded.trace)
        if known is None:
            raise OptionError(f"unknown alert {alert_id!r:.80}: reload the page")
        return known

    async def recorded_alert(self, alert_id: str) -> RecordedAlert | None:
        if self.monitor.records is None:
            return None
        with suppress(PumphouseError, OSError, TimeoutError):  # the page shows the error already
            return await self.monitor.records.call(lambda records: records.alert(alert_id))
        return None

    async def activities_around(self, alert: Alert) -> list[RecordedActivity]:
        if self.monitor.records is None:
            return []

        def read(records: Records) -> list[RecordedActivity]:
            return records.activities(alert.home, alert.at - AROUND_MS, alert.at + AROUND_MS)

        with suppress(PumphouseError, OSError, TimeoutError):
            return await self.monitor.records.call(read)
        return []

    async def find_reading(self, alert: Alert) -> int | None:
        """When the hub `sensors` received the reading of an alert; None if it is not found."""
        with suppress(PumphouseError, OSError, TimeoutError):
            async with asyncio.timeout(FIND_S), self.client(SENSORS_HUB) as client:
                feed = self.monitor.feed
                return await enqueued_ms(client, feed.group, alert, feed.kinds)
        return None

    async def mark(self, action: str, fields: Any) -> dict[str, Any]:
        """Acknowledge or close an alert, in the database. Returns its details."""
        if self.monitor.records is None:
            raise OptionError("the page has no database: start it with --database")
        alert_id, by = str(fields.get("id")), name_from(fields)
        await self.find(alert_id)
        at_ms = now_ms(self.monitor.clock)
        state = await self.monitor.records.call(
            lambda records: records.mark(alert_id, action, by, at_ms)
        )
        self.monitor.set_alert_state(alert_id, state)
        return await self.details(alert_id)


async def enqueued_ms(
    client: HubClient, group: str, alert: Alert, kinds: Kinds = DEFAULT
) -> int | None:
    """When the hub received the reading of an alert; None if the reading is not there."""
    names = (await client.properties()).partitions
    home = np.array([home_number(alert.home)], np.int32)
    partition = names[int(partitions_of(home, len(names))[0])]
    start = Position("time", str(alert.at - BEFORE_MS))
    reader = await client.reader(ReaderOptions(partition, group, start, name="page"))
    count = 0
    while count < EVENTS_MAX:
        events = await reader.receive(BATCH, WAIT_S)
        if not events:
            return None
        count += len(events)
        for event in events:
            if event.partition_key == alert.home and is_reading_of(event, alert, kinds):
                return event.enqueued_ms
    return None


def is_reading_of(event: Event, alert: Alert, kinds: Kinds = DEFAULT) -> bool:
    try:
        reading = decode_reading(event.body, kinds)
    except BadRecord:
        return False
    return (reading.sensor, reading.at) == (alert.sensor, alert.at)
