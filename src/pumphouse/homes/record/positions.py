"""Finds the new rows of a batch by the stored positions of each partition.

Each store keeps, in the same transaction as the rows, the next sequence number of each partition of
each hub. So a batch that Spark repeats after a crash is recognised row by row, even if Spark
divides the rows into different batches.

    Spark's batch -> new_rows  -> one transaction of the store
    positions     -> advanced  -^
                     ^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PARTITION, SEQUENCE = "partition", "sequence"

# hub -> partition -> the sequence number that comes next
Positions: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query. The id of a query is part of its checkpoint location."""

    query: str
    number: int

    @property
    def application(self) -> str:
        return f"pumphouse/query/{self.query}"


def new_rows(rows: pa.Table, next_sequences: Mapping[str, int]) -> pa.Table:
    """The rows of one hub that are not stored yet, by the next sequence number per partition."""
    if not rows.num_rows or not next_sequences:
        return rows
    partitions = rows[PARTITION].combine_chunks().dictionary_encode()
    by_partition = [next_sequences.get(name, 0) for name in partitions.dictionary.to_pylist()]
    by_row = np.asarray(by_partition, np.int64)[partitions.indices.to_numpy()]
    is_new = rows[SEQUENCE].to_numpy() >= by_row
    return rows if is_new.all() else rows.filter(pa.array(is_new))


def end_positions(rows: pa.Table) -> dict[str, int]:
    """The position after the last row of each partition."""
    last = rows.group_by(PARTITION).aggregate([(SEQUENCE, "max")])
    pairs = zip(last[PARTITION].to_pylist(), pc.add(last[f"{SEQUENCE}_max"], 1), strict=True)
    return {partition: position.as_py() for partition, position in pairs}


def advanced(before: Positions, reached: Positions) -> dict[str, dict[str, int]]:
    """The positions after storing up to `reached`; a position never moves back."""
    after = {hub: dict(positions) for hub, positions in before.items()}
    for hub, reached_positions in reached.items():
        positions = after.setdefault(hub, {})
        for partition, position in reached_positions.items():
            positions[partition] = max(positions.get(partition, 0), position)
    return after
