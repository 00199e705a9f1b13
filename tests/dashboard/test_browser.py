"""The page in a real browser.

All tests share one browser, one hub and one page, and run one after the other in one process.
"""

from __future__ import annotations

import os
import re

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from pumphouse.dashboard.views.numbers import NUMBERS
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.browser import BrowserLog, DashProcess, run_in_thread
from tests.dashboard.browser_page import browser, browser_log, dash, hub, page
from tests.dashboard.page_client import (
    activity,
    alert,
    send,
    send_activities,
    send_alerts,
    send_to_each,
)

__all__ = ["browser", "browser_log", "dash", "hub", "page"]

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PARTITIONS = 4
DASH = "\N{EN DASH}"


# The rows of the ownership table as objects: column title -> text.
ROWS = """[...document.querySelectorAll("table.ownership tbody tr")].map((row) => {
  const cells = [...row.children];
  return Object.fromEntries(cells.map((cell) => [cell.dataset.label, cell.innerText.trim()]));
})"""


def rows(page: Page) -> list[dict[str, str]]:
    """The texts of the ownership table by column title."""
    texts: list[dict[str, str]] = page.evaluate(ROWS)
    return texts


def wait_for_rows(page: Page, condition: str) -> None:
    """Wait until a JavaScript condition on `rows` is true."""
    page.wait_for_function(f"() => {{ const rows = {ROWS}; return {condition}; }}")


def hosts(page: Page) -> Locator:
    return page.get_by_role("list", name="Hosts").get_by_role("listitem")


def test_the_ownership_table(page: Page, hub: EmbeddedHub) -> None:
    page.goto("/fleet")
    wait_for_rows(page, "rows.length === 4 && new Set(rows.map((row) => row.Owner)).size === 2")
    run_in_thread(send_to_each(hub.connection_string(), "sensors", [Event(b"reading")] * 1234))
    wait_for_rows(page, "rows.every((row) => row.End === '1,233' && row.Lag === '0')")
    table = rows(page)
    assert [row["Checkpoint"] for row in table] == ["1,233"] * 4
    assert [row["Partition"] for row in table] == ["0", "1", "2", "3"]
    assert sorted(row["Owner"] for row in table) == ["pull-1", "pull-1", "pull-2", "pull-2"]
    assert sum(int(row["Epoch"]) for row in table) >= 4
    for row in table:
        assert re.fullmatch(r"[0-5]\.\d s", row["Lease left"]), row
        assert row["Lag time"] == "0.0 s"
        assert row["Status"] == "ok"
    expect(page.locator("article.group .pill").first).to_have_text("stable")
    expect(page.locator("article.group .summary")).to_contain_text("2 hosts, 2 partitions each")
    expect(page).to_have_title("Fleet · Pumphouse")
    expect(page.locator("#link-word")).to_have_text("live")


def test_every_column_has_a_meaning(page: Page) -> None:
    page.goto("/fleet")
    heads = page.locator("table.ownership thead th")
    expect(heads).to_have_count(11)
    for head in heads.all():
        assert (head.get_attribute("title") or "").endswith(".")
    what = page.locator("article.group details.what")
    what.locator("summary").click()
    expect(what).to_contain_text("Rises with every change of owner")
    expect(what).to_contain_text("has no live owner: it is not read")


def test_the_table_of_spark_stages(page: Page) -> None:
    page.goto("/fleet")
    cells = page.locator("#stages tbody tr", has_text="sift").locator("th, td")
    expect(cells).to_have_text(
        [
            "sift",
            "running",
            "12",
            "1.8 s",
            "8,333/s",
            "21,000/s",
            "0 (0.0 s)",
            DASH,
            "malformed 7",
            "2",
        ]
    )
    expect(page.locator("#stages-meaning")).to_contain_text("sift: malformed")
    expect(page.locator("#stages-empty")).to_contain_text("Stale data")


def test_all_counts_of_a_stage_are_visible_on_a_desktop(page: Page) -> None:
    page.goto("/fleet")
    expect(page.locator("#stages tbody tr", has_text="record")).to_contain_text("delay p99")
    width, content_width = page.locator("#stages").evaluate(
        "(table) => [table.parentElement.clientWidth, table.parentElement.scrollWidth]"
    )
    assert content_width <= width


def add_host(page: Page) -> str:
    """Press the button; the name of the new host after it owns a partition."""
    before = set(hosts(page).locator(".name").all_inner_texts())
    page.get_by_role("button", name="Add a host").click()
    expect(hosts(page)).not_to_have_count(len(before))
    (name,) = set(hosts(page).locator(".name").all_inner_texts()) - before
    wait_for_rows(page, f"rows.some((row) => row.Owner === '{name}')")
    return name


def open_fleet(page: Page) -> None:
    page.goto("/fleet")
    wait_for_rows(page, "rows.length === 4 && rows.every((row) => /^pull-\\d$/.test(row.Owner))")


def test_a_host_is_added_and_the_fleet_rebalances(page: Page) -> None:
    open_fleet(page)
    name = add_host(page)
    changes = page.get_by_role("list", name="Changes")
    expect(changes).to_contain_text(re.compile(rf"pull-\d handed partition \d to {name}, epoch"))
    expect(page.locator(".timeline canvas")).to_have_attribute("aria-label", re.compile(name))
    hosts(page).filter(has_text=name).get_by_role("button", name=f"Stop {name}").click()
    expect(hosts(page).filter(has_text=name)).to_contain_text("stopped at")
    wait_for_rows(page, f"rows.every((row) => row.Owner !== '{name}' && row.Owner !== 'none')")


def test_the_partitions_of_a_killed_host_are_claimed(page: Page) -> None:
    open_fleet(page)
    name = add_host(page)
    card = hosts(page).filter(has_text=name)
    pid = int(re.findall(r"pid (\d+)", card.inner_text())[0])
    card.get_by_role("button", name=f"Kill {name}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Kill {name}?")
    dialog.get_by_role("button", name="No").click()
    os.kill(pid, 0)  # alive: the kill was not confirmed
    card.get_by_role("button", name=f"Kill {name}").click()
    dialog.get_by_role("button", name="Kill").click()
    expect(card).to_contain_text("killed at")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    wait_for_rows(page, f"rows.every((row) => row.Owner !== '{name}' && row.Owner !== 'none')")
    changes = page.get_by_role("list", name="Changes")
    expect(changes).to_contain_text(f"the lease of {name} on partition")


def test_a_fault_is_injected_and_removed(page: Page, hub: EmbeddedHub) -> None:
    page.goto("/fleet")
    form = page.locator("#fault")
    expect(page.locator("#fault-action option").first).to_be_attached()
    page.locator("#fault-action").select_option("freeze")
    form.get_by_label("Hub").select_option("deadletter")
    form.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Inject").click()
    planned = page.get_by_role("list", name="Active faults").get_by_role("listitem")
    expect(planned).to_contain_text("freeze on deliver of hub deadletter, partition 1")
    assert [fault.action for fault in hub.faults.planned] == ["freeze"]
    planned.get_by_role("button", name="Remove").click()
    expect(planned).to_have_count(0)
    assert list(hub.faults.planned) == []


def test_a_home_and_its_alert(page: Page, hub: EmbeddedHub) -> None:
    connection = hub.connection_string()
    run_in_thread(
        send_activities(
            connection,
            activity(42, "door", 0),
            activity(42, "smoke", 4),
            activity(42, "motion", 3, battery=12),
            activity(7, "window", 1),
        )
    )
    keys = ("h000042", "h000007", "h000042")
    readings = [Event(b"{}", partition_key=key) for key in keys]
    run_in_thread(send(connection, "sensors", readings))
    page.goto("/homes")
    expect(page.locator("#figure-homes-heard .value")).to_have_text("2")
    expect(page.locator("#figure-homes-heard .note")).to_have_text("of 64")
    page.get_by_label("Find a home").fill("42")
    page.get_by_role("button", name="Show").click()
    sensors = page.locator("#home tbody tr")
    expect(sensors).to_have_count(3)
    expect(sensors.last).to_contain_text("4 ppm")
    now = [row.locator("th, td").all_inner_texts()[:2] for row in sensors.all()]
    assert now == [["motion", "3 movements"], ["door", "shut"], ["smoke", "4 ppm"]]
    expect(page.locator("#home .pill").first).to_have_text("trouble")
    strip = page.locator("#home .strip canvas")
    expect(strip).to_have_count(5)
    expect(strip.first).to_have_attribute("aria-label", re.compile("motion: active or open"))

    run_in_thread(send_alerts(connection, alert(42, text="Door opened while away")))
    mine = page.locator("#home ol.alerts li")
    expect(mine).to_have_count(1)
    expect(mine).to_contain_text("break-in")
    expect(page.locator("#alerts li").first).to_contain_text("Door opened while away · Kiln Lane")
    expect(page.locator("#home .pill").first).to_have_text("alert")
    expect(page.locator("#figure-homes-in-alert .value")).to_have_text("1")
    expect(page.locator("#figure-alerts-open .value")).to_have_text("1")
    expect(page.locator("#states-legend li").last.locator("b")).to_have_text("1")
    expect(page.locator("#figure-sensor-to-page .value")).to_have_text(re.compile(r"\d s"))
    expect(page.locator("#minutes canvas")).to_be_visible()
    page.get_by_text("The same as a table").click()
    kiln = page.locator("#regions tbody tr", has_text="Kiln Lane").locator("th, td")
    expect(kiln).to_have_text(["Kiln Lane", "3", "0", "0", "0", "0", "0", "1"])


def test_an_alert_is_opened_acknowledged_and_closed(
    page: Page, hub: EmbeddedHub, browser_log: BrowserLog
) -> None:
    run_in_thread(send_alerts(hub.connection_string(), alert(23, "fire", "Smoke in the kitchen")))
    page.goto("/homes")
    listed = page.locator("#alerts li", has_text="h000023")
    listed.get_by_role("button", name="Smoke in the kitchen").click()
    card = page.locator("#alert-card")
    expect(card).to_contain_text("Rule: Smoke or carbon monoxide is at 60 ppm or more.")
    steps = card.get_by_role("list", name="Steps").get_by_role("listitem")
    expect(steps).to_have_count(7)
    expect(steps.nth(3)).to_contain_text(re.compile(r"Alert raised\d\d:\d\d:\d\d\.\d\d\d"))
    expect(steps.nth(4)).to_contain_text(f"Row written{DASH}")
    expect(card.locator(".trace")).to_be_hidden()
    card.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#alert-error")).to_contain_text("enter your name")
    assert all("status of 400" in error for error in browser_log.errors)
    browser_log.errors.clear()
    card.get_by_label("Your name").fill("Ada")
    card.get_by_role("button", name="Acknowledge").click()
    expect(card.locator(".pill")).to_have_text("acknowledged")
    expect(steps.nth(5)).to_contain_text("by Ada")
    expect(listed).to_contain_text("acknowledged")
    card.get_by_role("button", name="Close").click()
    expect(card.locator(".pill")).to_have_text("closed")
    expect(listed).to_contain_text("closed")
    expect(card.get_by_role("button", name="Close")).to_be_hidden()
    card.get_by_role("button", name="h000023").click()
    expect(page.locator("#home strong")).to_have_text("h000023")
    page.reload()
    page.locator("#home ol.alerts").get_by_role("button", name="Smoke").click()
    expect(steps.nth(6)).to_contain_text("by Ada")


def test_every_number_has_a_definition(page: Page) -> None:
    page.goto("/homes")
    figures = page.locator("#homes-figures li")
    expect(figures).to_have_count(8)
    defined = {number.title: number.meaning for number in NUMBERS}
    for figure in figures.all():
        figure.locator("summary").click()
        title = figure.locator(".name").inner_text()
        expect(figure.locator("details")).to_contain_text(defined[title])
    expect(page.locator("#minutes-title")).to_have_text("Activities per minute")
    page.get_by_label("What is this? Activities per minute").click()
    expect(page.locator("main")).to_contain_text(defined["Activities per minute"])


def test_an_unknown_home_is_rejected(page: Page) -> None:
    page.goto("/homes")
    expect(page.locator("#figure-homes-heard .value")).to_have_text(re.compile(r"\d"))
    find = page.get_by_label("Find a home")
    find.fill("64")
    find.press("Enter")
    expect(page.locator("#find-error")).to_contain_text("the highest is h000063")
    find.fill("my home")
    find.press("Enter")
    expect(page.locator("#find-error")).to_contain_text("use a number of up to six digits")


def test_the_grid_by_keyboard(page: Page) -> None:
    page.goto("/homes")
    first = page.locator("#home-grid canvas").first
    expect(first).to_have_attribute("aria-label", re.compile("Homes of Alder Grove: . no data"))
    first.focus()
    cursor = page.locator("#home-cursor")
    expect(cursor).to_have_text("h000000 · Alder Grove · no data")
    page.keyboard.press("ArrowRight")
    expect(cursor).to_have_text("h000016 · Alder Grove · no data")
    page.keyboard.press("PageDown")
    expect(cursor).to_have_text("h000001 · Beacon Hill · no data")
    page.keyboard.press("Enter")
    expect(page.locator("#home strong")).to_have_text("h000001")


def test_events_are_tailed_filtered_and_sent(page: Page, hub: EmbeddedHub) -> None:
    page.goto("/events")
    page.locator("#tail-hub").select_option("deadletter")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("#tail-state")).to_have_text("0 read")
    form = page.locator("#send")
    page.locator("#send-hub").select_option("deadletter")
    form.get_by_label("Body").fill('{"hello": "browser"}')
    form.get_by_label("Partition").fill("2")
    form.get_by_label("Count").fill("3")
    form.get_by_role("button", name="Send").click()
    expect(page.locator("#send-state")).to_contain_text("3 events sent to deadletter")
    shown = page.locator("#tail-rows tr")
    expect(shown).to_have_count(3)
    cells = shown.first.locator("td").all_inner_texts()
    assert (cells[0], cells[1], cells[4]) == ("2", "2", '{"hello": "browser"}')
    shown.first.locator("summary").click()
    expect(shown.first.locator("pre")).to_have_text('{\n  "hello": "browser"\n}')

    run_in_thread(send(hub.connection_string(), "deadletter", [Event(b"needle"), Event(b"hay")]))
    expect(shown).to_have_count(5)
    tail = page.locator("#tail")
    tail.get_by_label("Contains").fill("NEEDLE")
    tail.get_by_label("From").fill("earliest")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("#tail-state")).to_have_text("5 read · 1 match")
    expect(shown).to_have_count(1)


def test_an_invalid_position_is_reported(page: Page, browser_log: BrowserLog) -> None:
    page.goto("/events")
    page.locator("#tail").get_by_label("From").fill("somewhere")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("#tail-state")).to_contain_text("invalid position 'somewhere'")
    # The browser logs each response with status 400.
    assert browser_log.errors
    assert all("status of 400" in error for error in browser_log.errors)
    browser_log.errors.clear()


def test_tabs_by_keyboard_and_back(page: Page) -> None:
    page.goto("/homes")
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_count(3)
    expect(page.get_by_role("tab", name="Homes")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Homes").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Fleet")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Fleet")).to_be_visible()
    assert page.url.endswith("/fleet")
    outline = page.get_by_role("tab", name="Fleet").evaluate(
        "(tab) => getComputedStyle(tab).outlineStyle"
    )
    assert outline == "solid"
    page.go_back()
    expect(page.get_by_role("tabpanel", name="Homes")).to_be_visible()


UNNAMED = """() => {
  const isNamed = (item) => item.labels?.length || item.getAttribute("aria-label")
    || item.getAttribute("aria-labelledby") || item.innerText?.trim() || item.title;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const controls = "button, input, select, textarea, a, canvas[role=img], [role=region], summary";
  const unnamed = all(controls).filter((item) => !isNamed(item));
  const images = [...document.images].filter((item) => !item.hasAttribute("alt"));
  const tables = all("table").filter((item) => item.rows.length && !item.closest(".uplot"));
  const headless = tables.filter((item) => !item.tHead);
  const ids = all("[id]").map((item) => item.id);
  const duplicates = ids.filter((id, index) => ids.indexOf(id) !== index);
  const bad = [...unnamed, ...images, ...headless];
  return bad.map((item) => item.outerHTML.slice(0, 120)).concat(duplicates);
}"""


@pytest.mark.parametrize("tab", ["homes", "fleet", "events"])
def test_every_control_has_a_name_and_fits_a_phone(page: Page, tab: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"/{tab}?home=42")
    expect(page.locator("#link-word")).to_have_text("live")
    if tab == "fleet":
        wait_for_rows(page, "rows.length === 4")
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == 3
    assert page.locator("main").count() == 1


CONTRAST = """() => {
  const channel = (v) => (v / 255 <= 0.04 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(channel);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const background = (item) => { for (let at = item; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!colour.endsWith(", 0)") && colour !== "transparent") return colour; }
    return "rgb(255, 255, 255)"; };
  const isText = (node) => node.nodeType === 3 && node.data.trim();
  const isShown = (item) => item.checkVisibility() && !item.disabled && !item.closest(".gone");
  const texts = [...document.querySelectorAll("body *")]
    .filter((item) => isShown(item) && [...item.childNodes].some(isText));
  const ratio = (item) => {
    const pair = [getComputedStyle(item).color, background(item)].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05); };
  return texts.filter((item) => ratio(item) < 4.5)
    .map((item) => [ratio(item), item.outerHTML.slice(0, 90)]);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(page: Page, hub: EmbeddedHub, theme: str) -> None:
    run_in_thread(send_activities(hub.connection_string(), activity(42, "door", 0)))
    page.emulate_media(color_scheme="light")
    page.emulate_media(reduced_motion="reduce")
    page.goto("/fleet")
    wait_for_rows(page, "rows.length === 4")
    if theme == "dark":
        page.get_by_role("button", name="Change between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.theme ?? 'light'") == theme
    assert page.evaluate(CONTRAST) == []
    page.reload()
    wait_for_rows(page, "rows.length === 4")
    assert page.evaluate("document.documentElement.dataset.theme ?? 'light'") == theme
    page.goto("/homes?home=42")
    expect(page.locator("#home tbody tr").first).to_be_visible()
    assert page.evaluate(CONTRAST) == []


def test_the_page_reconnects_to_a_restarted_server(
    page: Page, dash: DashProcess, browser_log: BrowserLog
) -> None:
    open_fleet(page)
    expect(page.locator("#banner")).to_be_hidden()
    assert dash.stop() == 0
    expect(page.locator("#banner")).to_contain_text("Connection to the server of the page lost")
    expect(page.locator("#link-word")).to_have_text("connection lost")
    assert len(rows(page)) == 4, "the known rows stay on the page"
    dash.start()
    expect(page.locator("#link-word")).to_have_text("live")
    expect(page.locator("#banner")).to_be_hidden()
    wait_for_rows(page, "rows.every((row) => /^pull-[12]$/.test(row.Owner))")
    # The restarted server has another token: the page requests it, and its buttons work.
    assert add_host(page) == "pull-3"
    others = [
        error for error in browser_log.errors if "net::ERR" not in error and "403" not in error
    ]
    browser_log.errors.clear()
    assert others == []
