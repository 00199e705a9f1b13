"""Limits of stored values: what a row of a correct writer never exceeds.

Blobs and lease files can be written by other programs, by hand, or by an attacker with access to
them. A value beyond these limits is not used: reading raises a StoreError that names the blob or
row. Values that official SDKs are known to write are not errors (see blob/rows.py).

    stored value -> checked_... -> Ownership, Checkpoint, Member
                    ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import math

from pumphouse.errors import StoreError

# An epoch rises by one per change of owner. AMQP carries it as a signed 64-bit number; half of that
# range leaves room to rise.
EPOCH_MAX = 2**62
# Sequence numbers are signed 64-bit numbers in AMQP.
SEQUENCE_MAX = 2**63 - 1
# The end of the year 9999: a later time has no date.
ENQUEUED_MS_MAX = 253_402_300_799_999
# Events per second. Sums of such rates stay finite.
RATE_MAX = 1e15
# A hand-over takes seconds. A later deadline would block a partition, or overflow a timer.
DEADLINE_S_MAX = 7 * 24 * 3600.0
# An offset of a geo-replicated hub has about 40 characters.
OFFSET_CHARS_MAX = 1024
# A name of a host, an etag or a state in a database that other programs can write to. Official SDKs
# name hosts by 36 characters.
NAME_CHARS_MAX = 1024
# A row or checkpoint in a Redis server: two names and numbers, of six bytes for each character.
VALUE_BYTES_MAX = 16_384
# A hub has at most 2,000 partitions, and each has up to three blobs or rows.
ROWS_MAX = 100_000
# Characters of a value that an error shows.
SHOWN_MAX = 60


def shown(value: object) -> str:
    """A stored value in an error: short, and without control characters."""
    if not isinstance(value, str | bytes):
        return printable(repr(value)[:SHOWN_MAX])
    return ascii(value[:SHOWN_MAX]) + ("..." if len(value) > SHOWN_MAX else "")


def printable(text: str) -> str:
    """The text with escapes in place of control characters and of what is not ASCII."""
    return ascii(text)[1:-1]


def invalid(where: str, field: str, value: object, expected: str) -> StoreError:
    """The error for a value that no correct writer has written."""
    return StoreError(
        f"{where} has the {field} {shown(value)}, but {expected}; correct or remove it"
    )


def checked_epoch(epoch: int, where: str) -> int:
    return checked_integer(epoch, 0, EPOCH_MAX, "epoch", where)


def checked_integer(number: int, lowest: int, highest: int, field: str, where: str) -> int:
    if lowest <= number <= highest:
        return number
    raise invalid(where, field, number, f"it must be a whole number from {lowest} to {highest}")


def checked_offset(offset: str | None, where: str) -> str | None:
    if offset is None or len(offset) <= OFFSET_CHARS_MAX:
        return offset
    raise invalid(where, "offset", offset, f"{OFFSET_CHARS_MAX} characters are the most")


def checked_name(name: str, field: str, where: str) -> str:
    if len(name) <= NAME_CHARS_MAX:
        return name
    raise invalid(where, field, name, f"{NAME_CHARS_MAX} characters are the most")


def checked_age(age_s: float, where: str) -> float:
    """An age in seconds: 0 for a time ahead, because the clock of the server may be set back."""
    if math.isfinite(age_s):
        return max(0.0, age_s)
    raise invalid(where, "age", age_s, "it must be a finite number of seconds")


def checked_deadline(deadline_s: float | None, where: str) -> float | None:
    """A deadline in seconds from now. One in the past is valid."""
    if deadline_s is None or (deadline_s <= DEADLINE_S_MAX and math.isfinite(deadline_s)):
        return deadline_s
    expected = f"{DEADLINE_S_MAX:.0f} s from now are the most"
    raise invalid(where, "deadline in seconds", deadline_s, expected)


def usable_rate(rate: float | None) -> float | None:
    """A rate of events; None (unknown) if it is negative or not plausible."""
    return rate if rate is not None and 0 <= rate <= RATE_MAX else None
