"""What it costs to make readings and to send them: `python -m benchmarks._homes_producer ...`.

    python -m benchmarks._homes_producer costs CONNECTION HUB_PID HOMES MINUTES
    python -m benchmarks._homes_producer realtime CONNECTION HUB_PID HOMES SECONDS

The first makes some minutes of a town, then sends what it made: CPU seconds of both, and of the
hub. Beside it, the same readings one event at a time through the client's `send`, which hashes,
sorts and encodes them itself (a twentieth of them, for it takes so much longer). The second sends
in real time, and tells the share of a core that this takes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from benchmarks._processes import cpu_s, print_result
from pumphouse.client.native.client import NativeClient
from pumphouse.clock import SystemClock
from pumphouse.events import Event
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import DAY_MS, MINUTE_MS, home_id
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.sender import send
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.simulator.time_slices import SimulatorSource, TimeSlice, choose_slot_s

START_MS = 20_605 * DAY_MS + 18 * 60 * MINUTE_MS  # a Monday evening: people are up and about
PLAIN = 20  # of so many events one is sent by itself, for comparison


@dataclass(frozen=True, slots=True)
class Made:
    """Slices that were made before."""

    homes: int
    start_ms: int
    made: list[TimeSlice]

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        return iter(self.made)


async def costs(connection: str, hub_pid: int, homes: int, minutes: int) -> None:
    town = HomeSimulator(homes)
    town.minute(START_MS // MINUTE_MS)  # the day is planned once, whatever is made of it
    async with NativeClient(connection) as client:
        partitions = len((await client.properties()).partitions)
        partition_of = partitions_of(np.arange(homes, dtype=np.int32), partitions)
        before = time.process_time()
        made = make(town, minutes, partition_of)
        make_s = time.process_time() - before
        wall, before, hub_before = time.monotonic(), time.process_time(), cpu_s(hub_pid)
        tally = await send(
            client, Made(homes, START_MS, made), None, SystemClock(), asyncio.Event()
        )
        send_s, hub_s = time.process_time() - before, cpu_s(hub_pid) - hub_before
        wall_s = time.monotonic() - wall
        plain_s, plain = await one_by_one(client, made)
    print_result(
        events=tally.sent,
        make_cpu_s=make_s,
        send_cpu_s=send_s,
        hub_cpu_s=hub_s,
        wall_s=wall_s,
        plain_events=plain,
        plain_cpu_s=plain_s,
    )


def make(town: HomeSimulator, minutes: int, partition_of: Ints) -> list[TimeSlice]:
    end_ms = START_MS + minutes * MINUTE_MS
    source = SimulatorSource(town, START_MS, end_ms, choose_slot_s(town.homes, None))
    return list(source.slices(partition_of))


async def one_by_one(client: NativeClient, made: list[TimeSlice]) -> tuple[float, int]:
    """CPU seconds of a send that is not told anything, and how many events it was given."""
    events = [
        Event(part.packed.body(i), partition_key=home_id(int(part.homes[i])))
        for part in islice(made, None, None, PLAIN)
        for i in range(len(part))
    ]
    sender = await client.sender()
    before = time.process_time()
    sent = await sender.send(events)
    return time.process_time() - before, sent


async def realtime(connection: str, hub_pid: int, homes: int, seconds: int) -> None:
    clock = SystemClock()
    town = HomeSimulator(homes)
    town.minute(int(clock.now()) // 60)
    async with NativeClient(connection) as client:
        start_ms = int(clock.now()) * 1000
        source = SimulatorSource(town, start_ms, start_ms + seconds * 1000, 1)
        wall, before, hub_before = time.monotonic(), time.process_time(), cpu_s(hub_pid)
        tally = await send(client, source, 1.0, clock, asyncio.Event())
        wall_s = time.monotonic() - wall
    print_result(
        events=tally.sent,
        wall_s=wall_s,
        behind_s_max=tally.behind_s_max,
        core_share=(time.process_time() - before) / wall_s,
        hub_core_share=(cpu_s(hub_pid) - hub_before) / wall_s,
    )


if __name__ == "__main__":
    mode, connection, *numbers = sys.argv[1:]
    measure = {"costs": costs, "realtime": realtime}[mode]
    asyncio.run(measure(connection, *map(int, numbers)))
