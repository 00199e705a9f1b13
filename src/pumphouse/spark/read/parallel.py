"""Runs several iterators at the same time in threads, and yields their items in a fixed order.

Each thread runs one iterator after the other, and is at most a few items ahead of the consumer. The
items come out iterator after iterator, so their order does not depend on the speed of each.

    SpanReader.batches, ... -> read_in_parallel -> items in order
                               ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

T = TypeVar("T")

ITEMS_AHEAD = 2  # of each iterator
POLL_S = 0.2  # how often a thread with a full buffer checks whether it must stop
JOIN_S = 5.0  # for all threads together; they are daemons, and end by their own deadlines


class End:
    """The end of an iterator, with its error if it failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class BufferedIterator(Generic[T]):
    """One iterator, and a buffer of items that the consumer has not taken yet."""

    def __init__(self, make: Callable[[], Iterator[T]], stop: threading.Event) -> None:
        self.make, self.stop = make, stop
        self.buffer: queue.Queue[T | End] = queue.Queue(ITEMS_AHEAD)

    def fill(self) -> None:
        """Run the iterator to its end, or until `stop` is set."""
        try:
            for item in self.make():
                if not self.put(item):
                    return
        except BaseException as failed:
            self.put(End(failed))
        else:
            self.put(End())

    def put(self, item: T | End) -> bool:
        while not self.stop.is_set():
            try:
                self.buffer.put(item, timeout=POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def items(self) -> Iterator[T]:
        while True:
            item = self.buffer.get()
            if not isinstance(item, End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return


def read_in_parallel(makers: Sequence[Callable[[], Iterator[T]]], threads_max: int) -> Iterator[T]:
    """All items of all iterators, in order; at most `threads_max` iterators run at a time."""
    stop = threading.Event()
    iterators = [BufferedIterator(make, stop) for make in makers]
    # The threads start the iterators in the order in which the loop below reads them. So the
    # iterator that the loop waits for is started before all later ones.
    remaining = deque(iterators)
    threads = [
        threading.Thread(target=run, args=(remaining, stop), name="parallel read", daemon=True)
        for _ in range(min(threads_max, len(iterators)))
    ]
    with ExitStack() as cleanup:
        cleanup.callback(join, threads)
        cleanup.callback(stop.set)
        for thread in threads:
            thread.start()
        for iterator in iterators:
            yield from iterator.items()


def run(remaining: deque[BufferedIterator[T]], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            iterator = remaining.popleft()
        except IndexError:
            return
        iterator.fill()


def join(threads: Sequence[threading.Thread]) -> None:
    deadline_s = time.monotonic() + JOIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
