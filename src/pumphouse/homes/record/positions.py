"""Which rows of a batch are new, and where is one once they are stored?

A place that stores rows keeps, in the same transaction, the sequence number that comes next of each
partition of each hub. A batch that comes again (Spark repeats one after a crash) is then known row
by row, however it was cut.

    Spark's batch -> new_rows -> stored together with -> advanced
                     ^^^^^                            ^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PARTITION, SEQUENCE = "partition", "sequence"

# hub -> partition -> the sequence number that comes next
Positions: TypeAlias = Mapping[str, Mapping[str, int]]


def new_rows(rows: pa.Table, following: Mapping[str, int]) -> pa.Table:
    """The rows of one hub that are not stored yet."""
    if not rows.num_rows or not following:
        return rows
    partitions = rows[PARTITION].combine_chunks().dictionary_encode()
    starts = [following.get(one, 0) for one in partitions.dictionary.to_pylist()]
    start = np.asarray(starts, np.int64)[partitions.indices.to_numpy()]
    new = rows[SEQUENCE].to_numpy() >= start
    return rows if new.all() else rows.filter(pa.array(new))


def end_positions(rows: pa.Table) -> dict[str, int]:
    """Behind the last row of each partition."""
    last = rows.group_by(PARTITION).aggregate([(SEQUENCE, "max")])
    pairs = zip(last[PARTITION].to_pylist(), pc.add(last[f"{SEQUENCE}_max"], 1), strict=True)
    return {partition: following.as_py() for partition, following in pairs}


def advanced(before: Positions, reached: Positions) -> dict[str, dict[str, int]]:
    """The positions once all that was `reached` is stored; none ever moves back."""
    after = {hub: dict(following) for hub, following in before.items()}
    for hub, following in reached.items():
        mine = after.setdefault(hub, {})
        for partition, one in following.items():
            mine[partition] = max(mine.get(partition, 0), one)
    return after


def common_positions(places: Sequence[Positions]) -> dict[str, dict[str, int]]:
    """Up to where every one of the places has come."""
    found = {(hub, partition) for one in places for hub in one for partition in one[hub]}
    common: dict[str, dict[str, int]] = {}
    for hub, partition in found:
        common.setdefault(hub, {})[partition] = min(
            one.get(hub, {}).get(partition, 0) for one in places
        )
    return common
