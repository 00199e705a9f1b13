"""A store with positions accepts each row once, for any division and repetition of batches."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.homes.record.positions import advanced, end_positions, new_rows


def rows(partition: str, first: int, after: int) -> pa.Table:
    numbers = list(range(first, after))
    return pa.table({"partition": [partition] * len(numbers), "sequence": numbers})


def both(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)


def test_rows_before_the_position_are_not_new() -> None:
    batch = both(rows("0", 5, 9), rows("1", 0, 3))
    assert new_rows(batch, {}).num_rows == 7
    assert new_rows(batch, {"0": 7})["sequence"].to_pylist() == [7, 8, 0, 1, 2]
    assert new_rows(batch, {"0": 9, "1": 3}).num_rows == 0


def test_the_end_position_is_after_the_last_row() -> None:
    assert end_positions(both(rows("0", 5, 9), rows("1", 0, 3))) == {"0": 9, "1": 3}


@pytest.mark.parametrize(
    ("before", "reached", "after"),
    [
        ({}, {"a": {"0": 3}}, {"a": {"0": 3}}),
        ({"a": {"0": 3, "1": 9}}, {"a": {"0": 5}}, {"a": {"0": 5, "1": 9}}),
        ({"a": {"0": 3}}, {"a": {"0": 2}}, {"a": {"0": 3}}),  # a batch again: nothing moves back
        ({"a": {"0": 3}}, {"b": {"0": 1}}, {"a": {"0": 3}, "b": {"0": 1}}),
    ],
)
def test_positions_never_move_back(
    before: dict[str, dict[str, int]],
    reached: dict[str, dict[str, int]],
    after: dict[str, dict[str, int]],
) -> None:
    assert advanced(before, reached) == after


@given(st.lists(st.tuples(st.sampled_from("01"), st.integers(0, 9), st.integers(1, 9))))
def test_each_row_is_new_once_for_any_division_into_batches(
    steps: list[tuple[str, int, int]],
) -> None:
    """Each step goes back a little (a repeated batch of another size) and then on."""
    position: dict[str, dict[str, int]] = {"hub": {}}
    taken: dict[str, list[int]] = {"0": [], "1": []}
    for partition, back, forth in steps:
        at = position["hub"].get(partition, 0)
        first = max(0, at - back)
        batch = rows(partition, first, first + forth)
        taken[partition] += new_rows(batch, position["hub"])["sequence"].to_pylist()
        position = advanced(position, {"hub": end_positions(batch)})
    for partition, sequences in taken.items():
        assert sequences == list(range(position["hub"].get(partition, 0)))
