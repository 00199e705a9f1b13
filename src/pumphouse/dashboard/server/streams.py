"""The streams of the page: a full picture when a browser comes, and then what is new.

    GroupMonitor, HomesMonitor, Tail -> fleet_stream, homes_stream, ... -> server-sent events
                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Each remembers what it has sent to its own browser and waits for the next beat; nothing is queued.
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
    CHART_MINUTES,
    RECENT_MINUTES,
    changed_grid,
    home_shown,
    homes_shown,
    new_alerts,
    whole_grid,
)

PATIENCE_S = 10.0  # without a beat, a word to show that we are still here
TAIL_EVERY_S = 0.25  # events are sent in bunches


class StageStatus:
    """What the Spark stages said last; filled by the one who reads their file."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] | None = None  # None: nobody asked for them


async def fleet_stream(
    monitors: Sequence[GroupMonitor], stages: StageStatus, updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """All groups whenever one has been looked at, with what has changed since."""
    yield sse.opening()
    yield sse.message("history", {monitor.key: history(monitor) for monitor in monitors})
    told = {monitor.key: monitor.changed for monitor in monitors}
    version = -1
    while not updates.closed:
        version = updates.version
        yield sse.message("fleet", fleet_shown(monitors, told, stages))
        told = {monitor.key: monitor.changed for monitor in monitors}
        if await updates.wait_after(version, PATIENCE_S) == version:
            yield sse.HEARTBEAT


def history(monitor: GroupMonitor) -> dict[str, Any]:
    return {
        "owners": monitor.owners_at_start(),
        "changes": monitor.changes_after(0),
        "points": [point.shown() for point in monitor.meter.points],
    }


def fleet_shown(
    monitors: Sequence[GroupMonitor], told: dict[str, int], stages: StageStatus
) -> dict[str, Any]:
    return {
        "at": now_ms(monitors[0].clock) if monitors else None,
        "groups": [
            {
                **monitor.shown,
                "processes": monitor.hosts(),
                "changes": monitor.changes_after(told[monitor.key]),
                "point": monitor.meter.points[-1].shown() if monitor.meter.points else None,
            }
            for monitor in monitors
        ],
        "stages": stages.shown,
    }


async def homes_stream(homes_monitor: HomesMonitor, updates: UpdateSignal) -> AsyncIterator[bytes]:
    """Every home the first time, and after that those that have changed."""
    yield sse.opening()
    sent, version, minutes = None, 0, CHART_MINUTES
    while not updates.closed:
        version = updates.version
        at_ms = now_ms(homes_monitor.clock)
        states = homes_monitor.homes.states(at_ms)
        data = homes_shown(
            homes_monitor.homes, homes_monitor.alerts, states, at_ms, minutes=minutes
        )
        whole = sent is None or len(sent) != len(states)
        grid = whole_grid(states) if sent is None or whole else changed_grid(sent, states)
        data |= homes_monitor.shown() | {"grid" if whole else "changed": grid}
        data["alerts"] = new_alerts(homes_monitor.alerts, version)
        yield sse.message("homes", data)
        sent, version, minutes = states, homes_monitor.alerts.version, RECENT_MINUTES
        await updates.wait_after(version, PATIENCE_S)


async def home_stream(
    homes_monitor: HomesMonitor, home: int, updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """One home, whenever something about it may be new."""
    yield sse.opening()
    while not updates.closed:
        version = updates.version
        shown = home_shown(
            homes_monitor.homes, homes_monitor.alerts, home, now_ms(homes_monitor.clock)
        )
        yield sse.message("home", shown)
        await updates.wait_after(version, PATIENCE_S)


async def tail_stream(
    tail: Tail, start: Callable[[Tail], asyncio.Task[str]], updates: UpdateSignal
) -> AsyncIterator[bytes]:
    """Events as they come, until the reading ends: its result is the sentence that says why.

    Reading is started here, so that a browser which left before leaves no reader behind.
    """
    yield sse.opening()
    reading = start(tail)
    try:
        yield sse.message("tail", tail.take())
        while not updates.closed and not reading.done():
            await wait_for_any(tail, reading)
            yield sse.message("tail", tail.take())
            await asyncio.sleep(TAIL_EVERY_S)
        if reading.done():
            yield sse.message("ended", {"why": reading.result()})
    finally:
        reading.cancel()


async def wait_for_any(tail: Tail, reading: asyncio.Task[str]) -> None:
    changed = asyncio.ensure_future(tail.changed.wait())
    try:
        waits: list[asyncio.Future[Any]] = [changed, reading]
        await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()
