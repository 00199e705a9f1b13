"""Fixtures of the browser tests: a hub, `pumphouse dash`, a browser, and an open page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from pumphouse.homes.record.database import open_database
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.browser import (
    PATIENCE_MS,
    BrowserLog,
    DashProcess,
    dash_arguments,
    homes_hub,
    open_browser,
)

__all__ = ["browser", "browser_log", "dash", "hub", "page"]

DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PARTITIONS = 4


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    with homes_hub(PARTITIONS) as running:
        yield running


@pytest.fixture(scope="module")
def dash(hub: EmbeddedHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashProcess]:
    folder = tmp_path_factory.mktemp("dash")
    (folder / "status.json").write_text(
        '{"v":1,"at":1,"stages":{"sift":{"state":"running","batch":12,"batch_ms":1830,'
        '"input_rate":8333.0,"processed_rate":21000.0,"lag_events":0,"lag_s":0.0,"state_rows":0,'
        '"state_bytes":0,"restarts":2,"error":null,"counts":{"malformed":7,"bad":7}},'
        '"record":{"state":"running","batch":1234,"batch_ms":3200,"input_rate":8333.0,'
        '"processed_rate":21000.0,"lag_events":1234567,"lag_s":100.0,"restarts":0,"error":null,'
        '"counts":{"rows":123456789,"duplicates":1234567,"behind_watermark":1234567,'
        '"unreadable":1234567,"known":1234567,"delay_p50_ms":123456,"delay_p99_ms":123456}}}}'
    )
    open_database(str(folder / "homes.db")).close()
    arguments = dash_arguments(folder, homes=64, fleet="counters:pull:2", lease="5s", every="0.3s")
    running = DashProcess(hub.connection_string(), *arguments, token="token-of-the-tests")
    yield running
    running.dispose()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser() as opened:
        yield opened


@pytest.fixture
def browser_log(browser: Browser, dash: DashProcess) -> Iterator[BrowserLog]:
    """Fails the test on errors in the browser. A test that expects errors clears the log."""
    context = browser.new_context(viewport=DESKTOP, base_url=dash.url)
    context.set_default_timeout(PATIENCE_MS)
    log = BrowserLog(context, dash.port)
    yield log
    context.close()
    assert log.foreign_requests == [], "a request left the machine"
    assert log.errors == []


@pytest.fixture
def page(browser_log: BrowserLog, dash: DashProcess) -> Page:
    page = browser_log.context.new_page()
    page.goto(dash.url)
    return page
