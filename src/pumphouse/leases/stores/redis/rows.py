"""Values of a Redis store as rows, and rows as values.

Other programs can write to the server: a value that no correct writer has written raises a
StoreError that names the row.

    hash -> read_row, read_checkpoint, read_members -> Ownership, Checkpoint, Member
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import STATES, Checkpoint, Group, Member, Ownership
from pumphouse.leases.stores.limits import (
    ENQUEUED_MS_MAX,
    SEQUENCE_MAX,
    VALUE_BYTES_MAX,
    checked_deadline,
    checked_epoch,
    checked_integer,
    checked_offset,
    invalid,
    shown,
    usable_rate,
)
from pumphouse.leases.stores.redis.scripts import digits

# A position before the first event.
SEQUENCE_MIN = -1
MAX_PARTITIONS_MAX = 2**31 - 1
US = 1_000_000
# The words before the JSON have up to 80 bytes.
JSON_BYTES_MAX = VALUE_BYTES_MAX - 80


def row_value(row: Ownership) -> str:
    """The JSON of a row; OptionError if it could not be read again."""
    where = f"the ownership row of partition {shown(row.partition)}"
    value = _text(
        where,
        owner=row.owner,
        epoch=row.epoch,
        successor=row.successor,
        deadline_s=row.deadline_s,
        rate=row.rate,
        pinned=row.pinned,
        state=row.state,
    )
    try:
        read_row(row.partition, f"e 0 {value}", 0)
    except StoreError as error:
        raise OptionError(f"a row cannot be stored: {error}") from None
    return value


def checkpoint_values(checkpoint: Checkpoint, etag: str) -> tuple[str, str, str, str]:
    """The words of a checkpoint's value, the JSON last."""
    where = f"the checkpoint of partition {shown(checkpoint.partition)}"
    value = _text(
        where,
        epoch=checkpoint.epoch,
        sequence=checkpoint.sequence,
        offset=checkpoint.offset,
        enqueued_ms=checkpoint.enqueued_ms,
    )
    try:
        read_checkpoint(checkpoint.group, checkpoint.partition, f"e 0 - {value}")
    except StoreError as error:
        raise OptionError(f"a checkpoint cannot be stored: {error}") from None
    # Sequence numbers begin at -1.
    sequence = None if checkpoint.sequence is None else checkpoint.sequence - SEQUENCE_MIN
    return etag, digits(checkpoint.epoch), digits(sequence), value


def _text(where: str, **values: object) -> str:
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except ValueError as error:
        raise OptionError(f"{where} cannot be stored: {error}") from None
    if size > JSON_BYTES_MAX:
        raise OptionError(f"{where} cannot be stored: {JSON_BYTES_MAX} bytes are the most")
    return text


def read_row(partition: str, value: str, now_us: float) -> Ownership:
    where = f"the ownership row of partition {shown(partition)}"
    etag, written_us, values = _words(value, 3, where)
    age_s = max(0.0, (now_us - _number(written_us, where)) / US)  # the clock may be set back
    left_s = _optional_number(values, "deadline_s", where)
    state = _string(values, "state", where)
    return Ownership(
        partition,
        _string(values, "owner", where),
        checked_epoch(_integer(values, "epoch", where), where),
        etag,
        age_s,
        _string(values, "successor", where),
        checked_deadline(None if left_s is None else left_s - age_s, where),
        usable_rate(_optional_number(values, "rate", where)),
        values.get("pinned") is True,
        # A state of a later Pumphouse reads as none.
        state if state in STATES else "",
    )


def read_checkpoint(group: Group, partition: str, value: str) -> Checkpoint:
    where = f"the checkpoint of partition {shown(partition)}"
    etag, _, _, values = _words(value, 4, where)
    sequence = offset = enqueued_ms = None
    if values.get("sequence") is not None:
        sequence = _integer(values, "sequence", where)
        checked_integer(sequence, SEQUENCE_MIN, SEQUENCE_MAX, "sequence number", where)
    if values.get("offset") is not None:
        offset = checked_offset(_string(values, "offset", where), where)
    if values.get("enqueued_ms") is not None:
        enqueued_ms = _integer(values, "enqueued_ms", where)
        checked_integer(enqueued_ms, 0, ENQUEUED_MS_MAX, "enqueued time", where)
    epoch = checked_epoch(_integer(values, "epoch", where), where)
    return Checkpoint(group, partition, sequence, offset, epoch, etag, enqueued_ms)


def read_members(
    beats: Sequence[tuple[str, str]], limits: Mapping[str, str], now_us: float
) -> tuple[Member, ...]:
    return tuple(
        Member(
            name,
            max(0.0, (now_us - _number(written_us, f"the member {shown(name)}")) / US),
            _max_partitions(name, limits.get(name)),
        )
        for name, written_us in beats
    )


def _max_partitions(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    where = f"the member {shown(name)}"
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise invalid(where, "max_partitions", text, "it must be a whole number")
    return checked_integer(int(text), 1, MAX_PARTITIONS_MAX, "max_partitions", where)


def pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    """The pairs of a hash or sorted set, which the protocol sends as one list."""
    texts = [text(each) for each in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))


def text(value: bytes) -> str:
    """A stored text. Bytes that are not UTF-8 stay visible in errors."""
    return value.decode(errors="backslashreplace")


# -- parts of values ------------------------------------------------------------------------------


def _words(value: str, count: int, where: str) -> list[Any]:
    """The words of a value; the last one is an object of JSON."""
    words: list[Any] = value.split(" ", count - 1)
    try:
        values = json.loads(words[-1]) if len(words) == count else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise invalid(where, "value", value, "no Pumphouse has written it")
    return [*words[:-1], values]


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    raise invalid(where, "time", text, "it must be a number")


def _string(values: Mapping[str, object], name: str, where: str) -> str:
    value = values.get(name)
    if isinstance(value, str):
        return value
    raise invalid(where, name, value, "it must be a text")


def _integer(values: Mapping[str, object], name: str, where: str) -> int:
    value = values.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise invalid(where, name, value, "it must be a whole number")


def _optional_number(values: Mapping[str, object], name: str, where: str) -> float | None:
    value = values.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return None if value is None else float(value)
    raise invalid(where, name, value, "it must be a number")
