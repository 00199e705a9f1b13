"""`pumphouse demo`: all of it at once, small; seen in a browser, and gone without a trace."""

from __future__ import annotations

import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from pumphouse.cli import main
from pumphouse.cli.demo import stages
from pumphouse.cli.demo.gauges import Gauge, Stage, read_stages, stages_of
from pumphouse.homes.schema import HUBS
from pumphouse.hub.emulator_config import parse_config
from tests.cli.conftest import Program, refused
from tests.dashboard.browser import PATIENCE_MS, Witness, open_browser

MARK = "PUMPHOUSE_TEST_MARK"
HOMES = 400


@pytest.fixture
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with open_browser() as opened:
        yield opened


def marked(mark: str) -> list[str]:
    """The processes that carry our mark in their environment: ours, and all that they started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("browser")
def test_the_whole_of_it_is_seen_and_leaves_nothing_behind(
    program: Callable[..., Program],
    browser: Browser,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(MARK, mark := uuid.uuid4().hex)
    words = ("--homes", str(HOMES), "--hosts", "1", "--data", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo = program("demo", *words, "--port", str(taken.getsockname()[1]))
        told = told_until(demo, r"page +(http://127\.0\.0\.1:\d+/)")
    assert re.search(r"port \d+ is taken: the page takes another", told)
    url = re.findall(r"page +(http://\S+)", told)[-1]
    look_at(url, browser)
    told_until(demo, r"sift lag [\d,]+ .*watch lag [\d,]+ .*record lag [\d,]+")
    assert len(marked(mark)) > 5
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait(60.0) == (0, "")
    # This very process has the mark too, but not in the environment it was started with.
    assert marked(mark) == []
    stages = {stage.name for stage in read_stages(tmp_path / "homes" / "status.json")}
    assert stages == {"sift", "watch", "record"}


def told_until(demo: Program, pattern: str) -> str:
    told = ""
    while not re.search(pattern, told):
        line = demo.line()
        assert line, f"it ended: {demo.wait()}\n{told}"
        told += line
    return told


def look_at(url: str, browser: Browser) -> None:
    context = browser.new_context(base_url=url)
    context.set_default_timeout(PATIENCE_MS)
    witness = Witness(context, int(url.rstrip("/").rpartition(":")[2]))
    page = context.new_page()
    see_the_fleet(page)
    context.close()
    assert witness.elsewhere == []
    assert witness.errors == []


def see_the_fleet(page: Page) -> None:
    """Every partition of every group is owned by the one host of its face."""
    page.goto("/fleet")
    tables = page.locator("table.ownership")
    expect(tables).to_have_count(len(stages.FACES))
    for number, face in enumerate(stages.FACES):
        rows = tables.nth(number).locator("tbody tr")
        expect(rows).to_have_count(16)
        expect(rows.filter(has_text=re.compile(rf"{face}-1"))).to_have_count(16)


@pytest.mark.parametrize("missing", ["pyspark", "starlette"])
def test_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = refused(CliRunner().invoke(main, ["demo"]))
    assert said == (f"the demo needs {missing}: pip install 'pumphouse[azure,dashboard,spark]'")


def test_a_namespace_without_the_hubs_is_refused(
    program: Callable[..., Program], event_hub: object
) -> None:
    from pumphouse.hub.embedded import EmbeddedHub

    assert isinstance(event_hub, EmbeddedHub)
    event_hub.create_hub("sensors", 1)
    demo = program("demo", "--homes", "10", "--azure", event_hub.connection_string())
    code, said = demo.wait(120)
    assert code == 1
    assert said.startswith("pumphouse: the hub activity of that namespace does not answer")
    assert "create sensors, activity, alerts, deadletter" in said
    assert event_hub.connection_string().partition("SharedAccessKey=")[2] not in said


def test_every_hub_has_the_groups_that_its_readers_need() -> None:
    import json

    found = {spec.name: spec for spec in parse_config(json.dumps(stages.hubs_config(4)))}
    assert tuple(found) == HUBS
    assert {spec.partitions for spec in found.values()} == {4}
    assert set(found["activity"].groups) == {
        *("sift", "watch", "record", "page"),
        *("tallies", "notices", "archive"),
    }


def test_a_line_tells_all_of_it() -> None:
    status = {
        "sift": {"state": "running", "taken": {"sensors": 98_800}},
        "record": {"state": "running", "taken": {"activity": 900, "alerts": 6}},
        "watch": {"state": "waiting"},
    }
    counts = {"sensors": 100_000, "activity": 1000, "alerts": 7}
    gauge = Gauge(75.0, 100_000, 8350.0, counts, stages_of({"stages": status}))
    assert str(gauge) == (
        "    75 s   100,000 homes   in  8,350/s   sift lag 1,200   record lag 101   watch waiting"
        "   alerts 7"
    )
    assert gauge.lag == 1200
    assert "Spark is starting" in str(Gauge(1.0, 10, 0.0, {}, ()))


def test_a_stage_that_knows_more_than_the_hub_told_is_not_behind() -> None:
    """The counts are asked for before the status is read."""
    assert Stage("sift", "running", {"sensors": 12}).lag({"sensors": 10}) == 0


def test_stages_that_say_nothing_yet_are_no_error(tmp_path: Path) -> None:
    assert read_stages(tmp_path / "status.json") == ()
    (tmp_path / "status.json").write_text('{"stages": {"sift": {"lag_ev')
    assert read_stages(tmp_path / "status.json") == ()
    assert Stage("sift", "running", {}).lag({"sensors": 10}) is None
