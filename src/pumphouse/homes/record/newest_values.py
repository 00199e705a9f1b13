"""Two tables that the page reads at its start, kept in the transaction that stores activities.

* `sensor_minutes`: the number of activities of each minute and kind of sensor.
* `sensor_values`: the newest activity of each sensor of each home, which is its current value.

Both are derived from the table `activity`. A database that an earlier version has written gets them
when it is opened: they are then filled from all its activities.

    staged rows -> add_to_sensor_minutes, set_sensor_values -> sensor_minutes, sensor_values
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Final

from pumphouse.homes.record.sums import start_of
from pumphouse.homes.schema import ACTIVITY_HUB, MINUTE_MS

SENSOR_MINUTES: Final = "sensor_minutes"
SENSOR_VALUES: Final = "sensor_values"
VALUE_COLUMNS: Final = ("home", "sensor", "at", "since", "value", "mode", "battery", "fault")

CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {SENSOR_MINUTES} (minute BIGINT NOT NULL, sensor TEXT NOT NULL,"
    " activities BIGINT NOT NULL, PRIMARY KEY (minute, sensor))",
    f"CREATE TABLE IF NOT EXISTS {SENSOR_VALUES} (home TEXT NOT NULL, sensor TEXT NOT NULL,"
    " at BIGINT NOT NULL, since BIGINT, value DOUBLE PRECISION, mode TEXT, battery INTEGER,"
    " fault TEXT, PRIMARY KEY (home, sensor))",
)


def add_to_sensor_minutes(rows: str, where: str = "true") -> str:
    """The statement that counts the rows of a table."""
    return (
        f"INSERT INTO {SENSOR_MINUTES} (minute, sensor, activities)"
        f" SELECT {start_of('at', MINUTE_MS)}, sensor, count(*)"
        f" FROM {rows} WHERE {where} GROUP BY 1, 2"
        " ON CONFLICT (minute, sensor) DO UPDATE"
        f" SET activities = {SENSOR_MINUTES}.activities + excluded.activities"
    )


def set_sensor_values(rows: str, where: str = "true") -> str:
    """The statement that keeps the newest row of each sensor of each home."""
    names = ", ".join(VALUE_COLUMNS)
    updates = ", ".join(f"{name} = excluded.{name}" for name in VALUE_COLUMNS[2:])
    newest_first = "PARTITION BY home, sensor ORDER BY at DESC, seq DESC"
    return (
        f"INSERT INTO {SENSOR_VALUES} ({names}) SELECT {names} FROM"
        f" (SELECT {names}, row_number() OVER ({newest_first}) AS age_rank"
        f" FROM {rows} WHERE {where}) ranked WHERE age_rank = 1"
        f" ON CONFLICT (home, sensor) DO UPDATE SET {updates}"
        f" WHERE excluded.at >= {SENSOR_VALUES}.at"
    )


def is_empty(table: str) -> str:
    return f"NOT EXISTS (SELECT 1 FROM {table})"


# For a database of an earlier version. In any other, both statements change nothing.
FILL: Final = (
    add_to_sensor_minutes(ACTIVITY_HUB, is_empty(SENSOR_MINUTES)),
    set_sensor_values(ACTIVITY_HUB, is_empty(SENSOR_VALUES)),
)
