"""The second look at a body that is not plainly right: what is wrong with it, or what it is.

validate_body: body, when it arrived -> ValidationResult
^^^^^^^^^^^ this module, by the reference in schema.py
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.errors import BadRecord
from pumphouse.homes.schema import (
    KINDS,
    REASONS,
    Reading,
    activity_of,
    decode_reading,
    encode_activity,
    home_number,
)

# Beside the reasons of the schema: only here it is known when a record arrived.
BAD_TIME = "bad-time"
ALL_REASONS = (*REASONS, BAD_TIME)
EARLIEST_MS = 946_684_800_000  # the year 2000: a clock that lost its battery says 1970
LATEST_MS = 7_258_118_400_000  # the year 2200, whatever the clock that it is compared with
NUMBER_MAX = 2**53 - 1  # what JSON carries safely; sums and differences then fit into 64 bits
VALUE_MAX = 1e12


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """`complaint` says what is wrong. A reading without one that is not kept has no `body`."""

    complaint: str | None = None
    home: str = ""
    sensor: int = 0
    seq: int = 0
    body: bytes | None = None
    late: bool = False


def validate_body(
    body: bytes, enqueued_ms: int, ahead_max_ms: int | None, late_ms: int
) -> ValidationResult:
    """What a body is worth after all."""
    try:
        reading = decode_reading(body)
        check_numbers(reading, enqueued_ms, ahead_max_ms)
    except BadRecord as bad:
        return ValidationResult(complaint=str(bad))
    kept = activity_of(reading)
    return ValidationResult(
        home=reading.home,
        sensor=home_number(reading.home) * 8 + KINDS.index(reading.sensor),
        seq=reading.seq,
        body=None if kept is None else encode_activity(kept),
        late=enqueued_ms - reading.at > late_ms,
    )


def check_numbers(reading: Reading, enqueued_ms: int, ahead_max_ms: int | None) -> None:
    if max(map(abs, (reading.seq, reading.at, reading.since, reading.battery))) > NUMBER_MAX:
        raise BadRecord("wrong-type", "a number is too large")
    if reading.value is not None and abs(reading.value) > VALUE_MAX:
        raise BadRecord("wrong-type", "value is too large")
    if reading.at < EARLIEST_MS:
        raise BadRecord(BAD_TIME, "at is before the year 2000")
    if reading.at >= LATEST_MS:
        raise BadRecord(BAD_TIME, "at is after the year 2199")
    if ahead_max_ms is not None and reading.at - enqueued_ms > ahead_max_ms:
        raise BadRecord(BAD_TIME, f"at is more than {ahead_max_ms / 1000:g} s ahead of us")
