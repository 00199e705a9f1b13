"""The figures of the demo, and the stages of a status file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pumphouse.cli.demo.gauges import Gauge, Stage, read_stages, stages_of
from pumphouse.dashboard.views.alert_delays import AlertDelays


def test_a_gauge_as_a_line() -> None:
    status = {
        "sift": {"state": "running", "taken": {"sensors": 98_800}},
        "record": {"state": "running", "taken": {"activity": 900, "alerts": 6}},
        "watch": {"state": "waiting"},
    }
    counts = {"sensors": 100_000, "activity": 1000, "alerts": 7}
    gauge = Gauge(75.0, 100_000, 8350.0, counts, stages_of({"stages": status}))
    assert str(gauge) == (
        "    75 s   100,000 homes   readings  8,350/s   alerts 7   sift lag 1,200   record lag 101"
        "   watch waiting"
    )
    assert gauge.lag == 1200
    delays = AlertDelays(alerts=7, p50_s=2.14, p99_s=3.4)
    assert "   alerts 7 (p50 2.1 s, p99 3.4 s)   sift" in str(replace(gauge, delays=delays))
    assert "Spark is starting" in str(Gauge(1.0, 10, 0.0, {}, ()))


def test_a_lag_is_never_negative() -> None:
    """The counts are read before the status."""
    assert Stage("sift", "running", {"sensors": 12}).lag({"sensors": 10}) == 0


def test_a_missing_or_partial_status_has_no_stages(tmp_path: Path) -> None:
    assert read_stages(tmp_path / "status.json") == ()
    (tmp_path / "status.json").write_text('{"stages": {"sift": {"lag_ev')
    assert read_stages(tmp_path / "status.json") == ()
    assert Stage("sift", "running", {}).lag({"sensors": 10}) is None
