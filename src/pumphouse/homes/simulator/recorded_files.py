"""Reads recorded sensor data from CSV lines and Parquet files.

CSV, Parquet -> read_recording, read_parquet -> recording.py
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

time,sensor,value[,home][,mode][,battery]
2011-06-15T00:06:32,door,OPEN
2011-06-15T00:06:40,temperature,21.5
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final

from pumphouse.errors import BadRecord, OptionError
from pumphouse.homes.simulator.recording import (
    ROWS_MAX,
    Cells,
    Columns,
    Recording,
    RowReader,
    check_kinds,
    is_utf8,
    recording_of,
)

Numbered = tuple[int, Cells]
SPACE: Final = " "  # the delimiter that stands for any number of spaces and tabs
BATCH_ROWS: Final = 50_000


def read_recording(
    lines: Iterable[str],
    kinds: Mapping[str, str] | None = None,
    columns: Columns | None = None,
    delimiter: str = ",",
) -> Recording:
    """Read a recording from CSV. `kinds` maps sensor names of the file to kinds of sensors.

    Errors name the line. Bytes that are not UTF-8 must be surrogate escapes in the lines.
    """
    kinds, columns = kinds or {}, columns or Columns()
    check_kinds(kinds)
    rows = split_lines(lines) if delimiter == SPACE else csv_rows(lines, delimiter)
    filled = (row for row in limited(rows) if any(cell.strip() for cell in row[1]))
    if not columns.has_header:
        reader = RowReader(columns.by_number(), kinds, None)
        return recording_of(reader.read(filled), reader)
    first = next(filled, None)
    if first is None:
        raise BadRecord("line 1", "the file is empty: its first line must be time,sensor,value")
    line, header = first[0], header_names(first[1])
    if not all(is_utf8(name) for name in header):
        raise BadRecord(f"line {line}", "the header is not UTF-8 text: convert the file")
    try:
        reader = RowReader(columns.in_header(header), kinds, len(header))
    except BadRecord as wrong:
        raise BadRecord(f"line {line}", f"the header has {wrong.found}") from None
    return recording_of(reader.read(filled), reader)


def header_names(cells: Cells) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    return [names[0].removeprefix("\ufeff").strip(), *names[1:]]


def csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[Numbered]:
    reader = csv.reader(lines, strict=True, delimiter=delimiter)  # an unclosed quote is an error
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as wrong:
        raise BadRecord(f"line {reader.line_num}", f"not valid CSV: {wrong}") from None


def split_lines(lines: Iterable[str]) -> Iterator[Numbered]:
    for number, line in enumerate(lines, 1):
        yield number, line.split()


def limited(rows: Iterable[Numbered]) -> Iterator[Numbered]:
    for number, cells in rows:
        if number > ROWS_MAX:
            raise BadRecord(f"line {number}", f"more than {ROWS_MAX:,} lines: split the file")
        yield number, cells


# -- Parquet --------------------------------------------------------------------------------------


def read_parquet(
    path: str, kinds: Mapping[str, str] | None = None, columns: Columns | None = None
) -> Recording:
    """Read a recording from a Parquet file. Rows are numbered from 1."""
    kinds, columns = kinds or {}, columns or Columns()
    check_kinds(kinds)
    if not columns.has_header:
        raise OptionError("columns of a Parquet file have names: use --column time=NAME")
    file = open_parquet(path)
    names, read_names = file.schema_arrow.names, columns.read_names()
    try:
        columns.in_header([name.lower() for name in names])
    except BadRecord as wrong:
        raise BadRecord("schema", f"the file has {wrong.found}") from None
    stored = [name for name in names if name.lower() in read_names]
    reader = RowReader(columns.in_header([name.lower() for name in stored]), kinds, len(stored))
    return recording_of(reader.read(limited(parquet_rows(file, stored))), reader)


def open_parquet(path: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise OptionError(
            "Parquet files need pyarrow: pip install 'pumphouse[spark]', or use CSV"
        ) from None
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as wrong:
        raise BadRecord("not valid Parquet", f"{wrong}") from None


def parquet_rows(file: Any, names: list[str]) -> Iterator[Numbered]:
    batches = file.iter_batches(BATCH_ROWS, columns=names)
    columns = ([texts_of(batch.column(name)) for name in names] for batch in batches)
    rows = chain.from_iterable(zip(*texts, strict=True) for texts in columns)
    yield from enumerate(rows, 1)


def texts_of(column: Any) -> list[str]:
    """The values of a column as the texts of a CSV file."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Python's datetime has no nanoseconds.
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return [text_of(value) for value in column.to_pylist()]


def text_of(value: Any) -> str:
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, datetime) else str(value)
