"""Recall and precision of hand-made alerts."""

from __future__ import annotations

from benchmarks._alert_score import Score, overall, score
from pumphouse.homes.schema import MINUTE_MS, Alert
from pumphouse.homes.simulator.incidents import Incident

T = 1_792_000_000_000


def incident(kind: str, since: int = T, sensor: str = "door", home: str = "h000001") -> Incident:
    return Incident(home, kind, sensor, since, since + 60 * MINUTE_MS, since)


def alert(kind: str, since: int = T, sensor: str = "door", home: str = "h000001") -> Alert:
    return Alert(home, kind, sensor, since + 1, since, "Beacon Hill", "")


def test_found_missed_wrong_and_repeated_alerts_are_counted() -> None:
    truth = [incident("break-in"), incident("fire"), incident("fire", home="h000002")]
    alerts = [alert("break-in"), alert("break-in"), alert("fire"), alert("fire", since=T + 1)]
    scores = score(truth, alerts)
    assert scores == {"break-in": Score(1, 1, 1, 1, 1), "fire": Score(2, 1, 2, 1, 0)}
    whole = overall(scores)
    assert (whole.recall, whole.precision) == (2 / 3, 2 / 3)


def test_a_silent_sensor_may_have_a_since_before_its_start() -> None:
    truth = [incident("silent-sensor")]
    assert score(truth, [alert("silent-sensor", T - 9 * MINUTE_MS)])["silent-sensor"].recall == 1
    assert score(truth, [alert("silent-sensor", T - 12 * MINUTE_MS)])["silent-sensor"].recall == 0
    other = [alert("silent-sensor", T, sensor="window")]
    assert score(truth, other)["silent-sensor"] == Score(1, 0, 1, 0, 0)


def test_no_incidents_and_no_alerts_are_a_perfect_score() -> None:
    assert score([], []) == {}
    assert str(overall({})) == "recall 100.00% (0/0), precision 100.00% (0/0), 0 repeats"
