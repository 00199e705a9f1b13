"""Takes the screenshots of the page for the documentation: light and dark, desktop and phone.

    python -m tests.dashboard.screenshots         # of a page with simulated homes
    python -m tests.dashboard.screenshots URL     # of a running page, such as the demo

The page shows 100,000 simulated homes (or HOMES=...), a hundred of them for the whole last day.
Three hosts share the partitions of `activity`; one is added and one is killed. No test compares the
screenshots.
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
    home_id,
    home_number,
    region_of,
)
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.sensors import HomeSimulator
from tests.dashboard.browser import PATIENCE_MS, DashProcess, homes_hub, open_browser

FOLDER = Path(__file__).parents[2] / "docs" / "images"
HOMES, DAY_HOMES = int(os.environ.get("HOMES", "100000")), 100
BATCH = 5000
READY_S = 600.0
# Homes without data are the first state of the legend.
HOMES_SHOWN = """(most) => {
  const text = document.querySelector("#states-legend b")?.innerText.replaceAll(",", "");
  return text && Number(text) <= most;
}"""
SIZES: dict[str, ViewportSize] = {
    "desktop": {"width": 1280, "height": 860},
    "phone": {"width": 390, "height": 844},
}


ENDINGS = [f',"why":"alive","region":"{region}"}}'.encode() for region in REGIONS]


def activities(simulator: HomeSimulator, minute: int, homes: Ints | None = None) -> Iterator[Event]:
    """All readings of some homes, in the format of the hub `activity`."""
    batch = simulator.minute(minute, homes)
    for home, body in zip(batch.columns.home.tolist(), batch.bodies(), strict=True):
        yield Event(body[:-1] + ENDINGS[home % len(ENDINGS)], partition_key=home_id(home))


def alerts(simulator: HomeSimulator, minute: int) -> Iterator[Event]:
    """The incidents of the last two hours, in the format of the hub `alerts`."""
    texts = {"break-in": "Door opened while away", "fire": "Smoke above 60 ppm"}
    for incident in simulator.truth(minute - 120, minute):
        kind, since = incident.kind, incident.since
        text = texts.get(kind, kind.replace("-", " "))
        region = region_of(home_number(incident.home))
        alert = Alert(incident.home, kind, incident.sensor, since, since, region, text)
        yield Event(encode_alert(alert))


class HomesSender(threading.Thread):
    """Sends the past readings, then live readings until it is stopped."""

    def __init__(self, connection: str) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.ready, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        asyncio.run(self.send())

    async def send(self) -> None:
        simulator = HomeSimulator(
            HOMES, 7, Incidents(break_in=1.0, fire=0.5, forgotten_window=2.0, silent_sensor=1.0)
        )
        minute = int(time.time() * 1000) // MINUTE_MS - 1
        async with (
            NativeClient(self.connection, ACTIVITY_HUB) as activity,
            NativeClient(self.connection, ALERTS_HUB) as alerts_client,
            NativeClient(self.connection, SENSORS_HUB) as sensors,
        ):
            await send_in_turn(activity, activities(simulator, minute))
            day_homes = np.arange(DAY_HOMES, dtype=np.int32)
            for ago in range(0, 24 * 60, 10):
                await send_in_turn(activity, activities(simulator, minute - ago, day_homes))
            await send_in_turn(alerts_client, alerts(simulator, minute))
            self.ready.set()
            await self.live(simulator, activity, sensors)

    async def live(
        self, simulator: HomeSimulator, activity: NativeClient, sensors: NativeClient
    ) -> None:
        last_s = int(time.time())
        while not self.stop.is_set():
            await asyncio.sleep(0.5)
            now_s = int(time.time())
            for second in range(last_s, now_s):
                due = simulator.due(second % 60, second % 60 + 1)
                events = list(activities(simulator, second // 60, due))
                await send_in_turn(sensors, events)
                await send_in_turn(activity, events[:: schema.ALIVE_EVERY])
            last_s = now_s


async def send_in_turn(client: NativeClient, events: Iterable[Event]) -> None:
    """Send batches to the partitions in turn."""
    batches: dict[int, list[Event]] = {}
    partitions = (await client.properties()).partitions
    for index, event in enumerate(events):
        batches.setdefault(index // BATCH, []).append(event)
    for number, batch in batches.items():
        sender = await client.sender(partitions[number % len(partitions)])
        await sender.send(batch)
        await sender.close()


@contextmanager
def simulated_page() -> Iterator[str]:
    with homes_hub(16) as hub, tempfile.TemporaryDirectory() as folder:
        hub.create_group("activity", "counters")
        homes_sender = HomesSender(hub.connection_string())
        homes_sender.start()
        dash = DashProcess(
            hub.connection_string(),
            *("--homes", "--homes-count", str(HOMES), "--events-group", "page", "--write"),
            *("--fleet", "activity/counters:pull:3", "--lease", "10s"),
            *("--store", f"{folder}/leases.db"),
        )
        try:
            if not homes_sender.ready.wait(READY_S):
                raise AssertionError(
                    "the past readings were not sent in time; see the error of the thread"
                )
            yield dash.url
        finally:
            dash.dispose()
            homes_sender.stop.set()
            homes_sender.join()


def change_hosts(page: Page) -> None:
    """Add a host and kill another, so that the timeline shows changes."""
    page.goto("/fleet")
    expect(page.locator("table.ownership tbody tr")).to_have_count(16)
    page.get_by_role("button", name="Add a host").click()
    page.wait_for_timeout(20_000)
    page.get_by_role("button", name="Kill pull-2").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    page.wait_for_timeout(25_000)


def open_alert(page: Page) -> None:
    """Open the newest alert."""
    page.locator("#alerts .details").first.click()
    expect(page.locator("#alert-card .steps li").first).to_be_visible()


def take(page: Page, name: str) -> None:
    for tab, path in (("homes", "/homes?home=42"), ("fleet", "/fleet"), ("events", "/events")):
        page.goto(path)
        expect(page.locator("#link-word")).to_have_text("live")
        if tab == "homes":
            open_alert(page)
        page.wait_for_timeout(3_000)
        page.evaluate("scrollTo(0, 0)")  # else the header is in the middle of the picture
        page.screenshot(path=FOLDER / f"{tab}-{name}.png", full_page=tab != "events")


def take_all(url: str, *, simulated: bool) -> None:
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
                page.goto(url)  # with the token
                if simulated and (theme, size) == ("light", "desktop"):
                    page.goto("/homes")
                    page.wait_for_function(HOMES_SHOWN, arg=HOMES * 0.01)  # some are silent
                    change_hosts(page)
                take(page, f"{size}-{theme}")
                context.close()


def main(arguments: list[str]) -> None:
    if arguments:
        take_all(arguments[0], simulated=False)
        return
    with simulated_page() as url:
        take_all(url, simulated=True)


if __name__ == "__main__":
    main(sys.argv[1:])
