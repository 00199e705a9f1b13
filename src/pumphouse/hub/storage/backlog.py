"""The bytes that wait to be written to disk, and the producers that wait for them.

A disk may be slower than the producers. Up to a limit their batches wait in memory; beyond it the
producers wait: the hub does not read from their connections, and grants no credit.

    ProducerLink -> full? -> wait -> ... -> remove (written) -> storage_ready -> ProducerLink
"""

from __future__ import annotations

from math import inf
from typing import Protocol


class Waiter(Protocol):
    """A connection whose next batch waits."""

    def storage_ready(self) -> None: ...


class Backlog:
    """Counts bytes on the event loop's thread, over all partitions of a hub."""

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: dict[Waiter, None] = {}  # in order of their arrival

    def __repr__(self) -> str:
        return f"<Backlog {self.held} of {self.limit} bytes, {len(self._waiting)} wait>"

    @property
    def full(self) -> bool:
        return self.held >= self.limit

    def add(self, size: int) -> None:
        self.held += size

    def remove(self, size: int) -> None:
        """Count bytes that are written; those who wait continue while there is room."""
        self.held -= size
        while self._waiting and not self.full:
            waiter = next(iter(self._waiting))
            self.forget(waiter)
            waiter.storage_ready()

    def wait(self, waiter: Waiter) -> None:
        """Call `storage_ready` of the waiter after there is room."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
