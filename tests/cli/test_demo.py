"""`pumphouse demo`: the official client through the hub, with the numbers to show for it."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from random import Random

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.cli.demo import Sample
from pumphouse.cli.traffic import BATCH_EVENTS_MAX, BATCHES_PER_TICK, due, reading

from .conftest import Program, refused


def test_what_is_sent_is_read(program: Callable[..., Program]) -> None:
    demo = program("demo", "--duration", "2s", "--rate", "400", "--partitions", "4")
    assert demo.line().startswith("hub        sb://127.0.0.1:")
    assert demo.line().startswith("connect    export EVENT_HUB_CONN_STR='Endpoint=sb://127.0.0.1:")
    assert demo.line().startswith("Ctrl-C stops it.")
    samples = []
    while (line := demo.line()).lstrip()[:1].isdigit():
        samples.append(line)
    assert len(samples) >= 2
    assert all(re.search(r"in +[\d,]+/s +out +[\d,]+/s +total +[\d,]+ +lag", s) for s in samples)
    found = re.fullmatch(r"sent ([\d,]+) events, read ([\d,]+)\n", line)
    assert found
    assert found[1] == found[2] != "0"
    assert demo.wait() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_within_five_seconds(program: Callable[..., Program], number: int) -> None:
    demo = program("demo", "--partitions", "2", "--rate", "100")
    while not demo.line().lstrip()[:1].isdigit():
        pass
    assert demo.end(number, within_s=5.0) == (0, "")


def test_without_the_official_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pumphouse.cli.traffic", raising=False)
    monkeypatch.delattr("pumphouse.cli.traffic", raising=False)
    monkeypatch.setitem(sys.modules, "azure.eventhub", None)
    assert "pip install 'pumphouse[azure]'" in refused(CliRunner().invoke(main, ["demo"]))


def test_a_burst_has_a_bound() -> None:
    assert due(2.0, 100.0, 150) == 50
    assert due(0.001, 100.0, 0) == 0
    assert due(1e6, 100.0, 0) == BATCHES_PER_TICK * BATCH_EVENTS_MAX


def test_a_reading_is_json_of_its_street() -> None:
    assert reading(Random(1), 7, 1.5).startswith(b'{"home": "street-7/home-')


def test_a_sample_on_a_line() -> None:
    assert str(Sample(12.3, 2000, 1998, 24001, 43)) == (
        "    12 s   in   2,000/s   out   1,998/s   total      24,001   lag      43"
    )
