"""Encodes columns of readings into records ready to send: JSON bodies in the bytes of a batch.

One table of bytes holds a whole batch, one row per reading, with every field at its maximum width.
Digits are copied from tables, four at a time. Unused bytes of a field are set to DROP, and removed
from all rows at once at the end. The bodies equal those of `schema.encode_reading` byte for byte.

    ReadingColumns -> pack_records -> PackedRecords: | section head | key | head | body | ...
                      ^^^^^^^^^^^^ this module

Before each body are the bytes that the client needs in a batch, so that the records of a partition
are sent without a copy. Rows that do not fit the template (faults, malformed bodies) are encoded
one by one and inserted afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pumphouse.client.base import batch_section, encode_event
from pumphouse.events import Event
from pumphouse.homes.schema import MODES, SENSORS, Reading, encode_reading, home_id
from pumphouse.homes.simulator import reading_faults
from pumphouse.homes.simulator.hashed_random import Flags, Ints, Longs, UInt8s

DROP: Final = b"\x01"  # a byte that occurs neither in the JSON nor in the bytes before it
VALUE_MAX = 999
CHUNK = 16_384  # rows of a table: a few megabytes, which fit into the processor's cache
# Bits of `ReadingColumns.flags`. ALARM: the value of an added sensor is in the range of an alarm.
LATE, DUPLICATE, MALFORMED, ALARM = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class ReadingColumns:
    """Readings as columns."""

    home: Ints
    sensor: Ints  # index in schema.SENSORS, or in HomeSimulator.sensors
    seq: Longs
    at: Longs
    value: Ints
    since: Longs
    mode: Ints  # index in schema.MODES
    battery: Ints
    fault: Ints  # 0, or the index in reading_faults.FAULTS plus 1
    flags: Ints  # LATE, DUPLICATE, MALFORMED, ALARM

    def __len__(self) -> int:
        return len(self.home)

    def take(self, selection: npt.NDArray[np.intp] | Flags | Ints | slice) -> ReadingColumns:
        return ReadingColumns(*(getattr(self, f.name)[selection] for f in fields(self)))

    def reading(self, i: int, sensors: tuple[str, ...] = SENSORS) -> Reading:
        """One reading as a `schema.Reading`, without its flags."""
        fault = int(self.fault[i])
        return Reading(
            home=home_id(int(self.home[i])),
            sensor=sensors[self.sensor[i]],
            seq=int(self.seq[i]),
            at=int(self.at[i]),
            value=None if fault else int(self.value[i]),
            since=int(self.since[i]),
            mode=MODES[self.mode[i]],
            battery=int(self.battery[i]),
            fault=reading_faults.FAULTS[fault - 1] if fault else None,
        )


def concatenated(parts: list[ReadingColumns]) -> ReadingColumns:
    columns = [[getattr(part, f.name) for part in parts] for f in fields(ReadingColumns)]
    return ReadingColumns(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Encoded records of a batch, one after the other."""

    data: bytes
    starts: Longs  # the start of each record, and the end of the last

    def __len__(self) -> int:
        return len(self.starts) - 1

    def body(self, i: int) -> bytes:
        return self.data[self.starts[i] + record_template().head : self.starts[i + 1]]

    def records(self, first: int, last: int) -> bytes:
        """Consecutive records, to be sent in one batch."""
        return self.data[self.starts[first] : self.starts[last]]


# -- the template


@dataclass(frozen=True, slots=True)
class RecordTemplate:
    """The row of the table for each sensor, and the offset of each field in it."""

    rows: UInt8s  # sensors x width
    width: int
    head: int  # bytes before the body
    message_size: int  # the offset of the message's length
    body_size: int  # the offset of the body's length
    keys: tuple[int, int]  # the offsets of the home's number: in the key, in the body
    seq: int
    at: int
    value: int
    since: int
    mode: int
    battery: int
    unused: Ints  # removed bytes of each sensor's name


@cache
def record_template(sensors: tuple[str, ...] = SENSORS) -> RecordTemplate:
    """The template, made from the bytes that the client and the schema write for one reading."""
    name_width = max(map(len, sensors))
    placeholder = b"S" * name_width
    body = _widest_body(placeholder.decode())
    row = batch_section(encode_event(Event(body, partition_key=home_id(0))))
    head, key = row.index(body), row.index(home_id(0).encode()) + 1
    rows = [row.replace(placeholder, s.encode() + DROP * (name_width - len(s))) for s in sensors]
    offsets = {name: head + body.index(b'"%s":' % name.encode()) + len(name) + 3 for name in FIELDS}
    return RecordTemplate(
        rows=np.array([list(r) for r in rows], np.uint8),
        width=len(row),
        head=head,
        message_size=4,
        body_size=head - 1,
        keys=(key, offsets["home"] + 2),
        seq=offsets["seq"],
        at=offsets["at"],
        value=offsets["value"],
        since=offsets["since"],
        mode=offsets["mode"] + 1,
        battery=offsets["battery"],
        unused=np.array([name_width - len(s) for s in sensors], np.int32),
    )


FIELDS: Final = ("home", "seq", "at", "value", "since", "mode", "battery")


def _widest_body(sensor: str) -> bytes:
    body = encode_reading(Reading(home_id(0), sensor, 10**7, 10**12, 100, 10**12, "asleep", 100))
    assert len(body) < 200, "both lengths must fit into one byte, faults included"
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
_MODE_UNUSED: Final = np.array([6 - len(m) for m in MODES], np.int32)
_UNUSED: Final = np.array([3 - len(str(n)) for n in range(VALUE_MAX + 1)], np.int32)


# -- packing


def pack_records(columns: ReadingColumns, sensors: tuple[str, ...] = SENSORS) -> PackedRecords:
    """The records of all readings, in their order."""
    if len(columns) <= CHUNK:
        return _pack(columns, sensors)
    chunk_starts = range(0, len(columns), CHUNK)
    parts = [
        _pack(columns.take(slice(chunk_start, chunk_start + CHUNK)), sensors)
        for chunk_start in chunk_starts
    ]
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    return PackedRecords(b"".join(part.data for part in parts), _starts(sizes))


def _pack(columns: ReadingColumns, sensors: tuple[str, ...]) -> PackedRecords:
    template = record_template(sensors)
    table = template.rows.take(columns.sensor, axis=0)
    sizes = _sizes(columns, template)
    _fill(table, columns, sizes, template)
    packed = PackedRecords(table.tobytes().replace(DROP, b""), _starts(sizes))
    special = np.flatnonzero((columns.fault > 0) | (columns.flags & MALFORMED > 0))
    return _with_special_rows(packed, columns, special, sensors) if len(special) else packed


def _starts(sizes: Longs | Ints) -> Longs:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _sizes(columns: ReadingColumns, template: RecordTemplate) -> Ints:
    unused = template.unused[columns.sensor] + _MODE_UNUSED[columns.mode]
    unused += _UNUSED[columns.value]
    unused += _UNUSED[columns.battery]
    sizes: Ints = template.width - unused
    return sizes


def _fill(table: UInt8s, columns: ReadingColumns, sizes: Ints, template: RecordTemplate) -> None:
    high, low = _DIGITS2[columns.home // 10_000], _DIGITS4[columns.home % 10_000]
    for offset in template.keys:
        _put(table, offset, high)
        _put(table, offset + 2, low)
    # The length of the message is the last of the five bytes of the section head, and does not
    # include them.
    _put(table, template.message_size, (sizes - 5).astype(np.uint8))
    _put(table, template.body_size, (sizes - template.head).astype(np.uint8))
    _put_long(table, template.seq - 5, columns.seq)  # eight digits
    _put_long(table, template.at, columns.at)
    _put_long(table, template.since, columns.since)
    _put(table, template.value, _VALUES[columns.value])
    _put(table, template.mode, _MODES[columns.mode])
    _put(table, template.battery, _BATTERIES[columns.battery])


def _put(table: UInt8s, offset: int, words: npt.NDArray[np.unsignedinteger]) -> None:
    """Write one word into each row at an offset, aligned or not."""
    count, width = table.shape
    column = np.ndarray((count,), words.dtype, table.data, offset, (width,))
    column[:] = words


def _put_long(table: UInt8s, offset: int, numbers: Longs) -> None:
    """Write numbers of thirteen digits at an offset, or numbers of eight digits at `offset + 5`.

    All numbers of a call have the same number of digits.
    """
    high = numbers // 100_000_000
    low = (numbers - high * 100_000_000).astype(np.int32)
    middle = low // 10_000
    _put(table, offset + 5, _DIGITS4[middle])
    _put(table, offset + 9, _DIGITS4[low - middle * 10_000])
    if high[:1].any():
        top = high.astype(np.int32)
        first = top // 10_000
        _put(table, offset, (first + ord("0")).astype(np.uint8))
        _put(table, offset + 1, _DIGITS4[top - first * 10_000])


def _with_special_rows(
    packed: PackedRecords,
    columns: ReadingColumns,
    special: npt.NDArray[np.intp],
    sensors: tuple[str, ...],
) -> PackedRecords:
    """Replace the records of the special rows, each encoded by the client."""
    return with_records(packed, {int(i): _record(columns, int(i), sensors) for i in special})


def with_records(packed: PackedRecords, records: Mapping[int, bytes]) -> PackedRecords:
    """Replace some records; the rows are in order."""
    parts, sizes, last = [], np.diff(packed.starts), 0
    for i, record in records.items():
        parts += [packed.data[packed.starts[last] : packed.starts[i]], record]
        sizes[i] = len(record)
        last = i + 1
    parts.append(packed.data[packed.starts[last] :])
    return PackedRecords(b"".join(parts), _starts(sizes))


def _record(columns: ReadingColumns, i: int, sensors: tuple[str, ...]) -> bytes:
    reading = columns.reading(i, sensors)
    body = encode_reading(reading)
    if columns.flags[i] & MALFORMED:
        body = reading_faults.malformed_body(
            body, reading.seq + int(columns.home[i]) + int(columns.sensor[i])
        )
    return batch_section(encode_event(Event(body, partition_key=reading.home)))
