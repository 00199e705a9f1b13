"""Validates one body exactly. Used for bodies that validation.py does not recognise as valid.

validate_body: body, time of arrival -> ValidationResult
^^^^^^^^^^^^^ this module, by the reference functions in schema.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pumphouse.errors import BadRecord
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import (
    REASONS,
    Reading,
    activity_of,
    decode_reading,
    encode_activity,
    home_number,
    sensor_number,
)

# This reason is not in the schema, because it depends on the time of arrival.
BAD_TIME = "bad-time"
ALL_REASONS = (*REASONS, BAD_TIME)
EARLIEST_MS = 946_684_800_000  # the year 2000: a clock without a battery starts in 1970
LATEST_MS = 7_258_118_400_000  # the year 2200: the only upper limit if `ahead_max_ms` is None
NUMBER_MAX = 2**53 - 1  # the safe integers of JSON; their sums and differences fit into 64 bits
VALUE_MAX = 1e12


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The `problem` of an invalid body, or the valid reading.

    `body` is the encoded activity; None if the reading is dropped.
    """

    problem: str | None = None
    home: str = ""
    sensor: int = 0
    seq: int = 0
    body: bytes | None = None
    late: bool = False
    reading: Reading | None = field(default=None, compare=False)


def validate_body(
    body: bytes,
    enqueued_ms: int,
    ahead_max_ms: int | None,
    late_ms: int,
    kinds: Kinds = DEFAULT,
) -> ValidationResult:
    """Validate a body by the reference functions of the schema."""
    try:
        reading = decode_reading(body, kinds)
        check_numbers(reading, enqueued_ms, ahead_max_ms)
    except BadRecord as error:
        return ValidationResult(problem=str(error))
    activity = activity_of(reading, kinds)
    return ValidationResult(
        home=reading.home,
        sensor=sensor_number(home_number(reading.home), kinds.names.index(reading.sensor)),
        seq=reading.seq,
        body=None if activity is None else encode_activity(activity),
        late=enqueued_ms - reading.at > late_ms,
        reading=reading,
    )


def check_numbers(reading: Reading, enqueued_ms: int, ahead_max_ms: int | None) -> None:
    """Raise BadRecord for numbers out of range and impossible times."""
    if max(map(abs, (reading.seq, reading.at, reading.since, reading.battery))) > NUMBER_MAX:
        raise BadRecord("wrong-type", f"seq, at, since or battery is beyond {NUMBER_MAX}")
    if reading.value is not None and abs(reading.value) > VALUE_MAX:
        raise BadRecord("wrong-type", f"value is beyond {VALUE_MAX:g}")
    if reading.at < EARLIEST_MS:
        raise BadRecord(BAD_TIME, "at is before the year 2000")
    if reading.at >= LATEST_MS:
        raise BadRecord(BAD_TIME, "at is after the year 2199")
    if ahead_max_ms is not None and reading.at - enqueued_ms > ahead_max_ms:
        raise BadRecord(BAD_TIME, f"at is more than {ahead_max_ms / 1000:g} s ahead of its arrival")
