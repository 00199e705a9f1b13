"""An alert in detail, and who acknowledged and closed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pumphouse.dashboard.options import HomesFeed
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.dashboard.views.alert_details import AROUND_MAX, alert_details_json, nearest
from pumphouse.dashboard.views.alerts import ShownAlert
from pumphouse.events import Event
from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.record.database import open_database
from pumphouse.homes.record.recorded import RecordedActivity
from pumphouse.homes.schema import SENSORS_HUB, Alert, encode_reading
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.page_client import PageClient, now_ms
from tests.dashboard.page_options import first, options
from tests.dashboard.recorded_homes import RecordedHomes, alert, reading
from tests.homes.record.rows import as_tables, reached
from tests.postgres.server import PostgresServer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
NAMES = ["Reading taken", "Reading sent", "Sifted", "Alert raised", "Row written"]


@pytest.fixture
def homes(hub: EmbeddedHub, tmp_path: Path) -> RecordedHomes:
    return RecordedHomes(hub.connection_string(), tmp_path / "homes.db")


def page_with(hub: EmbeddedHub, store: str, homes: RecordedHomes, **more: Any) -> Dashboard:
    feed = HomesFeed(hub.connection_string(), 100, database=str(homes.path))
    return Dashboard(options(hub, store, homes=feed, **more))


def client_of(page: Dashboard) -> PageClient:
    return PageClient(page.port, page.access.launch_token)


async def raise_alert(homes: RecordedHomes) -> Alert:
    """A door opens; the alert and all its steps are recorded."""
    now = now_ms()
    kept = await homes.send_readings(
        reading(5, "door", 1, now - 500), reading(5, "motion", 2, now - 60_000)
    )
    await homes.send(*kept, recorded=True)
    raised = alert(5, now - 500)
    await homes.send(raised, recorded=True, trace=f"00-{TRACE_ID}-b7ad6b7169203331-01 a=b")
    return raised


async def sent_ms(homes: RecordedHomes, expected: Event) -> int | None:
    events = await homes.events(SENSORS_HUB)
    (sent,) = [event for event in events if event.body == expected.body]
    return sent.enqueued_ms


async def test_an_alert_has_its_rule_its_steps_and_its_activities(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    raised = await raise_alert(homes)
    async with page_with(hub, store, homes) as page:
        client = client_of(page)
        details = (await client.get(f"/api/alert?id={raised.id}")).json
        unknown = await client.get("/api/alert?id=fire:h000001:1")
    assert (unknown.status, "unknown alert" in unknown.json["error"]) == (404, True)
    assert details["alert"]["home"] == "h000005"
    assert details["rule"].startswith("The door opens or glass breaks")
    assert details["trace"] == TRACE_ID
    steps = {step["name"]: step["at"] for step in details["steps"]}
    assert list(steps)[:5] == NAMES
    assert steps["Reading taken"] == raised.at
    expected = Event(encode_reading(reading(5, "door", 1, raised.at)))
    assert steps["Reading sent"] == await sent_ms(homes, expected)
    (sifted,) = homes.query("SELECT enqueued FROM activity WHERE sensor = 'door'")
    (rows,) = homes.query(
        "SELECT a.enqueued, s.recorded FROM alerts a JOIN alert_states s ON s.id = a.id"
    )
    assert (steps["Sifted"], steps["Alert raised"], steps["Row written"]) == (sifted[0], *rows)
    assert (steps["Acknowledged"], steps["Closed"]) == (None, None)
    shown = [(each["sensor"], each["text"], each["raised"]) for each in details["activities"]]
    assert shown == [("motion", "2 movements", False), ("door", "open", True)]


async def test_an_alert_is_acknowledged_and_closed_and_stays_so(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    raised = await raise_alert(homes)
    async with page_with(hub, store, homes) as page:
        client = client_of(page)
        await first(client, "/stream/homes", "homes", lambda data: data["alerts_open"] == 1)
        fields = {"id": raised.id, "by": " Ada "}
        details = (await client.post("/api/alerts/acknowledge", fields)).json
        assert (details["alert"]["state"], details["can_change"]) == ("acknowledged", True)
        await client.post("/api/alerts/acknowledge", {"id": raised.id, "by": "Bob"})
        details = (await client.post("/api/alerts/close", {"id": raised.id, "by": "Bob"})).json
        assert [step["note"] for step in details["steps"]][-2:] == ["by Ada", "by Bob"]
        data = await first(client, "/stream/homes", "homes", lambda data: data["alerts_open"] == 0)
        assert (data["homes_in_alert"], data["alerts_day"]) == (0, 1)
    stored = homes.query("SELECT acknowledged_by, closed_by, acknowledged_at FROM alert_states")
    assert [row[:2] for row in stored] == [("Ada", "Bob")]
    async with page_with(hub, store, homes) as page:
        details = (await client_of(page).get(f"/api/alert?id={raised.id}")).json
        assert details["alert"]["state"] == "closed"
        assert details["alert"]["acknowledged_at"] == stored[0][2]


async def test_an_alert_is_closed_in_postgresql(hub: EmbeddedHub, store: str) -> None:
    raised = alert(5, now_ms())
    with PostgresServer() as server:
        url = server.database()
        database = open_database(url)
        batch = as_tables(alerts=[raised])
        database.store(batch, reached(batch), raised.at)
        database.close()
        feed = HomesFeed(hub.connection_string(), 100, database=url)
        async with Dashboard(options(hub, store, homes=feed)) as page:
            fields = {"id": raised.id, "by": "Ada"}
            details = (await client_of(page).post("/api/alerts/close", fields)).json
            assert details["alert"]["closed_by"] == "Ada"
        async with Dashboard(options(hub, store, homes=feed)) as page:
            client = client_of(page)
            data = await first(
                client, "/stream/homes", "homes", lambda data: data["alerts_day"] == 1
            )
            assert (data["alerts_open"], data["records_trouble"]) == (0, "")
            details = (await client.get(f"/api/alert?id={raised.id}")).json
            assert (details["alert"]["state"], details["alert"]["closed_by"]) == ("closed", "Ada")


async def test_a_page_shows_what_another_page_has_closed(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    raised = await raise_alert(homes)
    async with (
        page_with(hub, store, homes) as first_page,
        page_with(hub, store, homes) as second_page,
    ):
        await first(
            client_of(second_page), "/stream/homes", "homes", lambda data: data["alerts_open"] == 1
        )
        await client_of(first_page).post("/api/alerts/close", {"id": raised.id, "by": "Ada"})
        data = await first(
            client_of(second_page), "/stream/homes", "homes", lambda data: data["alerts_open"] == 0
        )
        assert data["homes_in_alert"] == 0


async def test_a_change_needs_the_page_write_access_and_a_name(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    raised = await raise_alert(homes)
    fields = {"id": raised.id, "by": "Ada"}
    async with page_with(hub, store, homes) as page:
        client = client_of(page)
        foreign = {"origin": "http://evil.example"}
        assert (await client.post("/api/alerts/close", fields, **foreign)).status == 403
        wrong = {"x-pumphouse-token": "wrong"}
        assert (await client.post("/api/alerts/close", fields, **wrong)).status == 403
        assert (await PageClient(page.port).get(f"/api/alert?id={raised.id}")).status == 401
        for data, message in [
            (fields | {"by": ""}, "enter your name"),
            (fields | {"by": None}, "enter your name"),
            (fields | {"by": "a\nb"}, "invalid name"),
            (fields | {"by": "a" * 61}, "invalid name"),
            (fields | {"id": "fire:h000001:1"}, "unknown alert"),
        ]:
            refused = await client.post("/api/alerts/close", data)
            assert (refused.status, message in refused.json["error"]) == (400, True), refused.json
        refused = await client.post("/api/alerts/delete", fields)
        assert (refused.status, "unknown action" in refused.json["error"]) == (400, True)
    async with page_with(hub, store, homes, write=False) as page:
        refused = await client_of(page).post("/api/alerts/close", fields)
        assert (refused.status, "read-only" in refused.json["error"]) == (400, True)
        details = (await client_of(page).get(f"/api/alert?id={raised.id}")).json
        assert details["can_change"] is False
    assert homes.query("SELECT closed_at FROM alert_states") == [(None,)]


async def test_an_alert_without_a_database_is_shown_as_far_as_it_is_known(
    hub: EmbeddedHub, store: str, homes: RecordedHomes
) -> None:
    raised = alert(6, now_ms())
    await homes.send(raised, recorded=False)
    async with Dashboard(options(hub, store)) as page:
        client = client_of(page)
        await first(client, "/stream/homes", "homes", lambda data: data["alerts_open"] == 1)
        details = (await client.get(f"/api/alert?id={raised.id}")).json
        refused = await client.post("/api/alerts/close", {"id": raised.id, "by": "Ada"})
    steps = {step["name"]: step["at"] for step in details["steps"]}
    assert steps["Alert raised"] is not None
    assert [steps[name] for name in ("Reading sent", "Sifted", "Row written")] == [None] * 3
    assert details["activities"] == []
    assert (refused.status, "--database" in refused.json["error"]) == (400, True)


def test_the_nearest_activities_are_shown() -> None:
    raised = alert(1, 1_000_000)
    rows = [RecordedActivity("door", at, 0, "home", "alive", None, at, None) for at in range(500)]
    assert [each.at for each in nearest(raised, rows)] == list(range(500 - AROUND_MAX, 500))
    long = RecordedActivity("door", 5, None, None, "w" * 1000, "f" * 1000, 5, None)
    shown = ShownAlert(1, raised, AlertState())
    (cut,) = alert_details_json(shown, [long], None, can_change=False)["activities"]
    assert (len(cut["why"]), len(cut["text"]), cut["mode"]) == (60, 60, "")
    details = alert_details_json(shown, [], None, can_change=False)
    assert [step["at"] for step in details["steps"]] == [raised.at, *[None] * 6]
