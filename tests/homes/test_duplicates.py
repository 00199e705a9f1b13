"""Duplicates found with a few bits per sensor, compared with a set of all readings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.homes.duplicates import NO_WINDOWS, WINDOW, SequenceWindows, admit_new


def run(*batches: list[tuple[int, int]]) -> list[list[bool]]:
    """Which (sensor, number) pairs are new, batch by batch; encoded and decoded in between."""
    windows, new_flags = NO_WINDOWS, []
    for batch in batches:
        keys, numbers = np.array(batch, np.int64).reshape(-1, 2).T
        new, windows = admit_new(windows, keys.astype(np.int32), numbers)
        windows = SequenceWindows.from_bytes(windows.to_bytes())
        new_flags.append(new.tolist())
    return new_flags


def test_a_duplicate_is_found_in_the_same_batch_and_later() -> None:
    assert run([(1, 5), (1, 5), (2, 5)], [(1, 5), (1, 6), (2, 5)]) == [
        [True, False, True],
        [False, True, False],
    ]


def test_a_late_reading_is_not_a_duplicate() -> None:
    assert run([(1, 50)], [(1, 10), (1, 49)], [(1, 10), (1, 49), (1, 50), (1, 11)]) == [
        [True],
        [True, True],
        [False, False, False, True],
    ]


def test_a_reading_older_than_the_window_is_new() -> None:
    assert run([(1, 0)], [(1, WINDOW)], [(1, 0), (1, WINDOW)]) == [[True], [True], [True, False]]
    assert run([(1, 0)], [(1, WINDOW)], [(1, 1)]) == [[True], [True], [True]]
    assert run([(1, 0)], [(1, WINDOW - 1)], [(1, 0)]) == [[True], [True], [False]]


readings = st.tuples(st.integers(0, 3), st.integers(0, WINDOW - 1))


@given(st.lists(st.lists(readings, max_size=30), max_size=6))
def test_within_the_window_the_result_equals_a_set(batches: list[list[tuple[int, int]]]) -> None:
    known: set[tuple[int, int]] = set()
    for batch, new_flags in zip(batches, run(*batches), strict=True):
        for reading, new in zip(batch, new_flags, strict=True):
            assert new == (reading not in known)
            known.add(reading)
