"""The streams of the page: a full picture when a browser comes, and then what is new.

    GroupWatch, Feeding, Tail -> fleet_stream, homes_stream, ... -> server-sent events
                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Each remembers what it has sent to its own browser and waits for the next beat; nothing is queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pumphouse.clock import now_ms
from pumphouse.dashboard.monitors.events import Tail
from pumphouse.dashboard.monitors.groups import GroupWatch
from pumphouse.dashboard.monitors.homes import Feeding
from pumphouse.dashboard.monitors.pulse import Pulse
from pumphouse.dashboard.server import sse
from pumphouse.dashboard.views.homes import (
    CHART_MINUTES,
    RECENT_MINUTES,
    changed_grid,
    home_shown,
    new_alerts,
    town_shown,
    whole_grid,
)

PATIENCE_S = 10.0  # without a beat, a word to show that we are still here
TAIL_EVERY_S = 0.25  # events are sent in bunches


class Stages:
    """What the Spark stages said last; filled by the one who reads their file."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] | None = None  # None: nobody asked for them


async def fleet_stream(
    watches: Sequence[GroupWatch], stages: Stages, pulse: Pulse
) -> AsyncIterator[bytes]:
    """All groups whenever one has been looked at, with what has changed since."""
    yield sse.opening()
    yield sse.message("history", {watch.key: history(watch) for watch in watches})
    told = {watch.key: watch.changed for watch in watches}
    beats = -1
    while not pulse.closed:
        beats = pulse.beats
        yield sse.message("fleet", fleet_shown(watches, told, stages))
        told = {watch.key: watch.changed for watch in watches}
        if await pulse.after(beats, PATIENCE_S) == beats:
            yield sse.HEARTBEAT


def history(watch: GroupWatch) -> dict[str, Any]:
    return {
        "owners": watch.owners_at_start(),
        "changes": watch.changes_after(0),
        "points": [point.shown() for point in watch.meter.points],
    }


def fleet_shown(
    watches: Sequence[GroupWatch], told: dict[str, int], stages: Stages
) -> dict[str, Any]:
    return {
        "at": now_ms(watches[0].clock) if watches else None,
        "groups": [
            {
                **watch.shown,
                "processes": watch.hosts(),
                "changes": watch.changes_after(told[watch.key]),
                "point": watch.meter.points[-1].shown() if watch.meter.points else None,
            }
            for watch in watches
        ],
        "stages": stages.shown,
    }


async def homes_stream(feeding: Feeding, pulse: Pulse) -> AsyncIterator[bytes]:
    """Every home the first time, and after that those that have changed."""
    yield sse.opening()
    sent, version, minutes = None, 0, CHART_MINUTES
    while not pulse.closed:
        beats = pulse.beats
        at_ms = now_ms(feeding.clock)
        states = feeding.town.states(at_ms)
        data = town_shown(feeding.town, feeding.book, states, at_ms, minutes=minutes)
        whole = sent is None or len(sent) != len(states)
        grid = whole_grid(states) if sent is None or whole else changed_grid(sent, states)
        data |= feeding.shown() | {"grid" if whole else "changed": grid}
        data["alerts"] = new_alerts(feeding.book, version)
        yield sse.message("homes", data)
        sent, version, minutes = states, feeding.book.version, RECENT_MINUTES
        await pulse.after(beats, PATIENCE_S)


async def home_stream(feeding: Feeding, home: int, pulse: Pulse) -> AsyncIterator[bytes]:
    """One home, whenever something about it may be new."""
    yield sse.opening()
    while not pulse.closed:
        beats = pulse.beats
        shown = home_shown(feeding.town, feeding.book, home, now_ms(feeding.clock))
        yield sse.message("home", shown)
        await pulse.after(beats, PATIENCE_S)


async def tail_stream(
    tail: Tail, start: Callable[[Tail], asyncio.Task[str]], pulse: Pulse
) -> AsyncIterator[bytes]:
    """Events as they come, until the reading ends: its result is the sentence that says why.

    Reading is started here, so that a browser which left before leaves no reader behind.
    """
    yield sse.opening()
    reading = start(tail)
    try:
        yield sse.message("tail", tail.take())
        while not pulse.closed and not reading.done():
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
