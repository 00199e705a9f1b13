"""The bodies of uniform events: of one size, and at equal distances in their payload.

    payload  [ head | lead | body ][ head | lead | body ][ head | lead | body ] ...
              <--------stride----->         ^ start       <size>

They stay in the payload until the frames of the log are built from it, so that no object is created
for each event. To other code they are a sequence of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class UniformBodies(Sequence[bytes]):
    __slots__ = ("events", "payload", "size", "start", "stride")

    def __init__(self, payload: bytes, start: int, stride: int, size: int, events: int) -> None:
        self.payload = payload
        self.start = start  # of the first body
        self.stride = stride
        self.size = size
        self.events = events

    def __len__(self) -> int:
        return self.events

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(self.events)[index]]
        start = self.start + range(self.events)[index] * self.stride
        return self.payload[start : start + self.size]
