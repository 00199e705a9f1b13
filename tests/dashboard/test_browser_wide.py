"""A group with 256 partitions and 50 hosts in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store_url import open_store
from tests.dashboard.browser import PATIENCE_MS, BrowserLog, DashProcess, run_in_thread
from tests.dashboard.browser_page import DESKTOP, browser

__all__ = ["browser"]

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

PARTITIONS, HOSTS, HUB, GROUP = 256, 50, "wide", "many"
# Events that are not handled yet: the higher the number, the more.
LAGGING = {"17": 3, "200": 9, "99": 5}


async def fill(connection: str, store_path: str) -> None:
    """Fifty hosts own all partitions, and have handled all events but the last few of some."""
    async with NativeClient(connection, HUB) as client, open_store(store_path) as store:
        group = Group(client.namespace, HUB, GROUP)
        names = (await client.properties()).partitions
        rows = [Ownership(name, f"host-{int(name) % HOSTS:02}", epoch=1) for name in names]
        await store.claim_ownership(group, rows)
        for name in names:
            sender = await client.sender(name)
            await sender.send([Event(b"reading")] * 10)
            await sender.close()
            sequence = 9 - LAGGING.get(name, 0)
            await store.update_checkpoint(Checkpoint(group, name, sequence, epoch=1))
        for number in range(HOSTS):
            await store.beat(group, f"host-{number:02}")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashProcess]:
    store = str(tmp_path_factory.mktemp("wide") / "leases.db")
    with EmbeddedHub({HUB: PARTITIONS}) as hub:
        hub.create_group(HUB, GROUP)
        run_in_thread(fill(hub.connection_string(), store))
        dash = DashProcess(
            hub.connection_string(),
            *("--group", f"{HUB}/{GROUP}", "--store", store, "--lease", "1h", "--every", "1s"),
        )
        yield dash
        dash.dispose()


@pytest.fixture
def page(browser: Browser, wide: DashProcess) -> Iterator[Page]:
    context = browser.new_context(viewport=DESKTOP, base_url=wide.url)
    context.set_default_timeout(PATIENCE_MS)
    log = BrowserLog(context, wide.port)
    opened = context.new_page()
    opened.goto(wide.url)
    yield opened
    context.close()
    assert (log.foreign_requests, log.errors) == ([], [])


def test_a_long_table_folds_sorts_by_lag_and_is_searched(page: Page) -> None:
    rows = page.locator("table.ownership tbody tr")
    partitions = rows.locator("th")
    expect(rows).to_have_count(16)
    search = page.get_by_role("search", name="Partitions")
    expect(search).to_contain_text("16 of 256 partitions")
    # The partitions with the longest lag come first.
    expect(partitions.nth(0)).to_have_text("200")
    assert partitions.all_inner_texts()[:4] == ["200", "99", "17", "0"]
    # The timeline has the same partitions: its height is bounded.
    box = page.locator(".timeline canvas").bounding_box()
    assert box is not None
    assert box["height"] < 400

    page.get_by_label("Sort by").select_option("Partition")
    expect(partitions.nth(0)).to_have_text("0")
    assert partitions.all_inner_texts() == [str(number) for number in range(16)]
    search.get_by_role("button", name="Show all 256").click()
    expect(rows).to_have_count(256)
    search.get_by_role("button", name="Show 16 only").click()
    expect(rows).to_have_count(16)

    find = page.get_by_label("Search partitions")
    find.fill("host-07")
    expect(rows).to_have_count(5)
    assert set(rows.locator(".owner").all_inner_texts()) == {"host-07"}
    find.fill("99")
    expect(rows).to_have_count(1)
    expect(rows.locator(".c-lag")).to_have_text("5")
    find.fill("nothing such")
    expect(rows).to_have_count(0)
    expect(search).to_contain_text("0 of 256 partitions")


def test_many_hosts_fold(page: Page) -> None:
    hosts = page.get_by_role("list", name="Hosts").get_by_role("listitem")
    expect(hosts).to_have_count(12)
    expect(page.locator(".summary")).to_contain_text("50 hosts, 5 to 6 partitions each")
    page.get_by_role("button", name="Show all 50 hosts").click()
    expect(hosts).to_have_count(50)
    page.get_by_role("button", name="Show 12 hosts only").click()
    expect(hosts).to_have_count(12)
