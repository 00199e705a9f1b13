"""The live streams of the page. Each sends the full state first, then changes.

    GroupMonitor, HomesMonitor, Tail -> fleet_stream, homes_stream, ... -> server-sent events
                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A stream keeps track of what it has sent to its browser and waits for the next update. It has no
queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pumphouse.clock import now_ms
from pumphouse.dashboard.monitors.events import Tail
from pumphouse.dashboard.monitors.groups import GroupMonitor
from pumphouse.dashboard.monitors.homes import HomesMonitor
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.server import sse
from pumphouse.dashboard.views.homes import (
    SentMinutes,
    changed_grid,
    home_json,
    homes_json,
    new_alerts,
    whole_grid,
)

HEARTBEAT_S = 10.0  # without an update, send a heartbeat
TAIL_EVERY_S = 0.25  # shortest time between two messages of a tail


class StageStatus:
    """The last status of the Spark stages."""

    def __init__(self) -> None:
        self.latest_json: dict[str, Any] | None = None  # None: no status file is configured


async def fleet_stream(
    monitors: Sequence[GroupMonitor], stages: StageStatus, updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """All groups at every update, with the ownership changes since the previous message."""
    yield sse.opening()
    yield sse.message("history", {monitor.key: history(monitor) for monitor in monitors})
    sent = {monitor.key: monitor.change_count for monitor in monitors}
    while not updates.closed:
        version = updates.version
        yield sse.message("fleet", fleet_json(monitors, sent, stages))
        sent = {monitor.key: monitor.change_count for monitor in monitors}
        if await updates.wait_after(version, HEARTBEAT_S) == version:
            yield sse.HEARTBEAT


def history(monitor: GroupMonitor) -> dict[str, Any]:
    return {
        "owners": monitor.owners_at_start(),
        "changes": monitor.changes_after(0),
        "points": [point.to_json() for point in monitor.meter.points],
    }


def fleet_json(
    monitors: Sequence[GroupMonitor], sent: dict[str, int], stages: StageStatus
) -> dict[str, Any]:
    return {
        "at": now_ms(monitors[0].clock) if monitors else None,
        "groups": [
            {
                **monitor.latest_json,
                "processes": monitor.hosts(),
                "changes": monitor.changes_after(sent[monitor.key]),
                "point": monitor.meter.points[-1].to_json() if monitor.meter.points else None,
            }
            for monitor in monitors
        ],
        "stages": stages.latest_json,
    }


async def homes_stream(homes_monitor: HomesMonitor, updates: UpdateSignal) -> AsyncIterator[bytes]:
    """All homes in the first message, then the homes whose state changed."""
    yield sse.opening()
    sent, alerts_sent, minutes = None, 0, SentMinutes()
    while not updates.closed:
        version = updates.version
        at_ms = now_ms(homes_monitor.clock)
        states = homes_monitor.states()
        data = homes_json(homes_monitor.homes, homes_monitor.alerts, states, at_ms)
        data["activities_per_minute"] = minutes.take_changed(homes_monitor.minutes())
        whole = sent is None or len(sent) != len(states)
        grid = whole_grid(states) if sent is None or whole else changed_grid(sent, states)
        data |= homes_monitor.to_json() | {"grid" if whole else "changed": grid}
        data["alerts"] = new_alerts(homes_monitor.alerts, alerts_sent)
        yield sse.message("homes", data)
        sent, alerts_sent = states, homes_monitor.alerts.version
        await updates.wait_after(version, HEARTBEAT_S)


async def home_stream(
    homes_monitor: HomesMonitor, home: int, updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """One home, at every update."""
    yield sse.opening()
    recorded = await homes_monitor.recorded_day(home)
    while not updates.closed:
        version = updates.version
        at_ms = now_ms(homes_monitor.clock)
        state = int(homes_monitor.states()[home])
        data = home_json(homes_monitor.homes, homes_monitor.alerts, home, at_ms, state, recorded)
        yield sse.message("home", data)
        await updates.wait_after(version, HEARTBEAT_S)


async def tail_stream(
    tail: Tail, start: Callable[[Tail], asyncio.Task[str]], updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """Events as they arrive, until reading ends; the last message contains the reason.

    Reading starts inside the stream, so that a browser that disconnects early leaves no reader.
    """
    yield sse.opening()
    reading = start(tail)
    try:
        yield sse.message("tail", tail.take())
        while not updates.closed and not reading.done():
            await wait_for_events(tail, reading)
            yield sse.message("tail", tail.take())
            await asyncio.sleep(TAIL_EVERY_S)
        if reading.done():
            yield sse.message("ended", {"why": reading.result()})
    finally:
        reading.cancel()


async def wait_for_events(tail: Tail, reading: asyncio.Task[str]) -> None:
    """Wait until new events arrive or reading ends, at most one second."""
    changed = asyncio.ensure_future(tail.changed.wait())
    try:
        futures: list[asyncio.Future[Any]] = [changed, reading]
        await asyncio.wait(futures, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()
