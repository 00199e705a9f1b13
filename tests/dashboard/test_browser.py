"""The page in a real browser: what is in its cells, and what happens when something happens.

One browser, one hub and one page for all of these; they run in one process, one after the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.browser import (
    PATIENCE_MS,
    Dash,
    Witness,
    await_apart,
    dash_words,
    homes_hub,
    open_browser,
)
from tests.dashboard.page_client import (
    activity,
    alert,
    send,
    send_activities,
    send_alerts,
    send_to_each,
)

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PARTITIONS = 4
DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    with homes_hub(PARTITIONS) as running:
        yield running


@pytest.fixture(scope="module")
def dash(hub: EmbeddedHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dash]:
    folder = tmp_path_factory.mktemp("dash")
    (folder / "status.json").write_text(
        '{"v":1,"at":1,"stages":{"sift":{"state":"running","batch":12,"batch_ms":1830,'
        '"input_rate":8333.0,"processed_rate":21000.0,"lag_events":0,"lag_s":0.0,"state_rows":0,'
        '"state_bytes":0,"restarts":2,"error":null,"counts":{"bad":7}}}}'
    )
    words = dash_words(folder, homes=64, fleet="counters:pull:2", lease="5s", every="0.3s")
    running = Dash(hub.connection_string(), *words)
    yield running
    running.dispose()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser() as opened:
        yield opened


@pytest.fixture
def witness(browser: Browser, dash: Dash) -> Iterator[Witness]:
    """Who expects errors empties it before the end."""
    context = browser.new_context(viewport=DESKTOP, base_url=dash.url)
    context.set_default_timeout(PATIENCE_MS)
    heard = Witness(context, dash.port)
    yield heard
    context.close()
    assert heard.elsewhere == [], "a request left the machine"
    assert heard.errors == []


@pytest.fixture
def page(witness: Witness) -> Page:
    return witness.context.new_page()


def rows(page: Page) -> list[list[str]]:
    """The ownership table as it is written."""
    table = page.locator("table.ownership tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in table.all()]


def wait_for_rows(page: Page, condition: str) -> None:
    """Until a condition on `rows` (lists of texts) holds."""
    page.wait_for_function(
        "() => { const rows = [...document.querySelectorAll('table.ownership tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.innerText.trim())); "
        f"return {condition}; }}"
    )


def hosts(page: Page) -> Locator:
    return page.get_by_role("list", name="Hosts").get_by_role("listitem")


def test_the_table_says_what_is_true(page: Page, hub: EmbeddedHub) -> None:
    page.goto("/fleet")
    wait_for_rows(page, "rows.length === 4 && new Set(rows.map((row) => row[1])).size === 2")
    await_apart(send_to_each(hub.connection_string(), "sensors", [Event(b"reading")] * 1234))
    # Nobody else sends to this hub.
    wait_for_rows(page, "rows.every((row) => row[5] === '1,233' && row[6] === '0')")
    found = rows(page)
    assert [row[4] for row in found] == ["1,233"] * 4
    assert [row[0] for row in found] == ["0", "1", "2", "3"]
    assert sorted(row[1] for row in found) == ["pull-1", "pull-1", "pull-2", "pull-2"]
    assert sum(int(row[2]) for row in found) >= 4
    for row in found:
        assert re.fullmatch(r"[0-5]\.\d s", row[3]), row
        assert row[7] == "0.0 s"
        assert row[10] == "ok"
    expect(page.locator("article.group .pill").first).to_have_text("stable")
    expect(page.locator("article.group .summary")).to_contain_text("2 hosts, 2 partitions each")
    expect(page).to_have_title("Fleet · Pumphouse")
    expect(page.locator("#link-word")).to_have_text("live")


def test_every_column_is_explained(page: Page) -> None:
    page.goto("/fleet")
    heads = page.locator("table.ownership thead th")
    expect(heads).to_have_count(11)
    for head in heads.all():
        assert (head.get_attribute("title") or "").endswith(".")
    what = page.locator("article.group details.what")
    what.locator("summary").click()
    expect(what).to_contain_text("Rises by one whenever the partition changes hands")
    expect(what).to_contain_text("has no live owner: it is not read")


def test_stages_of_spark(page: Page) -> None:
    page.goto("/fleet")
    cells = page.locator("#stages tbody tr").locator("th, td")
    expect(cells).to_have_text(
        ["sift", "running", "12", "1.8 s", "8,333/s", "21,000/s", "0 (0.0 s)", DASH, "bad 7", "2"]
    )
    expect(page.locator("#stages-empty")).to_contain_text("These figures are old")


def add_host(page: Page) -> str:
    """Press the button; the name of the host that came, once it owns something."""
    before = set(hosts(page).locator(".name").all_inner_texts())
    page.get_by_role("button", name="Add a host").click()
    expect(hosts(page)).not_to_have_count(len(before))
    (name,) = set(hosts(page).locator(".name").all_inner_texts()) - before
    wait_for_rows(page, f"rows.some((row) => row[1] === '{name}')")
    return name


def open_fleet(page: Page) -> None:
    page.goto("/fleet")
    wait_for_rows(page, "rows.length === 4 && rows.every((row) => /^pull-\\d$/.test(row[1]))")


def test_a_host_is_added_and_the_fleet_rebalances(page: Page) -> None:
    open_fleet(page)
    name = add_host(page)
    happened = page.get_by_role("list", name="What happened")
    expect(happened).to_contain_text(re.compile(rf"pull-\d handed partition \d to {name}, epoch"))
    expect(page.locator(".lanes canvas")).to_have_attribute("aria-label", re.compile(name))
    hosts(page).filter(has_text=name).get_by_role("button", name=f"Stop {name}").click()
    expect(hosts(page).filter(has_text=name)).to_contain_text("stopped at")
    wait_for_rows(page, f"rows.every((row) => row[1] !== '{name}' && row[1] !== 'nobody')")


def test_a_host_is_killed_and_others_take_over(page: Page) -> None:
    open_fleet(page)
    name = add_host(page)
    card = hosts(page).filter(has_text=name)
    pid = int(re.findall(r"pid (\d+)", card.inner_text())[0])
    card.get_by_role("button", name=f"Kill {name}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Kill {name}?")
    dialog.get_by_role("button", name="No").click()
    os.kill(pid, 0)  # it lives: nobody is killed by a slip of the hand
    card.get_by_role("button", name=f"Kill {name}").click()
    dialog.get_by_role("button", name="Kill").click()
    expect(card).to_contain_text("killed at")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    wait_for_rows(page, f"rows.every((row) => row[1] !== '{name}' && row[1] !== 'nobody')")
    happened = page.get_by_role("list", name="What happened")
    expect(happened).to_contain_text(f"the lease of {name} on partition")


def test_a_fault_is_injected_and_taken_away(page: Page, hub: EmbeddedHub) -> None:
    page.goto("/fleet")
    form = page.locator("#fault")
    expect(page.locator("#fault-action option").first).to_be_attached()
    page.locator("#fault-action").select_option("freeze")
    form.get_by_label("Hub").select_option("deadletter")
    form.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Inject").click()
    planned = page.get_by_role("list", name="Planned faults").get_by_role("listitem")
    expect(planned).to_contain_text("freeze on deliver of hub deadletter, partition 1")
    assert [fault.action for fault in hub.faults.planned] == ["freeze"]
    planned.get_by_role("button", name="Take away").click()
    expect(planned).to_have_count(0)
    assert list(hub.faults.planned) == []


def test_a_home_and_its_alert(page: Page, hub: EmbeddedHub) -> None:
    connection = hub.connection_string()
    await_apart(
        send_activities(
            connection,
            activity(42, "door", 0),
            activity(42, "smoke", 4),
            activity(42, "motion", 3, battery=12),
            activity(7, "window", 1),
        )
    )
    page.goto("/homes")
    expect(page.locator("#figure-homes .value")).to_have_text(re.compile("[1-9]"))
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

    await_apart(send_alerts(connection, alert(42, text="Door opened while away")))
    mine = page.locator("#home ol.alerts li")
    expect(mine).to_have_count(1)
    expect(mine).to_contain_text("break-in")
    expect(page.locator("#alerts li")).to_contain_text("Door opened while away · Kiln Lane")
    expect(page.locator("#home .pill").first).to_have_text("alert")
    expect(page.locator("#figure-alert .value")).to_have_text("1")
    expect(page.locator("#states-legend li").last.locator("b")).to_have_text("1")
    expect(page.locator("#figure-delay .value")).to_have_text(re.compile(r"\d s"))
    expect(page.locator("#minutes canvas")).to_be_visible()
    page.get_by_text("The same as a table").click()
    kiln = page.locator("#regions tbody tr", has_text="Kiln Lane").locator("th, td")
    expect(kiln).to_have_text(["Kiln Lane", "3", "0", "0", "0", "0", "1"])


def test_a_home_that_there_is_not(page: Page) -> None:
    page.goto("/homes")
    expect(page.locator("#figure-homes .value")).to_have_text(re.compile(r"\d"))
    find = page.get_by_label("Find a home")
    find.fill("64")
    find.press("Enter")
    expect(page.locator("#find-error")).to_contain_text("the highest is h000063")
    find.fill("my home")
    find.press("Enter")
    expect(page.locator("#find-error")).to_contain_text("a number of up to six digits")


def test_the_picture_by_keyboard(page: Page) -> None:
    page.goto("/homes")
    first = page.locator("#town canvas").first
    expect(first).to_have_attribute("aria-label", re.compile("Homes of Alder Grove: . not heard"))
    first.focus()
    cursor = page.locator("#town-cursor")
    expect(cursor).to_have_text("h000000 · Alder Grove · not heard")
    page.keyboard.press("ArrowRight")
    expect(cursor).to_have_text("h000016 · Alder Grove · not heard")
    page.keyboard.press("PageDown")
    expect(cursor).to_have_text("h000001 · Beacon Hill · not heard")
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
    form.get_by_label("How many").fill("3")
    form.get_by_role("button", name="Send").click()
    expect(page.locator("#send-state")).to_contain_text("3 events sent to deadletter")
    shown = page.locator("#tail-rows tr")
    expect(shown).to_have_count(3)
    cells = shown.first.locator("td").all_inner_texts()
    assert (cells[0], cells[1], cells[4]) == ("2", "2", '{"hello": "browser"}')
    shown.first.locator("summary").click()
    expect(shown.first.locator("pre")).to_have_text('{\n  "hello": "browser"\n}')

    await_apart(send(hub.connection_string(), "deadletter", [Event(b"needle"), Event(b"hay")]))
    expect(shown).to_have_count(5)
    tail = page.locator("#tail")
    tail.get_by_label("Contains").fill("NEEDLE")
    tail.get_by_label("From").fill("earliest")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("#tail-state")).to_have_text("5 read · 1 match")
    expect(shown).to_have_count(1)


def test_what_cannot_be_read_is_said(page: Page, witness: Witness) -> None:
    page.goto("/events")
    page.locator("#tail").get_by_label("From").fill("somewhere")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("#tail-state")).to_contain_text("invalid position 'somewhere'")
    # The browser itself notes each answer of 400.
    assert witness.errors
    assert all("status of 400" in error for error in witness.errors)
    witness.errors.clear()


def test_tabs_by_keyboard_and_the_way_back(page: Page) -> None:
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
  const named = (element) => element.labels?.length || element.getAttribute("aria-label")
    || element.getAttribute("aria-labelledby") || element.innerText?.trim() || element.title;
  const wanted = "button, input, select, textarea, a, canvas[role=img], [role=region], summary";
  const bad = [...document.querySelectorAll(wanted)].filter((one) => !named(one));
  const pictures = [...document.images].filter((one) => !one.hasAttribute("alt"));
  const tables = [...document.querySelectorAll("table")];
  const heads = tables.filter((one) => one.rows.length && !one.tHead && !one.closest(".uplot"));
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
  return [...bad, ...pictures, ...heads].map((one) => one.outerHTML.slice(0, 120)).concat(twice);
}"""


@pytest.mark.parametrize("tab", ["homes", "fleet", "events"])
def test_everything_has_a_name_and_fits_a_phone(page: Page, tab: str) -> None:
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
  const behind = (one) => { for (let at = one; at; at = at.parentElement) {
    const found = getComputedStyle(at).backgroundColor;
    if (!found.endsWith(", 0)") && found !== "transparent") return found; }
    return "rgb(255, 255, 255)"; };
  const text = (node) => node.nodeType === 3 && node.data.trim();
  const texts = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && !one.disabled && !one.closest(".gone") && [...one.childNodes].some(text));
  const ratio = (one) => { const pair = [getComputedStyle(one).color, behind(one)].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05); };
  return texts.filter((one) => ratio(one) < 4.5)
    .map((one) => [ratio(one), one.outerHTML.slice(0, 90)]);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(page: Page, hub: EmbeddedHub, theme: str) -> None:
    await_apart(send_activities(hub.connection_string(), activity(42, "door", 0)))
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


def test_the_connection_is_lost_and_found_again(page: Page, dash: Dash, witness: Witness) -> None:
    open_fleet(page)
    expect(page.locator("#banner")).to_be_hidden()
    assert dash.stop() == 0
    expect(page.locator("#banner")).to_contain_text("The page has lost its server")
    expect(page.locator("#link-word")).to_have_text("connection lost")
    assert len(rows(page)) == 4, "what was known stays on the page"
    dash.start()
    expect(page.locator("#link-word")).to_have_text("live")
    expect(page.locator("#banner")).to_be_hidden()
    wait_for_rows(page, "rows.every((row) => /^pull-[12]$/.test(row[1]))")
    # Another server has another token: the page asks for it, and its buttons work.
    assert add_host(page) == "pull-3"
    others = [error for error in witness.errors if "net::ERR" not in error and "403" not in error]
    witness.errors.clear()
    assert others == []
