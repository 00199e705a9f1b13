"""Reads one event from the hub to get its offset and its enqueued time."""

from __future__ import annotations

from dataclasses import replace

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.events import Position
from pumphouse.spark.lag.known_positions import KnownPosition

EVENT_S = 10.0  # timeout; an event that exists arrives sooner


async def find_known_position(
    client: HubClient, options: ReaderOptions, sequence: int
) -> KnownPosition | None:
    """The position of the event with this sequence number; None if it does not exist.

    `options` gives the partition and the reader name; its position is ignored.
    """
    position = Position("sequence", str(sequence), inclusive=True)
    reader = await client.reader(replace(options, position=position, prefetch=1))
    try:
        events = await reader.receive(1, EVENT_S)
    finally:
        await reader.close()
    if not events or events[0].sequence != sequence:
        return None
    return KnownPosition(sequence, events[0].offset, events[0].enqueued_ms)
