"""Several iterators at once: the order is fixed, errors come through, nobody hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pumphouse.spark.read.parallel import ITEMS_AHEAD, read_in_parallel

WAIT_S = 60


def numbers(first: int, count: int) -> Iterator[int]:
    yield from range(first, first + count)


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_items_come_iterator_after_iterator(lanes: int) -> None:
    makers = [lambda first=first: numbers(first, 25) for first in range(0, 250, 25)]
    assert list(read_in_parallel(makers, lanes)) == list(range(250))


def test_others_get_ready_while_one_is_taken() -> None:
    """The first iterator ends only when the second has begun: one after the other would hang."""
    begun = threading.Event()

    def first() -> Iterator[str]:
        assert begun.wait(WAIT_S)
        yield "a"

    def second() -> Iterator[str]:
        begun.set()
        yield "b"

    assert list(read_in_parallel([first, second], 2)) == ["a", "b"]


def test_an_error_comes_in_its_place() -> None:
    def broken() -> Iterator[int]:
        yield 3
        raise ValueError("torn")

    found: list[int] = []
    items = read_in_parallel([lambda: numbers(0, 3), broken], 2)
    with pytest.raises(ValueError, match="torn"):
        found.extend(items)
    assert found == [0, 1, 2, 3]


def test_leaving_early_ends_the_lanes() -> None:
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
    assert len(made) <= 2 * (ITEMS_AHEAD + 2)  # nobody runs ahead without a bound
