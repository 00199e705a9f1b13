"""Validates and filters readings with Spark expressions, a whole column at a time.

Nearly all readings are valid, and most of them do not matter. Both cases are decided here, in the
JVM, by one pass of the JSON parser and a few comparisons. A body that is not certainly valid goes
on unchanged, and `validate_body` decides it one record at a time: that costs more, but there are
few of them. So Spark's plan, which is optimised again for every batch, stays small, and only the
common rules exist in two languages.

    events -> validate_columns -> select_relevant -> validate_body
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pumphouse.homes.exact_validation import EARLIEST_MS, LATEST_MS, NUMBER_MAX, VALUE_MAX
from pumphouse.homes.schema import (
    ALIVE_EVERY,
    CHANGE_MS,
    CLIMATE,
    KINDS,
    LOW_BATTERY,
    MODES,
    READING_DDL,
    REGIONS,
    SMOKE_ALARM_PPM,
    VERSION,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRICT_JSON = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
HOME = "^h[0-9]{6}$"
NEEDED = ("v", "home", "sensor", "seq", "at", "value", "since", "mode", "battery")
SENSORS_MAX = 8  # kinds of sensors that a home may have: number * 8 + kind is a sensor


def validate_columns(events: DataFrame, ahead_max_ms: int | None, late_ms: int) -> DataFrame:
    """Each event, whether it is plainly `right`, and if so `why` it is kept (null: it is not).

    Needs the columns body, partition, sequenceNumber and enqueuedTime.
    """
    said = events.select(
        "body",
        "partition",
        f.col("sequenceNumber").alias("sequence"),
        f.unix_millis("enqueuedTime").alias("enqueued"),
        f.col("body").cast("string").alias("text"),
    )
    parsed = said.select("*", f.from_json("text", READING_DDL, STRICT_JSON).alias("r"))
    told = parsed.select("body", "partition", "sequence", "enqueued", "text", "r.*")
    right = f.coalesce(looks_right() & in_time(ahead_max_ms), f.lit(False))
    judged = told.select("*", right.alias("right"), number().alias("number"))
    # Of a number that is absurd the difference may be none: that fails a query.
    late = f.try_subtract(f.col("enqueued"), f.col("at")) > late_ms
    return judged.select("*", f.when(f.col("right"), why_kept()).alias("why"), late.alias("late"))


def select_relevant(glanced: DataFrame) -> DataFrame:
    """What is kept, as an activity; and what is not plainly right, as it came."""
    matters = glanced.where(~f.col("right") | f.col("why").isNotNull())
    right = f.col("right")
    return matters.select(
        "partition",
        "sequence",
        "enqueued",
        "right",
        "home",
        f.when(right, f.col("number") * SENSORS_MAX + kind()).otherwise(0).alias("sensor"),
        f.when(right, f.col("seq")).otherwise(0).alias("seq"),
        f.when(right, activity()).otherwise(f.col("body")).alias("body"),
    )


# -- is it right ----------------------------------------------------------------------------------


def looks_right() -> Column:
    """True of nearly all readings, and of nothing else; null is as good as false."""
    text = f.col("text")
    # One object and nothing behind it: the parser would not mind.
    flat = text.startswith("{") & (f.instr(text, "}") == f.length(text))
    there = [f.col(name).isNotNull() for name in NEEDED]
    sane = [f.col(name).between(-NUMBER_MAX, NUMBER_MAX) for name in ("seq", "since")]
    sane += [f.col("value").between(-VALUE_MAX, VALUE_MAX), f.is_valid_utf8(text)]
    known = [
        f.col("v") == VERSION,
        f.col("sensor").isin(*KINDS),
        f.col("mode").isin(*MODES),
        f.col("home").rlike(HOME),
        f.col("fault").isNull(),
    ]
    return reduce(and_, [flat, *there, *known, *sane])


def in_time(ahead_max_ms: int | None) -> Column:
    sane = f.col("at").between(EARLIEST_MS, LATEST_MS - 1)
    ahead = f.try_subtract(f.col("at"), f.col("enqueued"))
    return sane if ahead_max_ms is None else sane & (ahead <= ahead_max_ms)


# -- is it worth keeping --------------------------------------------------------------------------


def why_kept() -> Column:
    """As `schema.why`: the first that is true. A fault is not plainly right."""
    age = f.col("at") - f.col("since")
    alive = (f.col("seq") + f.col("number")) % ALIVE_EVERY == 0
    return (
        f.when((age >= 0) & (age < CHANGE_MS), "change")
        .when(~quiet(), "active")
        .when(f.col("battery") <= LOW_BATTERY, "battery")
        .when(alive, "alive")
    )


def quiet() -> Column:
    sensor, value = f.col("sensor"), f.col("value")
    still = f.when(sensor == "smoke", value < SMOKE_ALARM_PPM).otherwise(value == 0)
    return sensor.isin(*CLIMATE) | still


def number() -> Column:
    return f.col("home").substr(2, 6).try_cast("int")


def kind() -> Column:
    return f.array_position(f.array(*map(f.lit, KINDS)), f.col("sensor")).cast("int") - 1


def activity() -> Column:
    """The reading's own text with two more keys: nothing in it is written anew."""
    text = f.col("text")
    region = f.element_at(f.array(*map(f.lit, REGIONS)), f.col("number") % len(REGIONS) + 1)
    more = f.concat(f.lit(',"why":"'), f.col("why"), f.lit('","region":"'), region, f.lit('"}'))
    return f.concat(text.substr(f.lit(1), f.length(text) - 1), more).cast("binary")
