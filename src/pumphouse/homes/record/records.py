"""Reads the records back, for the page; and acknowledges and closes alerts.

    database -> Records -> rows -> page
                ^^^^^^^ this module

A `Records` is for one thread at a time. An error of the database is a PumphouseError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.homes.record.alert_states import (
    ALERT_STATES,
    ALERT_TRACES,
    COLUMN_OF,
    STATE_COLUMNS,
    AlertState,
    mark,
    state_of,
)
from pumphouse.homes.record.connections import DatabaseConnection, connect
from pumphouse.homes.record.newest_values import SENSOR_MINUTES, SENSOR_VALUES, VALUE_COLUMNS
from pumphouse.homes.record.recorded import RecordedActivity, RecordedAlert
from pumphouse.homes.record.tables import create_tables, stored_positions
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, HOMES_MAX, Alert, home_id

if TYPE_CHECKING:
    from pumphouse.homes.record.positions import Positions

HOMES_PER_PART: Final = 10_000  # current values are read in parts: a part takes a few MB
ALERT_COLUMNS: Final = ("home", "kind", "sensor", "at", "since", "region", "text")
SELECT_ALERTS = (
    f"SELECT a.id, {', '.join(f'a.{name}' for name in ALERT_COLUMNS)}, a.enqueued,"
    f" {', '.join(f's.{name}' for name in STATE_COLUMNS)}, t.trace"
    f" FROM {ALERTS_HUB} a LEFT JOIN {ALERT_STATES} s ON s.id = a.id"
    f" LEFT JOIN {ALERT_TRACES} t ON t.id = a.id"
)

# The alerts of an AlertHistory.
NEWEST = "WHERE s.closed_at IS NULL OR a.at >= ? ORDER BY a.at DESC, a.id"


class Records:
    """The records of a database."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        with self._errors():
            create_tables(connection)

    def close(self) -> None:
        with suppress(*self._connection.errors):
            self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._connection.errors as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise PumphouseError(f"the database of the records has failed: {reason}") from error

    @contextmanager
    def consistent_reads(self) -> Iterator[None]:
        """Within the block, all queries see the same state of the database."""
        with self._errors():
            self._connection.begin_reading()
        try:
            yield
        finally:
            with suppress(*self._connection.errors):
                self._connection.rollback()

    def _query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._connection.query(query, values)

    # -- the past

    def positions(self) -> Positions:
        """The position after the recorded events, by hub and partition."""
        with self._errors():
            return stored_positions(self._connection)

    def sensor_values(self) -> Iterator[list[tuple[Any, ...]]]:
        """The newest activity of every sensor, in parts; the columns are VALUE_COLUMNS."""
        last = self._query(f"SELECT max(home) FROM {SENSOR_VALUES}")[0][0] or ""
        query = f"SELECT {', '.join(VALUE_COLUMNS)} FROM {SENSOR_VALUES} WHERE home >= ?"
        for first in range(0, HOMES_MAX, HOMES_PER_PART):
            if home_id(first) > last:
                return
            end = first + HOMES_PER_PART
            # Every id of a home is below "i".
            below = home_id(end) if end < HOMES_MAX else "i"
            yield self._query(f"{query} AND home < ?", home_id(first), below)

    def minutes(self, from_ms: int) -> list[tuple[int, str, int]]:
        """The number of activities by minute and sensor, for minutes that begin at `from_ms`."""
        query = f"SELECT minute, sensor, activities FROM {SENSOR_MINUTES} WHERE minute >= ?"
        return [(minute, sensor, count) for minute, sensor, count in self._query(query, from_ms)]

    def activities(self, home: str, from_ms: int, to_ms: int) -> list[RecordedActivity]:
        """The activities of a home in a span of time, in order."""
        names = ", ".join(RecordedActivity.__slots__)
        query = f"SELECT {names} FROM {ACTIVITY_HUB} WHERE home = ? AND at >= ? AND at <= ?"
        rows = self._query(f"{query} ORDER BY at, seq", home, from_ms, to_ms)
        return [RecordedActivity(*row) for row in rows]

    # -- alerts

    def alerts(self, from_ms: int, count_max: int) -> list[RecordedAlert]:
        """The newest alerts that are open, or not older than `from_ms`; oldest first."""
        rows = self._query(f"{SELECT_ALERTS} {NEWEST} LIMIT ?", from_ms, count_max)
        return [recorded_alert(row) for row in reversed(rows)]

    def further_alerts(
        self, from_ms: int, skip: int, count_max: int
    ) -> list[tuple[str, str, int, bool]]:
        """The alerts that follow the newest `skip` ones of `alerts`: id, home, time, and whether it
        is open; oldest first."""
        rows = self._query(
            f"SELECT a.id, a.home, a.at, s.closed_at IS NULL FROM {ALERTS_HUB} a"
            f" LEFT JOIN {ALERT_STATES} s ON s.id = a.id {NEWEST} LIMIT ? OFFSET ?",
            *(from_ms, count_max, skip),
        )
        return [(alert_id, home, at, bool(is_open)) for alert_id, home, at, is_open in rows[::-1]]

    def alert(self, alert_id: str) -> RecordedAlert | None:
        rows = self._query(f"{SELECT_ALERTS} WHERE a.id = ?", alert_id)
        return recorded_alert(rows[0]) if rows else None

    def alert_changes(self, from_ms: int) -> list[tuple[str, AlertState]]:
        """The states that changed at `from_ms` or later, by the id of the alert."""
        names = ", ".join(STATE_COLUMNS)
        rows = self._query(f"SELECT id, {names} FROM {ALERT_STATES} WHERE changed >= ?", from_ms)
        return [(row[0], state_of(row[1:])) for row in rows]

    def alert_state(self, alert_id: str) -> AlertState:
        names = ", ".join(STATE_COLUMNS)
        rows = self._query(f"SELECT {names} FROM {ALERT_STATES} WHERE id = ?", alert_id)
        return state_of(rows[0]) if rows else AlertState()

    def mark(self, alert_id: str, action: str, by: str, at_ms: int) -> AlertState:
        """Acknowledge or close an alert, once; returns its state."""
        if action not in COLUMN_OF:
            raise OptionError(f"unknown action {action!r:.40}: use {' or '.join(COLUMN_OF)}")
        with self._errors():
            self._connection.begin()
            try:
                self._connection.run_many(mark(action), [(alert_id, at_ms, by, at_ms)])
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise
        return self.alert_state(alert_id)


def recorded_alert(row: tuple[Any, ...]) -> RecordedAlert:
    _, home, kind, sensor, at, since, region, text, enqueued, *state, trace = row
    alert = Alert(
        home, kind or "", sensor or "", at, at if since is None else since, region or "", text or ""
    )
    return RecordedAlert(alert, enqueued, state_of(tuple(state)), trace)


def open_records(url: str) -> Records:
    """Open the records for reading. An SQLite file that does not exist yet is an error."""
    return Records(connect(url, create=False))
