"""Pictures of the page for the documents: light and dark, desktop and phone.

    python -m tests.dashboard.screenshots         # of a scene of its own
    python -m tests.dashboard.screenshots URL     # of a page that runs, such as the demo's

The scene: 100,000 homes (or HOMES=...) of the generator as they are now, a hundred of them for the
whole last day, then live; three hosts share the partitions of `activity`, one is killed and
another comes. They are looked at by people: no test compares them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, ViewportSize, expect

from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.homes import schema
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    MINUTE_MS,
    REGIONS,
    SENSORS_HUB,
    Alert,
    encode_alert,
    home_number,
    region_of,
)
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.sensors import HomeSimulator
from tests.dashboard.browser import PATIENCE_MS, DashProcess, homes_hub, open_browser

FOLDER = Path(__file__).parents[2] / "docs" / "images"
HOMES, CLOSELY = int(os.environ.get("HOMES", "100000")), 100
PIECE = 5000
READY_S = 600.0
HEARD = """(most) =>
  Number(document.querySelector("#figure-homes .value")?.innerText.replaceAll(",", "")) >= most"""
SIZES: dict[str, ViewportSize] = {
    "desktop": {"width": 1280, "height": 860},
    "phone": {"width": 390, "height": 844},
}


ENDINGS = [f',"why":"alive","region":"{region}"}}'.encode() for region in REGIONS]


def activities(town: HomeSimulator, minute: int, homes: Ints | None = None) -> Iterator[Event]:
    """All readings of some homes, as the sift passes them on when it is their turn."""
    batch = town.minute(minute, homes)
    for home, body in zip(batch.columns.home.tolist(), batch.bodies(), strict=True):
        yield Event(body[:-1] + ENDINGS[home % len(ENDINGS)])


def alerts(town: HomeSimulator, minute: int) -> Iterator[Event]:
    """What befell homes within the last two hours, as the watch would tell it."""
    texts = {"break-in": "Door opened while away", "fire": "Smoke above 60 ppm"}
    for one in town.truth(minute - 120, minute):
        text = texts.get(one.kind, one.kind.replace("-", " "))
        number = home_number(one.home)
        told = Alert(one.home, one.kind, one.sensor, one.since, one.since, region_of(number), text)
        yield Event(encode_alert(told))


class Feed(threading.Thread):
    """Sends what the scene needs, and goes on until it is told to stop."""

    def __init__(self, connection: str) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.ready, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        asyncio.run(self.feed())

    async def feed(self) -> None:
        town = HomeSimulator(
            HOMES, 7, Incidents(break_in=1.0, fire=0.5, forgotten_window=2.0, silent_sensor=1.0)
        )
        minute = int(time.time() * 1000) // MINUTE_MS - 1
        async with (
            NativeClient(self.connection, ACTIVITY_HUB) as activity,
            NativeClient(self.connection, ALERTS_HUB) as told,
            NativeClient(self.connection, SENSORS_HUB) as sensors,
        ):
            await send_in_turn(activity, activities(town, minute))
            closely = np.arange(CLOSELY, dtype=np.int32)
            for ago in range(0, 24 * 60, 10):
                await send_in_turn(activity, activities(town, minute - ago, closely))
            await send_in_turn(told, alerts(town, minute))
            self.ready.set()
            await self.live(town, activity, sensors)

    async def live(
        self, town: HomeSimulator, activity: NativeClient, sensors: NativeClient
    ) -> None:
        last_s = int(time.time())
        while not self.stop.is_set():
            await asyncio.sleep(0.5)
            now_s = int(time.time())
            for second in range(last_s, now_s):
                due = town.due(second % 60, second % 60 + 1)
                found = list(activities(town, second // 60, due))
                await send_in_turn(sensors, found)
                await send_in_turn(activity, found[:: schema.ALIVE_EVERY])
            last_s = now_s


async def send_in_turn(client: NativeClient, events: Iterable[Event]) -> None:
    """Pieces to one partition after the other: all that matters here is that all have some."""
    pieces: dict[int, list[Event]] = {}
    partitions = (await client.properties()).partitions
    for place, event in enumerate(events):
        pieces.setdefault(place // PIECE, []).append(event)
    for number, piece in pieces.items():
        sender = await client.sender(partitions[number % len(partitions)])
        await sender.send(piece)
        await sender.close()


@contextmanager
def scene() -> Iterator[str]:
    with homes_hub(16) as hub, tempfile.TemporaryDirectory() as folder:
        hub.create_group("activity", "counters")
        feed = Feed(hub.connection_string())
        feed.start()
        dash = DashProcess(
            hub.connection_string(),
            *("--homes", "--homes-count", str(HOMES), "--events-group", "page", "--write"),
            *("--fleet", "activity/counters:pull:3", "--lease", "10s"),
            *("--store", f"{folder}/leases.db"),
        )
        try:
            if not feed.ready.wait(READY_S):
                raise AssertionError("the scene was not ready in time; see what its thread said")
            yield dash.url
        finally:
            dash.dispose()
            feed.stop.set()
            feed.join()


def stir(page: Page) -> None:
    """Something to see in the lanes: a host comes, and one is killed."""
    page.goto("/fleet")
    expect(page.locator("table.ownership tbody tr")).to_have_count(16)
    page.get_by_role("button", name="Add a host").click()
    page.wait_for_timeout(20_000)
    page.get_by_role("button", name="Kill pull-2").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    page.wait_for_timeout(25_000)


def take(page: Page, name: str) -> None:
    for tab, path in (("homes", "/homes?home=42"), ("fleet", "/fleet"), ("events", "/events")):
        page.goto(path)
        expect(page.locator("#link-word")).to_have_text("live")
        page.wait_for_timeout(3_000)
        page.screenshot(path=FOLDER / f"{tab}-{name}.png", full_page=tab != "events")


def take_all(url: str, *, own: bool) -> None:
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser() as browser:
        for theme in ("light", "dark"):
            for size, viewport in SIZES.items():
                context = browser.new_context(
                    base_url=url,
                    viewport=viewport,
                    color_scheme="dark" if theme == "dark" else "light",
                    reduced_motion="reduce",
                    timezone_id="Europe/Berlin",
                )
                context.set_default_timeout(PATIENCE_MS)
                page = context.new_page()
                if own and (theme, size) == ("light", "desktop"):
                    page.goto("/homes")
                    page.wait_for_function(HEARD, arg=HOMES * 0.99)  # some are silent
                    stir(page)
                take(page, f"{size}-{theme}")
                context.close()


def main(arguments: list[str]) -> None:
    if arguments:
        take_all(arguments[0], own=False)
        return
    with scene() as url:
        take_all(url, own=True)


if __name__ == "__main__":
    main(sys.argv[1:])
