"""Where a position lies in a partition, as far as that can be told without reading."""

from __future__ import annotations

from pumphouse.client.base import PartitionProperties
from pumphouse.events import Position


def beyond_the_end(position: Position, found: PartitionProperties) -> bool:
    """Whether all events lie before a position, so that waiting for one would be in vain.

    False also where only reading can tell: offsets need not be numbers.
    """
    if found.empty:
        return True
    behind = not position.inclusive
    if position.kind == "time":
        return found.last_enqueued_ms < int(position.value) + behind
    if position.kind == "sequence":
        return found.last_sequence < int(position.value) + behind
    if position.kind == "offset" and position.value.isdecimal() and found.last_offset.isdecimal():
        return int(found.last_offset) < int(position.value) + behind
    return False
