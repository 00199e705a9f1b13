"""Encodes columns of readings into records ready to send: JSON bodies in the bytes of a batch.

One table of bytes holds a whole batch, one row per reading, with every field at its maximum width.
Digits come from tables of four at a time. Unused bytes of a field are marked, and removed from all
rows at once at the end. The bodies equal those of `schema.encode_reading` byte for byte.

    ReadingColumns -> pack_records -> PackedRecords: | section head | key | head | body | ...
                      ^^^^^^^^^^^^ this module

Each body is surrounded by the bytes that a batch of the client needs, so that the records of a
partition are sent without a copy. Rows that fit no template (faults, malformed) are inserted after.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pumphouse.client.base import batch_section, encode_event
from pumphouse.events import Event
from pumphouse.homes import schema
from pumphouse.homes.schema import MODES, SENSORS, Reading, encode_reading, home_id
from pumphouse.homes.simulator import reading_faults
from pumphouse.homes.simulator.hashed_random import Flags, Ints, Longs, UInt8s

DROP: Final = b"\x01"  # a byte that neither JSON nor the bytes around it have
VALUE_MAX = 999
CHUNK = 16_384  # rows of a table: a few megabytes, which stay in the processor's cache
LATE, DUPLICATE, MALFORMED = 1, 2, 4  # bits of `ReadingColumns.mark`


@dataclass(frozen=True, slots=True)
class ReadingColumns:
    """Readings, by the column."""

    home: Ints
    sensor: Ints  # place in schema.SENSORS
    seq: Longs
    at: Longs
    value: Ints
    since: Longs
    mode: Ints  # place in schema.MODES
    battery: Ints
    fault: Ints  # 0, or the place in reading_faults.FAULTS after it
    mark: Ints  # what befell it on the way

    def __len__(self) -> int:
        return len(self.home)

    def take(self, which: npt.NDArray[np.intp] | Flags | Ints | slice) -> ReadingColumns:
        return ReadingColumns(*(getattr(self, f.name)[which] for f in fields(self)))

    def reading(self, i: int) -> Reading:
        """One of them as the schema has it; what befell it on the way is not seen."""
        fault = int(self.fault[i])
        return Reading(
            home=home_id(int(self.home[i])),
            sensor=SENSORS[self.sensor[i]],
            seq=int(self.seq[i]),
            at=int(self.at[i]),
            value=None if fault else int(self.value[i]),
            since=int(self.since[i]),
            mode=MODES[self.mode[i]],
            battery=int(self.battery[i]),
            fault=reading_faults.FAULTS[fault - 1] if fault else None,
        )


def chained(parts: list[ReadingColumns]) -> ReadingColumns:
    columns = [[getattr(part, f.name) for part in parts] for f in fields(ReadingColumns)]
    return ReadingColumns(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Bodies in the bytes around them, one after the other."""

    data: bytes
    starts: Longs  # of each record, and the end of the last

    def __len__(self) -> int:
        return len(self.starts) - 1

    def body(self, i: int) -> bytes:
        return self.data[self.starts[i] + record_template().head : self.starts[i + 1]]

    def records(self, first: int, last: int) -> bytes:
        """A run of records, to be sent in one batch."""
        return self.data[self.starts[first] : self.starts[last]]


# -- the record_template


@dataclass(frozen=True, slots=True)
class RecordTemplate:
    """The table's row for each sensor, and where in it each field stands."""

    rows: UInt8s  # sensors x width
    width: int
    head: int  # bytes before the body
    message_size: int  # where the message's length stands
    body_size: int  # and the body's
    keys: tuple[int, int]  # the home's number, in the key and in the body
    seq: int
    at: int
    value: int
    since: int
    mode: int
    battery: int
    spare: Ints  # dropped bytes of each sensor's name


@cache
def record_template() -> RecordTemplate:
    """Cut from what the client and the schema write for one reading, so that it fits both."""
    body = _widest()
    row = batch_section(encode_event(Event(body, partition_key=home_id(0))))
    head, key = row.index(body), row.index(home_id(0).encode()) + 1
    names = max(map(len, SENSORS))
    rows = [row.replace(b"SENSOR", s.encode() + DROP * (names - len(s))) for s in SENSORS]
    at = {name: head + body.index(b'"%s":' % name.encode()) + len(name) + 3 for name in FIELDS}
    return RecordTemplate(
        rows=np.array([list(r) for r in rows], np.uint8),
        width=len(row),
        head=head,
        message_size=4,
        body_size=head - 1,
        keys=(key, at["home"] + 2),
        seq=at["seq"],
        at=at["at"],
        value=at["value"],
        since=at["since"],
        mode=at["mode"] + 1,
        battery=at["battery"],
        spare=np.array([names - len(s) for s in SENSORS], np.int32),
    )


FIELDS: Final = ("home", "seq", "at", "value", "since", "mode", "battery")


def _widest() -> bytes:
    body = encode_reading(Reading(home_id(0), "SENSOR", 10**7, 10**12, 100, 10**12, "asleep", 100))
    assert len(body) < 200, "so that both lengths fit into one byte, faults included"
    return body


def _words(texts: list[bytes], dtype: str) -> npt.NDArray[np.unsignedinteger]:
    return np.frombuffer(b"".join(texts), dtype)


def _padded(number: int, after: bytes) -> bytes:
    return (b"%d" % number).ljust(3, DROP) + after


_DIGITS4: Final = _words([b"%04d" % n for n in range(10_000)], "<u4")
_DIGITS2: Final = _words([b"%02d" % n for n in range(100)], "<u2")
_VALUES: Final = _words([_padded(n, b",") for n in range(VALUE_MAX + 1)], "<u4")
_BATTERIES: Final = _words([_padded(n, b"}") for n in range(101)], "<u4")
_MODES: Final = _words([m.encode().ljust(6, DROP) + b'",' for m in MODES], "<u8")
_MODE_SPARE: Final = np.array([6 - len(m) for m in MODES], np.int32)
_SPARE: Final = np.array([3 - len(str(n)) for n in range(VALUE_MAX + 1)], np.int32)


# -- packing


def pack_records(columns: ReadingColumns) -> PackedRecords:
    """The bytes of all readings, in their order."""
    if len(columns) <= CHUNK:
        return _pack(columns)
    cuts = range(0, len(columns), CHUNK)
    parts = [_pack(columns.take(slice(cut, cut + CHUNK))) for cut in cuts]
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    return PackedRecords(b"".join(part.data for part in parts), _starts(sizes))


def _pack(columns: ReadingColumns) -> PackedRecords:
    shape = record_template()
    table = shape.rows.take(columns.sensor, axis=0)
    sizes = _sizes(columns, shape)
    _fill(table, columns, sizes, shape)
    packed = PackedRecords(table.tobytes().replace(DROP, b""), _starts(sizes))
    odd = np.flatnonzero((columns.fault > 0) | (columns.mark & MALFORMED > 0))
    return _patched(packed, columns, odd) if len(odd) else packed


def _starts(sizes: Longs | Ints) -> Longs:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _sizes(columns: ReadingColumns, shape: RecordTemplate) -> Ints:
    spare = shape.spare[columns.sensor] + _MODE_SPARE[columns.mode]
    spare += _SPARE[columns.value]
    spare += _SPARE[columns.battery]
    out: Ints = shape.width - spare
    return out


def _fill(table: UInt8s, columns: ReadingColumns, sizes: Ints, shape: RecordTemplate) -> None:
    high, low = _DIGITS2[columns.home // 10_000], _DIGITS4[columns.home % 10_000]
    for place in shape.keys:
        _put(table, place, high)
        _put(table, place + 2, low)
    _put(table, shape.message_size, (sizes - 5).astype(np.uint8))
    _put(table, shape.body_size, (sizes - shape.head).astype(np.uint8))
    _put_long(table, shape.seq - 5, columns.seq)
    _put_long(table, shape.at, columns.at)
    _put_long(table, shape.since, columns.since)
    _put(table, shape.value, _VALUES[columns.value])
    _put(table, shape.mode, _MODES[columns.mode])
    _put(table, shape.battery, _BATTERIES[columns.battery])


def _put(table: UInt8s, place: int, words: npt.NDArray[np.unsignedinteger]) -> None:
    """A word into each row. The rows are seen as words there, wherever that is in memory."""
    count, width = table.shape
    column = np.ndarray((count,), words.dtype, table.data, place, (width,))
    column[:] = words


def _put_long(table: UInt8s, place: int, numbers: Longs) -> None:
    """The last thirteen digits at a place; of a smaller number only the last eight."""
    high = numbers // 100_000_000
    low = (numbers - high * 100_000_000).astype(np.int32)
    middle = low // 10_000
    _put(table, place + 5, _DIGITS4[middle])
    _put(table, place + 9, _DIGITS4[low - middle * 10_000])
    if high[:1].any():
        top = high.astype(np.int32)
        first = top // 10_000
        _put(table, place, (first + ord("0")).astype(np.uint8))
        _put(table, place + 1, _DIGITS4[top - first * 10_000])


def _patched(
    packed: PackedRecords, columns: ReadingColumns, odd: npt.NDArray[np.intp]
) -> PackedRecords:
    """The same with the bodies of some rows written one by one."""
    parts, sizes, last = [], np.diff(packed.starts), 0
    for i in odd:
        record = _record(columns, int(i))
        parts += [packed.data[packed.starts[last] : packed.starts[i]], record]
        sizes[i] = len(record)
        last = int(i) + 1
    parts.append(packed.data[packed.starts[last] :])
    return PackedRecords(b"".join(parts), _starts(sizes))


def _record(columns: ReadingColumns, i: int) -> bytes:
    reading = columns.reading(i)
    body = encode_reading(reading)
    if columns.mark[i] & MALFORMED:
        body = reading_faults.broken(
            body, reading.seq + int(columns.home[i]) + int(columns.sensor[i])
        )
    return batch_section(encode_event(Event(body, partition_key=reading.home)))


def check_limits(minute: int) -> None:
    """The widths above hold from 2001 to 2159."""
    if not 10**7 <= minute < 10**8 or not 10**12 <= minute * schema.MINUTE_MS < 10**13:
        raise ValueError(f"minute {minute} is not within the years that a body can hold")
