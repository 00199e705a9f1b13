"""Rates, delays and lags of the page, compared with counts of the hub and of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from pumphouse.client.native.client import NativeClient
from pumphouse.clock import now_ms
from pumphouse.dashboard.options import HomesFeed
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.errors import BadRecord
from pumphouse.events import Event
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    HUBS,
    SENSORS_HUB,
    decode_activity,
    decode_alert,
)
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store_url import open_store
from tests.dashboard.page_client import PageClient, activity, alert, send
from tests.dashboard.page_options import first, options
from tests.dashboard.recorded_homes import RecordedHomes, reading
from tests.dashboard.step_clock import StepClock

UPDATE_S = 1.0
STEP_S = 2 * UPDATE_S  # between two samples of the rate of a hub


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
async def hub(clock: StepClock) -> AsyncIterator[EmbeddedHub]:
    """A hub whose clock is that of the page."""
    async with EmbeddedHub(dict.fromkeys(HUBS, 4), clock=clock) as running:
        for name in HUBS:
            running.create_group(name, "page")
        running.create_group(SENSORS_HUB, "counters")
        yield running


@pytest.fixture
def homes(hub: EmbeddedHub, tmp_path: Path) -> RecordedHomes:
    return RecordedHomes(hub.connection_string(), tmp_path / "homes.db")


def page_of(hub: EmbeddedHub, store: str, clock: StepClock) -> Dashboard:
    feed = HomesFeed(hub.connection_string(), 100)
    return Dashboard(options(hub, store, homes=feed, update_s=UPDATE_S), clock=clock)


async def shown(page: Dashboard, tab: str, matches: Callable[[Any], object]) -> Any:
    """The first message of a tab that matches."""
    client = PageClient(page.port, page.access.launch_token)
    return await first(client, f"/stream/{tab}", tab, matches)


async def test_the_rates_of_readings_and_activities(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, clock: StepClock
) -> None:
    async with page_of(hub, store, clock) as page:
        monitor = page.homes_monitor
        assert monitor is not None
        # The first samples. Before a second one a rate is unknown.
        await shown(page, "homes", lambda data: set(monitor.received()) == {*HUBS[:3]})
        at = now_ms(clock)
        readings = [reading(n, "smoke", n % 3, at, seq=n) for n in range(31)]
        await homes.send(*await homes.send_readings(*readings), recorded=False)
        await send(homes.connection, SENSORS_HUB, [Event(b"malformed")])
        counts = {name: len(await homes.events(name)) for name in (SENSORS_HUB, ACTIVITY_HUB)}
        clock.advance(STEP_S)
        rates = {name: round(count / STEP_S, 1) for name, count in counts.items()}
        assert 0 < rates[ACTIVITY_HUB] < rates[SENSORS_HUB] == 16.0

        def is_shown(data: Any) -> bool:
            return (data["readings_per_s"], data["activities_per_s"]) == (
                rates[SENSORS_HUB],
                rates[ACTIVITY_HUB],
            )

        await shown(page, "homes", is_shown)


async def test_the_delay_from_the_sensor_to_the_page(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, clock: StepClock
) -> None:
    """The median age of all activities, in the hub and when the page receives them."""
    at = now_ms(clock)
    for home, age_ms in enumerate((1000, 4000, 9000)):
        await send(homes.connection, ACTIVITY_HUB, [activity(home, "door", 1, at - age_ms)])
    two = [activity(7, "door", 1, at - age_ms) for age_ms in (2000, 40_000)]
    await send(homes.connection, ACTIVITY_HUB, two, "0")  # of a batch every activity counts
    clock.advance(3)
    async with page_of(hub, store, clock) as page:
        monitor = page.homes_monitor
        assert monitor is not None
        data = await shown(page, "homes", lambda data: monitor.homes.absorbed == 5)
    events = await homes.events(ACTIVITY_HUB)
    to_hub = [(event.enqueued_ms or 0) - decode_activity(event.body).reading.at for event in events]
    assert data["sensor_to_page"] == {
        "hub_s": round(median(to_hub) / 1000, 2),
        "page_s": 3.0,
        "total_s": round(median(to_hub) / 1000, 2) + 3.0,
    }
    assert data["sensor_to_page"]["hub_s"] == 4.0


async def test_events_that_the_page_cannot_decode_are_counted(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, clock: StepClock
) -> None:
    bodies = [b"", b"{}", b"[1]", b"1,2"]
    for body in bodies:
        await send(homes.connection, ACTIVITY_HUB, [Event(body), activity(1, "door", 1)], "0")
        await send(homes.connection, ALERTS_HUB, [Event(body), alert(1)], "1")
    invalid = sum(
        [
            is_invalid(event, decode)
            for name, decode in ((ACTIVITY_HUB, decode_activity), (ALERTS_HUB, decode_alert))
            for event in await homes.events(name)
        ]
    )
    assert invalid == 2 * len(bodies)
    async with page_of(hub, store, clock) as page:
        data = await shown(page, "homes", lambda data: data["invalid"] >= invalid)
        assert (data["invalid"], data["alerts_open"]) == (invalid, len(bodies))


def is_invalid(event: Event, decode: Callable[[bytes], object]) -> bool:
    try:
        decode(event.body)
    except BadRecord:
        return True
    return False


async def test_lag_and_rates_of_a_group_agree_with_the_hub_and_the_store(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, clock: StepClock
) -> None:
    await send_to_partitions(homes, {"0": 20, "1": 5, "2": 3})
    await checkpoint(hub, store, {"0": 4, "1": 4, "2": 0, "3": None})
    async with page_of(hub, store, clock) as page:
        await shown(page, "fleet", lambda data: data["groups"][0].get("lag") == 15 + 0 + 2)
        await send_to_partitions(homes, {"0": 7, "3": 12})
        await checkpoint(hub, store, {"0": 14, "2": 1})
        clock.advance(STEP_S)
        data = await shown(page, "fleet", lambda data: data["groups"][0].get("out"))
    (group,) = data["groups"]
    events = await homes.events(SENSORS_HUB)
    assert len(events) == 20 + 5 + 3 + 7 + 12
    handled = {name: sequence + 1 for name, sequence in checkpoints(store).items()}
    assert handled == {"0": 15, "1": 5, "2": 2}
    # The group.
    assert group["lag"] == len(events) - sum(handled.values()) > 0
    assert group["in"] == (7 + 12) / STEP_S
    assert group["out"] == (10 + 1) / STEP_S
    assert group["hosts"] == [
        {"name": "anna", "partitions": ["0", "1"], "lag": 27 - 15 + 5 - 5},
        {"name": "ben", "partitions": ["2"], "lag": 3 - 2},
    ]
    assert group["attention"] == sum(line["bad"] for line in group["lines"]) > 0
    # Its partitions.
    ends = {"0": 27, "1": 5, "2": 3, "3": 12}
    rates = {"0": (7, 10), "1": (0, 0), "2": (0, 1), "3": (12, 0)}
    for line in group["lines"]:
        name = line["partition"]
        assert (line["end"], line["lag"]) == (ends[name] - 1, ends[name] - handled.get(name, 0))
        assert (line["in"], line["out"]) == tuple(rate / STEP_S for rate in rates[name])


async def send_to_partitions(homes: RecordedHomes, counts: dict[str, int]) -> None:
    for partition, count in counts.items():
        await send(homes.connection, SENSORS_HUB, [Event(b"{}")] * count, partition)


async def checkpoint(hub: EmbeddedHub, store: str, sequences: dict[str, int | None]) -> None:
    """Write checkpoints, as the hosts anna and ben, which own three partitions."""
    async with open_store(store) as opened:
        namespace = NativeClient(hub.connection_string(), SENSORS_HUB).namespace
        group = Group(namespace, SENSORS_HUB, "counters")
        rows = {row.partition for row in (await opened.list_ownership(group)).ownerships}
        owners = {"0": "anna", "1": "anna", "2": "ben"}
        claims = [Ownership(name, owner, 1) for name, owner in owners.items() if name not in rows]
        await opened.claim_ownership(group, claims)
        etags = {row.partition: row.etag for row in await opened.list_checkpoints(group)}
        for name, sequence in sequences.items():
            if sequence is not None:
                etag = etags.get(name, "")
                await opened.update_checkpoint(Checkpoint(group, name, sequence, None, 1, etag))


def checkpoints(store: str) -> dict[str, int]:
    """The rows of the file, read without the code of the store."""
    with sqlite3.connect(store) as database:
        rows = database.execute("SELECT partition_id, sequence FROM checkpoint").fetchall()
    return dict(rows)
