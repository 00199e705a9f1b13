"""The payloads that have arrived and are not yet decoded, as they arrived: in lists and blocks.

NativeReader.on_run -> PayloadBuffer -> NativeReader.receive -> decode_events
                       ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pumphouse.amqp.columnar.payload_blocks import sizes_of


class PayloadBuffer:
    """A queue of payloads, and their size."""

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        self._runs: deque[Sequence[bytes]] = deque()  # none is empty

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<PayloadBuffer {self._count} of {self.bytes} bytes>"

    @property
    def last(self) -> bytes:
        """The newest payload of a buffer that is not empty."""
        return self._runs[-1][-1]

    def append(self, payloads: Sequence[bytes], size: int) -> None:
        """Add payloads at the end; `size` is their number of bytes."""
        if payloads:
            self._runs.append(payloads)
            self._count += len(payloads)
            self.bytes += size

    def first(self, count: int) -> list[Sequence[bytes]]:
        """The first payloads. They stay in the buffer."""
        runs: list[Sequence[bytes]] = []
        for run in self._runs:
            if count <= 0:
                break
            runs.append(run if len(run) <= count else run[:count])
            count -= len(run)
        return runs

    def drop(self, runs: Sequence[Sequence[bytes]]) -> None:
        """Remove the result of `first`."""
        for dropped in runs:
            self._count -= len(dropped)
            self.bytes -= sizes_of(dropped)[0]
            run = self._runs.popleft()
            if len(run) > len(dropped):
                self._runs.appendleft(run[len(dropped) :])

    def clear(self) -> None:
        self._runs.clear()
        self._count = self.bytes = 0
