"""Several iterators at the same time, taken in their order: while one is taken, others get ready.

Each lane is a thread that works through one iterator after the other, a few items ahead. Items come
out iterator after iterator, so the order is the same every time, however fast each of them is.

    SpanReading.batches, ... -> together -> items in order
                                ^^^^^^^^ this module
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

ITEMS_AHEAD = 2  # items that an iterator may be ahead
LOOK_S = 0.2  # how often a lane that waits for room looks whether it is still wanted
GIVE_UP_S = 5.0  # for all lanes together; they are daemons, and end by their own deadlines


class End:
    """An iterator has ended, perhaps with an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class BufferedIterator(Generic[T]):
    """One iterator, and what waits of it."""

    def __init__(self, make: Callable[[], Iterator[T]], stop: threading.Event) -> None:
        self.make, self.stop = make, stop
        self.waiting: queue.Queue[T | End] = queue.Queue(ITEMS_AHEAD)

    def run(self) -> None:
        """To the end of it, or until nobody wants it any more."""
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
                self.waiting.put(item, timeout=LOOK_S)
            except queue.Full:
                continue
            return True
        return False

    def items(self) -> Iterator[T]:
        while True:
            item = self.waiting.get()
            if not isinstance(item, End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return


def read_in_parallel(makers: Sequence[Callable[[], Iterator[T]]], lanes: int) -> Iterator[T]:
    """All items of all iterators, in order; at most so many of them at work."""
    stop = threading.Event()
    tracks = [BufferedIterator(make, stop) for make in makers]
    # Lanes take tracks from the front, and so do we: what we wait for is always at work.
    left = deque(tracks)
    threads = [
        threading.Thread(target=work, args=(left, stop), name="lane", daemon=True)
        for _ in range(min(lanes, len(tracks)))
    ]
    with ExitStack() as ending:
        ending.callback(join, threads)
        ending.callback(stop.set)
        for thread in threads:
            thread.start()
        for track in tracks:
            yield from track.items()


def work(left: deque[BufferedIterator[T]], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            track = left.popleft()
        except IndexError:
            return
        track.run()


def join(threads: Sequence[threading.Thread]) -> None:
    deadline_s = time.monotonic() + GIVE_UP_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
