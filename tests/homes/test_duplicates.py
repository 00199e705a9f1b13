"""Repeats, found with a few bits per sensor; against a set that forgets nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.homes.duplicates import NOTHING, WINDOW, SequenceWindows, admit_new


def run(*batches: list[tuple[int, int]]) -> list[list[bool]]:
    """Which of these (sensor, number) are let through, batch by batch; packed in between."""
    seen, told = NOTHING, []
    for batch in batches:
        keys, numbers = np.array(batch, np.int64).reshape(-1, 2).T
        new, seen = admit_new(seen, keys.astype(np.int32), numbers)
        seen = SequenceWindows.from_bytes(seen.to_bytes())
        told.append(new.tolist())
    return told


def test_a_repeat_is_found_in_its_batch_and_later() -> None:
    assert run([(1, 5), (1, 5), (2, 5)], [(1, 5), (1, 6), (2, 5)]) == [
        [True, False, True],
        [False, True, False],
    ]


def test_late_is_not_repeated() -> None:
    assert run([(1, 50)], [(1, 10), (1, 49)], [(1, 10), (1, 49), (1, 50), (1, 11)]) == [
        [True],
        [True, True],
        [False, False, False, True],
    ]


def test_what_is_older_than_the_window_is_taken_as_new() -> None:
    assert run([(1, 0)], [(1, WINDOW)], [(1, 0), (1, WINDOW)]) == [[True], [True], [True, False]]
    assert run([(1, 0)], [(1, WINDOW)], [(1, 1)]) == [[True], [True], [True]]
    assert run([(1, 0)], [(1, WINDOW - 1)], [(1, 0)]) == [[True], [True], [False]]


readings = st.tuples(st.integers(0, 3), st.integers(0, WINDOW - 1))


@given(st.lists(st.lists(readings, max_size=30), max_size=6))
def test_within_the_window_it_is_a_set(batches: list[list[tuple[int, int]]]) -> None:
    known: set[tuple[int, int]] = set()
    for batch, told in zip(batches, run(*batches), strict=True):
        for reading, new in zip(batch, told, strict=True):
            assert new == (reading not in known)
            known.add(reading)
