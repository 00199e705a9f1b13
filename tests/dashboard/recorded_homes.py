"""Homes whose events are in a hub and in a database, as the sensors and the stages leave them."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import EARLIEST, Event
from pumphouse.homes.record.database import open_database
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    SENSORS_HUB,
    Activity,
    Alert,
    Reading,
    activity_of,
    encode_activity,
    encode_alert,
    encode_reading,
    home_id,
    home_number,
    region_of,
)
from tests.dashboard.page_client import send
from tests.homes.record.rows import as_tables, reached

PARTITIONS = 4


def reading(home: int, sensor: str, value: float, at: int, seq: int | None = None) -> Reading:
    number = at // 60_000 if seq is None else seq
    return Reading(home_id(home), sensor, number, at, value, at - 7_200_000, "home", 87)


def alert(home: int, at: int, kind: str = "break-in") -> Alert:
    return Alert(home_id(home), kind, "door", at, at - 9000, region_of(home), "Door opened")


def partition_of(home: str) -> str:
    return str(home_number(home) % PARTITIONS)


@dataclass
class RecordedHomes:
    """Sends events to the hubs, and stores those of the stage record in a database."""

    connection: str
    path: Path
    sent: dict[tuple[str, str], int] = field(default_factory=dict)  # by hub and partition

    async def send_readings(self, *readings: Reading) -> list[Activity]:
        """Send readings; returns their activities, without those that sift drops."""
        for each in readings:
            event = Event(encode_reading(each), partition_key=each.home)
            await send(self.connection, SENSORS_HUB, [event])
        return [kept for kept in map(activity_of, readings) if kept is not None]

    async def send(
        self, *records: Activity | Alert, recorded: bool, trace: str | None = None
    ) -> None:
        """Send activities and alerts to their hubs, and store them if they are `recorded`."""
        for record in records:
            if isinstance(record, Alert):
                hub, home, body = ALERTS_HUB, record.home, encode_alert(record)
            else:
                hub, home, body = ACTIVITY_HUB, record.reading.home, encode_activity(record)
            partition = partition_of(home)
            await send(self.connection, hub, [Event(body)], partition)
            first = self.sent.get((hub, partition), 0)
            self.sent[hub, partition] = first + 1
            if recorded:
                await asyncio.to_thread(self.store, record, first, partition, trace)

    def store(
        self, record: Activity | Alert, first: int, partition: str, trace: str | None = None
    ) -> None:
        if isinstance(record, Alert):
            batch = as_tables(alerts=[record], first=first, partition=partition)
        else:
            batch = as_tables([record], first=first, partition=partition)
        database = open_database(str(self.path))
        at_ms, traces = (record.at, {record.id: trace}) if isinstance(record, Alert) else (None, {})
        known = {alert_id: text for alert_id, text in traces.items() if text is not None}
        database.store(batch, reached(batch), at_ms, known)
        database.close()

    def query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """A query of the database that does not use the code of the page."""
        with sqlite3.connect(self.path) as database:
            return database.execute(query, values).fetchall()

    def change(self, statement: str, *values: Any) -> None:
        with sqlite3.connect(self.path) as database:
            database.execute(statement, values)

    async def events(self, hub: str) -> list[Event]:
        """All events of a hub."""
        collected: list[Event] = []
        async with NativeClient(self.connection, hub) as client:
            for name in (await client.properties()).partitions:
                properties = await client.partition_properties(name)
                reader = await client.reader(ReaderOptions(name, "$Default", EARLIEST))
                count = properties.last_sequence + 1
                mine: list[Event] = []
                while len(mine) < count:
                    mine += await reader.receive(count, 5.0)
                collected += mine
        return collected
