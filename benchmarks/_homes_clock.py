"""The simulated time of the homes of a benchmark, which is not that of the clock.

How many readings become activities depends on the hour: people are asleep, at work or at home. So
each run begins at the same hour of the same day, and the readings are sent in real time from there.

    start_ms -> homes send --from -> delay_ms -> time from sending to alert
    ^^^^^^^^ ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import LATEST
from pumphouse.homes.schema import SENSORS_HUB, decode_reading

TUESDAY_MS = 1_736_812_800_000  # 2025-01-14, 00:00 UTC
HOUR = 15  # its share of activities is that of a day, see homes.py
HOUR_MS = 3_600_000
SAMPLE_S = 3.0  # readings arrive every second
SAMPLE = 50  # readings decoded of those that arrive together


class SimulatedTime:
    """Simulated time that begins at an hour of a Tuesday, with the first call of `start_ms`."""

    def __init__(self, hour: int = HOUR) -> None:
        self._first_ms = TUESDAY_MS + hour * HOUR_MS
        self._since_s: float | None = None

    def start_ms(self) -> int:
        """When the readings of a sender begin that is started now. Several senders one after the
        other continue the time of the first."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return self._first_ms + round(now_s - self._since_s) * 1000


def sent_ms(at: int) -> int:
    """When a reading was sent, in simulated time: the sender sends the due readings every full
    second.

    >>> sent_ms(1_000_250)
    1001000
    """
    return (at // 1000 + 1) * 1000


async def measure_shift_ms(connection: str) -> int:
    """How far simulated time is behind that of the hub, by the readings that arrive now. The first
    readings of a second arrive some milliseconds after they were sent."""
    shifts: list[int] = []
    async with open_client(connection, SENSORS_HUB) as client:
        partition = (await client.properties()).partitions[0]
        reader = await client.reader(ReaderOptions(partition, position=LATEST))
        with suppress(TimeoutError):
            async with asyncio.timeout(SAMPLE_S):
                while True:
                    events = await reader.receive(1000, SAMPLE_S)
                    shifts += [
                        event.enqueued_ms - sent_ms(decode_reading(event.body).at)
                        for event in events[:SAMPLE]
                        if event.enqueued_ms is not None
                    ]
    if not shifts:
        raise TimeoutError(f"no reading arrived in {SAMPLE_S:g} s")
    return min(shifts)
