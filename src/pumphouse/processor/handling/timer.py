"""HandlingTimer: how long a handler has had its batch.

The time in which a handler waits for a thread, or for a checkpoint that the store does not accept,
is not counted, because the handler does not cause it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pumphouse.clock import Clock


class HandlingTimer:
    """Runs while a batch is being handled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._waited_s = 0.0
        self._waits = 0  # checkpoints that the handler waits for now
        self._waits_since_s = 0.0
        self._in_thread = False  # a plain function: it does not block the event loop
        self._longest_s = 0.0  # of coroutines that ended since the last `longest_coroutine_s`

    @property
    def runs(self) -> bool:
        return self._since_s is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds that the handler has used; 0 if there is none."""
        if (since_s := self._since_s) is None:  # a collection of metrics reads it in its thread
            return 0.0
        until_s = self._waits_since_s if self._waits else self._clock.monotonic()
        return max(0.0, until_s - since_s - self._waited_s)

    def start(self, *, in_thread: bool = False) -> None:
        """A handler starts. Also called in its thread."""
        self.stop()
        self._since_s, self._waited_s = self._clock.monotonic(), 0.0
        self._in_thread = in_thread

    def stop(self) -> None:
        if not self._in_thread:
            self._longest_s = max(self._longest_s, self.elapsed_s)
        self._since_s, self._in_thread = None, False

    def longest_coroutine_s(self) -> float:
        """The longest run of a coroutine since the last call of this method, or the current run."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return max(longest_s, 0.0 if self._in_thread else self.elapsed_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count this time: the handler waits for something outside of its code."""
        if not self._waits:
            self._waits_since_s = self._clock.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                begun_s = max(self._waits_since_s, self._since_s or 0.0)
                self._waited_s += self._clock.monotonic() - begun_s
