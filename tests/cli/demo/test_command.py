"""`pumphouse demo`: a small run, observed in a browser."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from pumphouse.cli import main
from pumphouse.cli.demo import stages
from pumphouse.cli.demo.command import check_hubs, hosts_text
from pumphouse.cli.demo.gauges import read_stages
from pumphouse.errors import PumphouseError
from pumphouse.homes.schema import HUBS
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.emulator_config import parse_config
from tests.cli.conftest import Program, refused
from tests.cli.demo.scraped_demo import (
    DEMO_S,
    ScrapedDemo,
    check_added_kind,
    check_boards,
    check_counts,
    check_lag_of_a_killed_host,
    check_pages,
    check_processors,
)
from tests.dashboard.browser import PATIENCE_MS, BrowserLog, open_browser
from tests.homes.kinds.kinds_files import TUTORIAL_TOML
from tests.lag.prometheus_server import Prometheus

MARK = "PUMPHOUSE_TEST_MARK"

HOMES = 400


@pytest.fixture
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser() as opened:
        yield opened


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes with this mark in their environment."""
    specs = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                specs.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return specs


def test_a_demo_without_hosts_reports_that_no_processors_run() -> None:
    assert hosts_text(0) == "none run (--hosts 0); the page can add hosts"
    assert hosts_text(1) == "1 host of each processor API, one consumer group per API"
    assert hosts_text(2) == "2 hosts of each processor API, one consumer group per API"


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("browser")
def test_the_demo_runs_and_leaves_no_process(
    program: Callable[..., Program],
    browser: Browser,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(MARK, mark := uuid.uuid4().hex)
    # As in the tutorial of a new kind of sensor.
    (tmp_path / "kinds.toml").write_text(TUTORIAL_TOML)
    args = ("--homes", str(HOMES), "--hosts", "1", "--metrics-port", "0", "--data", str(tmp_path),
            "--kinds", str(tmp_path / "kinds.toml"))  # fmt: skip
    (tmp_path / "prometheus").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        demo = program("demo", *args, "--port", str(other.getsockname()[1]))
        output = read_until(demo, r"page +(http://127\.0\.0\.1:\d+/\?token=[\w-]{32}) ")
    assert re.search(r"port \d+ is in use: choosing a free port", output)
    url = re.findall(r"page +(http://\S+)", output)[-1]
    keys = (tmp_path / "hub.out").stat()
    assert keys.st_mode & 0o777 == 0o600
    targets = re.findall(r"metrics +\S+ .* (http://127\.0\.0\.1:\d+/targets)", output)[-1]
    with Prometheus(tmp_path / "prometheus", targets, DEMO_S) as prometheus:
        check_page(url, browser)
        read_until(demo, r"sift lag [\d,]+ .*watch lag [\d,]+ .*record lag [\d,]+")
        assert len(processes_with(mark)) > 5
        check_metrics(ScrapedDemo(tmp_path, targets, url, prometheus, mark))
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait(60.0) == (0, "")
    # This process has the mark too, but not in the environment it was started with.
    assert processes_with(mark) == []
    stages = {stage.name for stage in read_stages(tmp_path / "homes" / "status.json")}
    assert stages == {"sift", "watch", "record"}


def check_metrics(demo: ScrapedDemo) -> None:
    check_pages(demo)
    check_counts(demo)
    check_added_kind(demo, "carbon-monoxide")
    check_boards(demo)
    check_processors(demo)
    check_lag_of_a_killed_host(demo)


def read_until(demo: Program, pattern: str) -> str:
    output = ""
    while not re.search(pattern, output):
        line = demo.line()
        assert line, f"it ended: {demo.wait()}\n{output}"
        output += line
    return output


def check_page(url: str, browser: Browser) -> None:
    context = browser.new_context(base_url=url)
    context.set_default_timeout(PATIENCE_MS)
    log = BrowserLog(context, urlsplit(url).port or 0)
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#minutes-text")).to_contain_text("carbon-monoxide")
    check_fleet(page)
    context.close()
    assert log.foreign_requests == []
    assert log.errors == []


def check_fleet(page: Page) -> None:
    """Every partition of every group is owned by its only host."""
    page.goto("/fleet")
    tables = page.locator("table.ownership")
    expect(tables).to_have_count(len(stages.FACES))
    for number, face in enumerate(stages.FACES):
        rows = tables.nth(number).locator("tbody tr")
        expect(rows).to_have_count(16)
        expect(rows.filter(has_text=re.compile(rf"{face}-1"))).to_have_count(16)


@pytest.mark.parametrize("missing", ["pyspark", "starlette"])
def test_a_missing_package_is_reported(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused(CliRunner().invoke(main, ["demo"]))
    assert message == (f"the demo needs {missing}: pip install 'pumphouse[azure,dashboard,spark]'")


def test_a_namespace_without_the_hubs_is_rejected(event_hub: EmbeddedHub) -> None:
    event_hub.create_hub("sensors", 1)
    with pytest.raises(PumphouseError) as failed:
        asyncio.run(check_hubs(event_hub.connection_string()))
    message = str(failed.value)
    assert message.startswith("hub activity of the Azure namespace cannot be read")
    assert "create sensors, activity, alerts, deadletter" in message
    assert event_hub.connection_string().partition("SharedAccessKey=")[2] not in message


def test_every_hub_has_the_groups_of_its_readers() -> None:
    specs = {spec.name: spec for spec in parse_config(json.dumps(stages.hubs_config(4)))}
    assert tuple(specs) == HUBS
    assert {spec.partitions for spec in specs.values()} == {4}
    assert set(specs["activity"].groups) == {
        *("sift", "watch", "record", "page"),
        *("tallies", "notices", "archive"),
    }
