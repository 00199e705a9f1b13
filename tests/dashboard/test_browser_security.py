"""The page in a real browser: hostile events, and the token in its address."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.browser import BrowserLog, DashProcess, run_in_thread
from tests.dashboard.browser_page import browser, browser_log, dash, hub, page
from tests.dashboard.page_client import send

__all__ = ["browser", "browser_log", "dash", "hub", "page"]

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

HOSTILE_BODIES = [
    b"[NaN]",
    b"[Infinity]",
    b'\xef\xbb\xbf{"bom": 1}',
    '{"utf": 16}'.encode("utf-16"),
    b'["\\ud800"]',
    b"[" * 900 + b"]" * 900,
    b'{"__proto__": {"a": 1}}',
    b"<script>document.title = 'owned'</script>",
    b"data: x\n\nevent: ended\ndata: {}\n\n",
    b"\x1b[31m\x00\x07",
    b"x" * 200_000,
]


def test_no_event_breaks_the_page(page: Page, hub: EmbeddedHub) -> None:
    """The browser's log must stay empty: see the fixture."""
    key = "\r\nSet-Cookie: a=b\r\n\u2028<b>"
    hostile = [Event(body, {"a\nb": "\x1b[0m", "__proto__": "x"}, key) for body in HOSTILE_BODIES]
    last = Event(b'{"last": 1}', partition_key=key)  # in the same partition
    for name in ("deadletter", "activity", "alerts"):
        run_in_thread(send(hub.connection_string(), name, [*hostile, last]))
    page.goto("/homes")
    expect(page.locator("#link-word")).to_have_text("live")
    page.goto("/events")
    page.locator("#tail-hub").select_option("deadletter")
    page.locator("#tail").get_by_label("From").fill("earliest")
    page.get_by_role("button", name="Read").click()
    shown = page.locator("#tail-rows tr")
    expect(shown.filter(has_text='"last": 1')).to_have_count(1)
    assert shown.count() > len(HOSTILE_BODIES)
    for row in shown.all():
        row.locator("summary").click()
    expect(page.locator("#tail-rows pre").filter(has_text='"last": 1')).to_be_visible()
    expect(page).to_have_title("Events · Pumphouse")
    expect(shown.filter(has_text="NaN").locator("pre")).to_have_count(0)
    expect(page.locator("#link-word")).to_have_text("live")


def test_the_token_of_the_address_becomes_a_cookie(
    page: Page, dash: DashProcess, browser_log: BrowserLog
) -> None:
    address = f"http://127.0.0.1:{dash.port}/"
    assert dash.url == f"{address}?token=token-of-the-tests"
    assert page.url == address, "the token is removed from the address"
    assert "token" not in page.evaluate("document.cookie"), "scripts cannot read it"
    (cookie,) = browser_log.context.cookies()
    assert (cookie["name"], cookie["value"]) == (f"pumphouse-{dash.port}", "token-of-the-tests")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    browser_log.context.clear_cookies()
    page.goto("/fleet")
    expect(page.locator("body")).to_contain_text("open the address that the command has printed")
    page.goto(f"{address}homes?home=42&token=token-of-the-tests")
    expect(page.locator("#home")).to_be_visible()
    assert page.url == f"{address}homes?home=h000042"
    assert [error for error in browser_log.errors if "401" not in error] == []
    browser_log.errors.clear()


def test_a_page_whose_server_has_another_token_shows_what_to_do(
    page: Page, dash: DashProcess, browser_log: BrowserLog
) -> None:
    page.goto("/fleet")
    expect(page.locator("#link-word")).to_have_text("live")
    assert dash.stop() == 0
    env, dash.env = dash.env, {"PUMPHOUSE_DASH_TOKEN": "another-token-of-the-tests"}
    dash.start()
    expect(page.locator("#banner")).to_contain_text("Open the address that the command has printed")
    assert dash.stop() == 0
    dash.env = env
    dash.start()
    expect(page.locator("#link-word")).to_have_text("live")
    expect(page.locator("#banner")).to_be_hidden()
    browser_log.errors.clear()
