"""Validates and filters readings with Spark expressions, a whole column at a time.

Nearly all readings are valid, and most of the valid ones are dropped. These common cases are
processed here, in the JVM, by one pass of the JSON parser and a few comparisons. A body that is not
certainly valid is passed on unchanged, and `validate_body` validates it. That costs more per
record, but few records need it. So Spark's plan, which is optimised again for every batch, stays
small, and only the common rules exist twice: as Spark expressions and in Python.

    events -> validate_columns -> select_relevant -> validate_body
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pumphouse.homes.exact_validation import EARLIEST_MS, LATEST_MS, NUMBER_MAX, VALUE_MAX
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds, Quiet, Range
from pumphouse.homes.schema import (
    ALIVE_EVERY,
    CHANGE_MS,
    LOW_BATTERY,
    MODES,
    READING_DDL,
    REGIONS,
    VERSION,
    sensor_number,
)
from pumphouse.homes.trace_text import CHARS_MAX, TRACE
from pumphouse.telemetry.trace_context import DIAGNOSTIC_ID, TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRICT_JSON = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
HOME = "^h[0-9]{6}$"
NUMBERS = ("seq", "at", "value", "since")


def validate_columns(
    events: DataFrame, ahead_max_ms: int | None, late_ms: int, kinds: Kinds = DEFAULT
) -> DataFrame:
    """Adds the columns `valid` (certainly valid) and `why` (why it is kept; null: it is dropped).

    Needs the columns body, partition, sequenceNumber, enqueuedTime and properties.
    """
    texts = events.select(
        "body",
        "partition",
        f.col("sequenceNumber").alias("sequence"),
        f.unix_millis("enqueuedTime").alias("enqueued"),
        f.col("body").cast("string").alias("text"),
        trace_column(),
    )
    parsed = texts.select("*", f.from_json("text", READING_DDL, STRICT_JSON).alias("r"))
    readings = parsed.select("body", "partition", "sequence", "enqueued", "text", TRACE, "r.*")
    valid = f.coalesce(is_valid(kinds) & has_valid_time(ahead_max_ms), f.lit(False))
    validated = readings.select("*", valid.alias("valid"), number().alias("number"))
    # The difference of huge numbers overflows, and then a plain subtraction would fail the query.
    late = f.try_subtract(f.col("enqueued"), f.col("at")) > late_ms
    why = f.when(f.col("valid"), why_kept(kinds)).alias("why")
    return validated.select("*", why, late.alias("late"))


def select_relevant(validated: DataFrame, kinds: Kinds = DEFAULT) -> DataFrame:
    """Readings that are kept, as activities, and unchanged bodies that are not certainly valid."""
    valid = f.col("valid")
    relevant = validated.where(~valid | f.col("why").isNotNull())
    return relevant.select(
        "partition",
        "sequence",
        "enqueued",
        "valid",
        "home",
        f.when(valid, sensor(kinds)).otherwise(0).alias("sensor"),
        *(f.when(valid, f.col(name)).otherwise(0).alias(name) for name in NUMBERS),
        f.when(valid, index_in(MODES, "mode")).otherwise(0).alias("mode"),
        f.when(valid, activity()).otherwise(f.col("body")).alias("body"),
        TRACE,
    )


# -- validity ----------------------------------------------------------------------------------


def is_valid(kinds: Kinds) -> Column:
    """True for nearly all valid readings and for no invalid one; null means false."""
    text = f.col("text")
    # One object and nothing after it; the parser ignores text after the object. Bytes are compared,
    # because counting the characters of every body takes longer.
    before_end = f.octet_length(f.substring_index(text, "}", 1))
    flat = text.startswith("{") & (before_end == f.octet_length(text) - 1)
    # Each other key is compared below, and a comparison with null is null.
    present = f.col("battery").isNotNull()
    in_range = [f.col(name).between(-NUMBER_MAX, NUMBER_MAX) for name in ("seq", "since")]
    in_range += [f.col("value").between(-VALUE_MAX, VALUE_MAX), f.is_valid_utf8(text)]
    in_range += [
        (f.col("sensor") != kind.name) | kind.limits.contains(f.col("value"))
        for kind in kinds.kinds
        if kind.limits != Range()
    ]
    known = [
        f.col("v") == VERSION,
        f.col("sensor").isin(*kinds.names),
        f.col("mode").isin(*MODES),
        f.col("home").rlike(HOME),
        f.col("fault").isNull(),
    ]
    return reduce(and_, [flat, present, *known, *in_range])


def has_valid_time(ahead_max_ms: int | None) -> Column:
    possible = f.col("at").between(EARLIEST_MS, LATEST_MS - 1)
    ahead = f.try_subtract(f.col("at"), f.col("enqueued"))
    return possible if ahead_max_ms is None else possible & (ahead <= ahead_max_ms)


# -- relevance --------------------------------------------------------------------------


def why_kept(kinds: Kinds) -> Column:
    """The first reason that applies, as in `schema.why_kept`. Faults are never `valid` here."""
    age = f.col("at") - f.col("since")
    alive = (f.col("seq") + f.col("number")) % ALIVE_EVERY == 0
    return (
        f.when((age >= 0) & (age < CHANGE_MS), "change")
        .when(~is_quiet(kinds), "active")
        .when(f.col("battery") <= LOW_BATTERY, "battery")
        .when(alive, "alive")
    )


def is_quiet(kinds: Kinds) -> Column:
    """As `schema.is_quiet`. Only the kinds that differ from most are compared by name."""
    names, value = defaultdict[Quiet, list[str]](list), f.col("value")
    for kind in kinds.kinds:
        names[kind.quiet].append(kind.name)
    always = names.pop(Quiet(), [])
    *others, most = sorted(names, key=lambda quiet: len(names[quiet])) or [Quiet()]
    still: Column = most.contains(value)
    for quiet in others:
        still = f.when(f.col("sensor").isin(*names[quiet]), quiet.contains(value)).otherwise(still)
    return f.col("sensor").isin(*always) | still


def trace_column() -> Column:
    """The text of an event, out of its column `properties`; null for nearly all events."""
    properties = f.col("properties")
    parent = f.coalesce(properties[TRACEPARENT], properties[DIAGNOSTIC_ID])
    text = f.concat_ws(" ", parent, properties[TRACESTATE])
    is_traced = parent.isNotNull() & (f.length(text) <= CHARS_MAX)
    # Without properties, which is usual, nothing else is evaluated.
    return f.when(f.size(properties) > 0, f.when(is_traced, text)).alias(TRACE)


def number() -> Column:
    """The number in the id of the home; null if there is none."""
    return f.col("home").substr(2, 6).try_cast("int")


def sensor(kinds: Kinds) -> Column:
    """The number of the sensor, as `schema.sensor_number`."""
    offsets = [sensor_number(0, kind) for kind in range(len(kinds.names))]
    index = index_in(kinds.names, "sensor")
    if offsets != list(range(len(offsets))):
        index = f.element_at(f.array(*map(f.lit, offsets)), index + 1)
    return f.col("number") * 8 + index


def index_in(values: tuple[str, ...], column: str) -> Column:
    return f.array_position(f.array(*map(f.lit, values)), f.col(column)).cast("int") - 1


def activity() -> Column:
    """The text of the reading with two more keys; the rest is unchanged."""
    text = f.col("text")
    region = f.element_at(f.array(*map(f.lit, REGIONS)), f.col("number") % len(REGIONS) + 1)
    end = f.concat(f.lit(',"why":"'), f.col("why"), f.lit('","region":"'), region, f.lit('"}'))
    return f.concat(text.substr(f.lit(1), f.length(text) - 1), end).cast("binary")
