"""The numbers of the page, compared with counts of the hubs and of the database."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.dashboard.monitors import homes as monitors
from pumphouse.dashboard.options import HomesFeed
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.dashboard.views import alerts
from pumphouse.dashboard.views.home_states import STATE_WORDS
from pumphouse.dashboard.views.numbers import NUMBERS
from pumphouse.homes.record.alert_states import CLOSE
from pumphouse.homes.record.records import open_records
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    HUBS,
    KINDS,
    MINUTE_MS,
    SENSORS_HUB,
)
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.page_client import PageClient, now_ms
from tests.dashboard.page_options import first, options
from tests.dashboard.recorded_homes import RecordedHomes, alert, reading

DOCS = Path(__file__).parents[2] / "docs" / "dashboard.md"
DAY_MS = 86_400_000
# What depends on the moment of a message.
MOMENTARY = (
    "at", "sensor_to_page", "sensor_to_alert", "readings_per_s", "activities_per_s", "behind_s",
    "alerts",
)  # fmt: skip


@pytest.fixture
def homes(hub: EmbeddedHub, tmp_path: Path) -> RecordedHomes:
    return RecordedHomes(hub.connection_string(), tmp_path / "homes.db")


def page_with(hub: EmbeddedHub, store: str, homes: RecordedHomes) -> Dashboard:
    feed = HomesFeed(hub.connection_string(), 100, database=str(homes.path))
    return Dashboard(options(hub, store, homes=feed))


async def numbers(page: Dashboard, matches: Callable[[Any], object]) -> Any:
    client = PageClient(page.port, page.access.launch_token)
    return await first(client, "/stream/homes", "homes", matches)


async def complete(page: Dashboard, matches: Callable[[Any], object]) -> Any:
    """The first message of a stream, after a message matches: it has everything."""
    await numbers(page, matches)
    return await numbers(page, lambda data: True)


async def send_some(homes: RecordedHomes) -> int:
    """Readings of 20 homes, of which sift keeps some; alerts of three; one is closed."""
    now = now_ms()
    kept = await homes.send_readings(
        *(reading(home, "motion", home % 2, now - 1000, seq=home) for home in range(20)),
        *(reading(home, "door", 0, now - 2000, seq=home + 1) for home in range(20)),
        reading(3, "glass", 1, now - 3000),
        reading(5, "glass", 1, now - 3000),
    )
    assert 0 < len(kept) < 42
    await homes.send(*kept, recorded=True)
    await homes.send(kept[0], recorded=True)  # sift has sent it twice
    old = alert(9, now - 3 * DAY_MS)
    closed = alert(7, now - 5000)
    mine = [alert(3, now - 4000), alert(3, now - 4000, "fire"), alert(8, now - 4000)]
    await homes.send(old, closed, *mine, mine[0], recorded=True)
    records = open_records(str(homes.path))
    records.mark(closed.id, CLOSE, "Ada", now)
    records.close()
    return now


async def test_the_numbers_agree_with_the_hubs_and_the_database(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    now = await send_some(homes)
    async with page_with(hub, store, homes) as page:
        data = await complete(page, lambda data: data["homes_heard"] == 20)
    # The hub.
    keys = {event.partition_key for event in await homes.events(SENSORS_HUB)}
    assert data["homes_heard"] == len(keys)
    # The database.
    open_alerts = "FROM alerts a LEFT JOIN alert_states s ON s.id = a.id WHERE s.closed_at IS NULL"
    assert [(data["alerts_open"],)] == homes.query(f"SELECT count(*) {open_alerts}") == [(4,)]
    in_alert = homes.query(f"SELECT count(DISTINCT a.home) {open_alerts}")
    assert [(data["homes_in_alert"],)] == in_alert == [(3,)]
    day = homes.query("SELECT count(*) FROM alerts WHERE at > ?", data["at"] - DAY_MS)
    assert [(data["alerts_day"],)] == day == [(4,)]
    by_state = dict(zip(STATE_WORDS, data["homes_by_state"], strict=True))
    assert by_state["alert"] == data["homes_in_alert"]
    assert by_state["alarm"] == 1, "glass is broken in home 5, without an alert"
    assert sum(data["homes_by_state"]) == data["size"] == 100
    assert by_state["no data"] == 100 - len(keys), "a home that is heard has data"
    expected = Counter(
        (at // MINUTE_MS * MINUTE_MS, sensor)
        for at, sensor in homes.query("SELECT at, sensor FROM activity")
    )
    rows = data["activities_per_minute"]
    shown = {(row[0], kind): row[1 + i] for row in rows for i, kind in enumerate(KINDS)}
    assert {key: count for key, count in shown.items() if count} == expected
    in_chart = homes.query("SELECT count(*) FROM alerts WHERE at >= ?", rows[0][0])
    assert [(sum(row[-1] for row in rows),)] == in_chart
    assert data["invalid"] == 0
    assert data["trouble"] == data["records_trouble"] == ""
    assert now <= data["at"]


async def test_the_delay_of_alerts_is_that_of_the_hub(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    """From the readings to the alerts in the hub, whether they are recorded or not."""
    now = now_ms()
    late = alert(9, now - 3 * DAY_MS)
    await homes.send(alert(1, now - 1000), alert(2, now - 2500), recorded=False)
    await homes.send(late, alert(3, now - 400), recorded=False)
    await homes.send(alert(1, now - 1000), recorded=False)  # sift has sent it twice
    async with page_with(hub, store, homes) as page:
        data = await numbers(page, lambda data: data["alerts_open"] == 4)
    first_of: dict[str, int] = {}
    for event in await homes.events(ALERTS_HUB):
        sent = json.loads(event.body)
        assert event.enqueued_ms is not None
        first_of.setdefault(sent["id"], event.enqueued_ms - sent["at"])
    delays = [round(delay / 1000, 2) for delay in sorted(first_of.values())]
    assert data["sensor_to_alert"] == {"alerts": 4, "p50_s": delays[1], "p99_s": delays[3]}
    assert delays[3] >= 3 * DAY_MS / 1000, "a late reading makes its alert late"


async def test_the_delay_of_recorded_alerts_is_that_of_the_database(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    now = now_ms()
    await homes.send(alert(1, now - 1000), alert(2, now - 2500), recorded=True)
    homes.change("UPDATE alerts SET enqueued = at + ? WHERE home = ?", 1500, "h000001")
    homes.change("UPDATE alerts SET enqueued = at + ? WHERE home = ?", 2250, "h000002")
    await homes.send(alert(3, now - 9 * 60_000), recorded=True)
    homes.change("UPDATE alerts SET enqueued = at + ? WHERE home = ?", 700, "h000003")
    async with page_with(hub, store, homes) as page:
        data = await numbers(page, lambda data: data["alerts_open"] == 3)
    delays = homes.query(
        "SELECT (enqueued - at) / 1000.0 FROM alerts WHERE enqueued > ? ORDER BY 1",
        data["at"] - 5 * MINUTE_MS,
    )
    assert delays == [(1.5,), (2.25,)]
    assert data["sensor_to_alert"] == {"alerts": 2, "p50_s": 1.5, "p99_s": 2.25}


async def test_rates_are_those_of_their_hubs(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    """Readings are counted in the hub sensors, activities in the hub activity."""
    async with page_with(hub, store, homes) as page:
        await numbers(page, lambda data: data["readings_per_s"] is not None)
        assert page.homes_monitor is not None
        totals = {name: meter.total for name, meter in page.homes_monitor.meters.items()}
        assert totals == {"sensors": 0, "activity": 0}
        kept = await homes.send_readings(*(reading(n, "smoke", 1, now_ms()) for n in range(30)))
        await homes.send(*kept, recorded=False)
        meters = page.homes_monitor.meters
        await numbers(page, lambda data: meters["activity"].total == len(kept))
        assert (meters["sensors"].total, meters["activity"].total) == (30, len(kept))


async def test_the_lag_of_a_stage_is_what_it_has_not_read_of_its_hubs(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, tmp_path: Path
) -> None:
    await send_some(homes)
    counts = {name: len(await homes.events(name)) for name in (SENSORS_HUB, ACTIVITY_HUB)}
    alerts = len(await homes.events(ALERTS_HUB))
    sift = {"state": "running", "lag_events": 0, "lag_s": 0.0, "taken": {SENSORS_HUB: 11}}
    record = sift | {"taken": {ACTIVITY_HUB: counts[ACTIVITY_HUB] - 2, ALERTS_HUB: alerts - 1}}
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"at": now_ms(), "stages": {"sift": sift, "record": record}}))
    feed = HomesFeed(hub.connection_string(), 100, database=str(homes.path))
    async with Dashboard(options(hub, store, homes=feed, status=status)) as page:
        client = PageClient(page.port, page.access.launch_token)
        expected = [counts[SENSORS_HUB] - 11, 2 + 1]

        def is_counted(data: Any) -> bool:
            stages = (data["stages"] or {}).get("stages", ())
            return [stage["lag_events"] for stage in stages] == expected

        await first(client, "/stream/fleet", "fleet", is_counted)


async def test_nothing_is_missing_after_a_restart_of_the_page(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    now = await send_some(homes)

    def is_complete(data: Any) -> bool:
        by_state = dict(zip(STATE_WORDS, data["homes_by_state"], strict=True))
        heard, alerts_open = data["homes_heard"], data["alerts_open"]
        return (heard, alerts_open, by_state["open"]) == (20, 5, 1)

    async with page_with(hub, store, homes) as page:
        await numbers(page, lambda data: data["alerts_open"] == 4)
        # These are in the hubs and not recorded yet.
        kept = await homes.send_readings(reading(2, "window", 1, now))
        await homes.send(*kept, alert(11, now), recorded=False)
        before = await complete(page, is_complete)
        home_before = await home(page, 3)
    async with page_with(hub, store, homes) as page:
        after = await complete(page, is_complete)
        home_after = await home(page, 3)
    assert stable(after) == stable(before)
    assert alerts_of(after) == alerts_of(before)
    assert len(alerts_of(after)) == 6
    assert home_after == home_before
    assert "4" in home_after["day"]["rows"]["glass"], "broken glass is in the last day"


async def home(page: Dashboard, number: int) -> Any:
    client = PageClient(page.port, page.access.launch_token)
    data = await first(client, f"/stream/home/{number}", "home")
    return {key: value for key, value in data.items() if key != "at"}


def stable(data: Any) -> Any:
    """The data without what depends on the moment."""
    rows = [row for row in data["activities_per_minute"] if any(row[1:])]
    rest = {key: value for key, value in data.items() if key not in MOMENTARY}
    return rest | {"activities_per_minute": rows}


def alerts_of(data: Any) -> list[tuple[str, str]]:
    return [(each["id"], each["state"]) for each in data["alerts"]]


async def test_the_past_survives_a_new_hub(store: str, tmp_path: Path) -> None:
    """The hub has lost its events; the database has them."""

    async def new_hub() -> EmbeddedHub:
        running = EmbeddedHub(dict.fromkeys(HUBS, 4))
        await running.start()
        for name in HUBS:
            running.create_group(name, "page")
        running.create_group("sensors", "counters")
        return running

    first_hub = await new_hub()
    homes = RecordedHomes(first_hub.connection_string(), tmp_path / "homes.db")
    await send_some(homes)
    await first_hub.stop()
    second_hub = await new_hub()
    async with page_with(second_hub, store, homes) as page:
        data = await numbers(page, lambda data: data["alerts_open"] == 4)
        assert (data["homes_heard"], data["homes_in_alert"], data["alerts_day"]) == (0, 3, 4)
        homes = RecordedHomes(second_hub.connection_string(), homes.path)
        await homes.send(alert(20, now_ms()), recorded=False)
        await numbers(page, lambda data: data["alerts_open"] == 5)
    await second_hub.stop()


def limit_alerts(monkeypatch: pytest.MonkeyPatch, *, shown: int, counted: int) -> None:
    for module in (alerts, monitors):
        monkeypatch.setattr(module, "ALERTS_MAX", shown)
        monkeypatch.setattr(module, "COUNTED_MAX", counted)


@pytest.mark.parametrize("recorded", [True, False])
async def test_alerts_that_are_not_shown_are_counted(
    hub: EmbeddedHub,
    store: str,
    homes: RecordedHomes,
    monkeypatch: pytest.MonkeyPatch,
    recorded: bool,
) -> None:
    """As the database does, also after one of them is closed on another page."""
    limit_alerts(monkeypatch, shown=2, counted=100)
    now = now_ms()
    await homes.send(*(alert(home, now - home) for home in range(5)), recorded=recorded)
    async with page_with(hub, store, homes) as page:
        data = await complete(page, lambda data: data["alerts_open"] == 5)
        assert (data["homes_in_alert"], data["alerts_day"], data["at_least"]) == (5, 5, [])
        if not recorded:
            return
        async with page_with(hub, store, homes) as other:
            fields = {"id": alert(4, now - 4).id, "by": "Ada"}
            await PageClient(other.port, other.access.launch_token).post(
                "/api/alerts/close", fields
            )
        data = await complete(page, lambda data: data["alerts_open"] == 4)
        assert (data["homes_in_alert"], data["alerts_day"]) == (4, 5)
        by_state = dict(zip(STATE_WORDS, data["homes_by_state"], strict=True))
        assert by_state["alert"] == 4


@pytest.mark.parametrize("recorded", [True, False])
async def test_numbers_of_alerts_are_lower_bounds_if_there_are_too_many(
    hub: EmbeddedHub,
    store: str,
    homes: RecordedHomes,
    monkeypatch: pytest.MonkeyPatch,
    recorded: bool,
) -> None:
    limit_alerts(monkeypatch, shown=2, counted=3)
    now = now_ms()
    await homes.send(*(alert(home, now - home) for home in range(3)), recorded=recorded)
    async with page_with(hub, store, homes) as page:
        data = await complete(page, lambda data: data["alerts_open"] == 3)
        assert data["at_least"] == []
        await homes.send(alert(3, now), alert(4, now), recorded=False)
        data = await complete(page, lambda data: data["at_least"])
    assert data["at_least"] == ["homes_in_alert", "alerts_open", "alerts_day"]
    shown = [data[name] for name in data["at_least"]]
    by_state = dict(zip(STATE_WORDS, data["homes_by_state"], strict=True))
    assert [*shown, by_state["alert"]] == [3, 3, 3, 3] < [len(await homes.events(ALERTS_HUB))] * 4


async def test_a_page_that_does_not_read_all_recorded_alerts_shows_lower_bounds(
    hub: EmbeddedHub, store: str, homes: RecordedHomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_alerts(monkeypatch, shown=2, counted=3)
    now = now_ms()
    await homes.send(*(alert(home, now - home) for home in range(5)), recorded=True)
    async with page_with(hub, store, homes) as page:
        data = await complete(page, lambda data: data["alerts_open"])
    assert data["at_least"] == ["homes_in_alert", "alerts_open", "alerts_day"]
    assert homes.query("SELECT count(*) FROM alerts") == [(5,)]
    assert (data["alerts_open"], data["homes_in_alert"]) == (3, 3)


async def test_a_database_that_does_not_exist_yet_is_read_later(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    async with page_with(hub, store, homes) as page:
        data = await numbers(page, lambda data: data["records_trouble"])
        assert "homes.db does not exist yet" in data["records_trouble"]
        await homes.send(alert(1, now_ms()), recorded=False)
        await numbers(page, lambda data: data["alerts_open"] == 1)
        await homes.send(alert(2, now_ms()), recorded=True)
        data = await numbers(page, lambda data: data["alerts_open"] == 2)
        await numbers(page, lambda data: not data["records_trouble"])


def test_the_documentation_has_the_definition_of_every_number() -> None:
    text = DOCS.read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| `(\w+)` \|$", text, re.MULTILINE)
    documented = [(name, title, meaning, source) for title, meaning, source, name in rows]
    assert documented == [
        (number.name, number.title, number.meaning, number.source) for number in NUMBERS
    ]


def test_every_number_has_its_data() -> None:
    """The names in views/numbers.py are the keys of the data that the script of the page uses."""
    script = (Path(__file__).parents[2] / "src/pumphouse/dashboard/static/homes.js").read_text(
        "utf-8"
    )
    for number in NUMBERS:
        uses = (f"data.{number.name}", f'(data, "{number.name}")')
        assert any(use in script for use in uses), number.name
