"""The costs of simulating and sending readings: `python -m benchmarks._homes_sender ...`.

    python -m benchmarks._homes_sender costs CONNECTION HUB_PID HOMES MINUTES
    python -m benchmarks._homes_sender realtime CONNECTION HUB_PID HOMES SECONDS

`costs` computes some minutes of readings and then sends them: CPU seconds of both, and of the hub.
For comparison it sends a twentieth of the readings as plain events through `send`, which hashes,
sorts and encodes them itself. `realtime` sends in real time, and prints the share of a core used.
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

START_MS = 20_605 * DAY_MS + 18 * 60 * MINUTE_MS  # a Monday evening, when people are active
PLAIN = 20  # every 20th slice is also sent as plain events, for comparison


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """A source of slices that were computed before."""

    homes: int
    start_ms: int
    prepared: list[TimeSlice]

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        return iter(self.prepared)


async def costs(connection: str, hub_pid: int, homes: int, minutes: int) -> None:
    simulator = HomeSimulator(homes)
    simulator.minute(START_MS // MINUTE_MS)  # plans the day before the measurement
    async with NativeClient(connection) as client:
        partitions = len((await client.properties()).partitions)
        partition_of = partitions_of(np.arange(homes, dtype=np.int32), partitions)
        before = time.process_time()
        slices = make(simulator, minutes, partition_of)
        make_s = time.process_time() - before
        wall, before, hub_before = time.monotonic(), time.process_time(), cpu_s(hub_pid)
        totals = await send(
            client, PreparedSource(homes, START_MS, slices), None, SystemClock(), asyncio.Event()
        )
        send_s, hub_s = time.process_time() - before, cpu_s(hub_pid) - hub_before
        wall_s = time.monotonic() - wall
        plain_s, plain = await send_plain(client, slices)
    print_result(
        events=totals.sent,
        make_cpu_s=make_s,
        send_cpu_s=send_s,
        hub_cpu_s=hub_s,
        wall_s=wall_s,
        plain_events=plain,
        plain_cpu_s=plain_s,
    )


def make(simulator: HomeSimulator, minutes: int, partition_of: Ints) -> list[TimeSlice]:
    end_ms = START_MS + minutes * MINUTE_MS
    source = SimulatorSource(simulator, START_MS, end_ms, choose_slot_s(simulator.homes, None))
    return list(source.slices(partition_of))


async def send_plain(client: NativeClient, slices: list[TimeSlice]) -> tuple[float, int]:
    """CPU seconds of sending plain events, and their number."""
    events = [
        Event(part.packed.body(i), partition_key=home_id(int(part.homes[i])))
        for part in islice(slices, None, None, PLAIN)
        for i in range(len(part))
    ]
    sender = await client.sender()
    before = time.process_time()
    sent = await sender.send(events)
    return time.process_time() - before, sent


async def realtime(connection: str, hub_pid: int, homes: int, seconds: int) -> None:
    clock = SystemClock()
    simulator = HomeSimulator(homes)
    simulator.minute(int(clock.now()) // 60)
    async with NativeClient(connection) as client:
        start_ms = int(clock.now()) * 1000
        source = SimulatorSource(simulator, start_ms, start_ms + seconds * 1000, 1)
        wall, before, hub_before = time.monotonic(), time.process_time(), cpu_s(hub_pid)
        totals = await send(client, source, 1.0, clock, asyncio.Event())
        wall_s = time.monotonic() - wall
    print_result(
        events=totals.sent,
        wall_s=wall_s,
        behind_s_max=totals.behind_s_max,
        core_share=(time.process_time() - before) / wall_s,
        hub_core_share=(cpu_s(hub_pid) - hub_before) / wall_s,
    )


if __name__ == "__main__":
    mode, connection, *numbers = sys.argv[1:]
    measure = {"costs": costs, "realtime": realtime}[mode]
    asyncio.run(measure(connection, *map(int, numbers)))
