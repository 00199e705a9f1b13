"""Several iterators in parallel: the order is fixed, errors arrive, and nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pumphouse.spark.read.parallel import ITEMS_AHEAD, read_in_parallel

WAIT_S = 60


def numbers(first: int, count: int) -> Iterator[int]:
    yield from range(first, first + count)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_items_come_out_iterator_after_iterator(threads: int) -> None:
    makers = [lambda first=first: numbers(first, 25) for first in range(0, 250, 25)]
    assert list(read_in_parallel(makers, threads)) == list(range(250))


def test_iterators_run_at_the_same_time() -> None:
    """The first iterator ends only after the second has begun."""
    begun = threading.Event()

    def first() -> Iterator[str]:
        assert begun.wait(WAIT_S)
        yield "a"

    def second() -> Iterator[str]:
        begun.set()
        yield "b"

    assert list(read_in_parallel([first, second], 2)) == ["a", "b"]


def test_an_error_is_raised_at_its_position() -> None:
    def broken() -> Iterator[int]:
        yield 3
        raise ValueError("torn")

    items_read: list[int] = []
    items = read_in_parallel([lambda: numbers(0, 3), broken], 2)
    with pytest.raises(ValueError, match="torn"):
        items_read.extend(items)
    assert items_read == [0, 1, 2, 3]


def test_closing_early_ends_the_threads() -> None:
    made = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            made.append(number)
            yield number
            number += 1

    before = threading.active_count()
    items = read_in_parallel([endless, endless], 2)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(made) <= 2 * (ITEMS_AHEAD + 2)  # the number of items ahead is bounded
