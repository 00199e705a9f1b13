"""Reads the database of the records: the past at the start, and then what changes.

    database -> RecordsMonitor -> Past, counts per minute, states of alerts -> HomesMonitor
                ^^^^^^^^^^^^^^ this module

All calls run in one thread, one after the other. After an error the database is opened again, and
the page shows the error meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pumphouse.clock import Clock, now_ms
from pumphouse.dashboard.monitors.readiness import Source
from pumphouse.dashboard.views.columns import Columns, columns_of_rows
from pumphouse.dashboard.views.homes import CHART_MINUTES
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.record.recorded import RecordedAlert
from pumphouse.homes.record.records import Records, open_records
from pumphouse.homes.schema import DAY_MS, MINUTE_MS

CALL_S = 60.0  # PostgreSQL and SQLite end a statement by themselves, later
# The states of alerts are read again from this long before the last time: the clocks of machines
# differ, and a transaction becomes visible some time after its start.
OVERLAP_MS = 2 * MINUTE_MS

T = TypeVar("T")
Counts = Mapping[tuple[int, str], int]  # activities by start of the minute and kind of sensor


@dataclass(frozen=True, slots=True)
class Past:
    """What the database contains. It does not contain events from `positions` on."""

    positions: Mapping[str, Mapping[str, int]]
    values: list[Columns] = field(repr=False)
    alerts: list[RecordedAlert] = field(repr=False)
    minutes: Counts = field(repr=False)
    # Older ones: id, home, time and whether it is open.
    counted: list[tuple[str, str, int, bool]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in the database."""

    minutes: Counts = field(repr=False)
    alerts: list[tuple[str, AlertState]]


class RecordsMonitor:
    """The records of one database."""

    def __init__(self, url: str, clock: Clock, kinds: Kinds = DEFAULT) -> None:
        self.clock, self.kinds = clock, kinds
        self.trouble = ""
        self.minutes: Counts | None = None  # None: the database could not be read yet
        self.responded_s: float | None = None  # when it was last read
        self._url = url
        self._records: Records | None = None
        self._thread = ThreadPoolExecutor(1, "pumphouse-records")
        self._changed_ms = 0

    def close(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    async def call(self, work: Callable[[Records], T]) -> T:
        """Call a function with the records, in the thread of the database."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CALL_S):
            return await loop.run_in_executor(self._thread, self._call, work)

    def _call(self, work: Callable[[Records], T]) -> T:
        if self._records is None:
            self._records = open_records(self._url)
        try:
            return work(self._records)
        except BaseException:
            self._close()
            raise

    async def load(self, alerts_max: int, counted_max: int) -> Past:
        """Read the past, with the newest `alerts_max` alerts, and older ones to count."""
        at_ms = now_ms(self.clock)
        past = await self.call(
            partial(
                read_past,
                now=at_ms,
                alerts_max=alerts_max,
                counted_max=counted_max,
                kinds=self.kinds,
            )
        )
        self._update(past.minutes, at_ms)
        return past

    async def poll(self) -> Changes:
        """Read what changed since the last time."""
        at_ms = now_ms(self.clock)
        since_ms = self._changed_ms - OVERLAP_MS
        changes = await self.call(partial(read_changes, now=at_ms, since_ms=since_ms))
        self._update(changes.minutes, at_ms)
        return changes

    def _update(self, minutes: Counts, at_ms: int) -> None:
        self.minutes, self._changed_ms, self.trouble = minutes, at_ms, ""
        self.responded_s = self.clock.monotonic()

    def source(self) -> Source:
        """The database, for the readiness of the page."""
        return Source("database", self.trouble, self.responded_s)


def read_past(
    records: Records, *, now: int, alerts_max: int, counted_max: int, kinds: Kinds = DEFAULT
) -> Past:
    """Read all parts in one transaction, so that they are consistent."""
    with records.consistent_reads():
        return Past(
            records.positions(),
            [columns_of_rows(part, kinds) for part in records.sensor_values()],
            records.alerts(now - DAY_MS, alerts_max),
            minute_counts(records, now),
            records.further_alerts(now - DAY_MS, alerts_max, counted_max),
        )


def read_changes(records: Records, *, now: int, since_ms: int) -> Changes:
    return Changes(minute_counts(records, now), records.alert_changes(since_ms))


def minute_counts(records: Records, now: int) -> Counts:
    first_ms = (now // MINUTE_MS - CHART_MINUTES + 1) * MINUTE_MS
    return {(minute, sensor): count for minute, sensor, count in records.minutes(first_ms)}
