"""A simulated fleet with metrics: the same history, and counters that agree with the log."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from pumphouse.processor.reporting import CLAIMED, LOST, RELEASED, RENEWED, Reporter
from pumphouse.simulation import PROFILES, Result, Scenario, simulate
from pumphouse.telemetry import definitions as metrics
from pumphouse.telemetry import meter
from pumphouse.telemetry.definitions import COUNTER, Metric
from pumphouse.telemetry.meter import Meter, Series

SCENARIOS = [
    Scenario(3, 5, 0.3, 31, PROFILES["harsh"], "steady", "pull", "blob"),
    Scenario(3, 5, 0.3, 32, PROFILES["harsh"], "eph", "push", "bloblease"),
    Scenario(3, 5, 0.3, 33, PROFILES["default"], "greedy", "functions", "memory"),
    Scenario(2, 4, 0.3, 34, PROFILES["harsh"], "steady", "fixed", "blob"),
]


class KeptMeter(Meter):
    """Series of hosts that have ended stay, so that they can be read after a run."""

    def close(self, *series: Series) -> None:
        """Keep them."""


class Observed:
    """The log lines and callbacks of all hosts, whether or not they are shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: Counter[str] = Counter()
        self.callbacks: Counter[str] = Counter()
        self.poisoned = self.expired = self.returned = 0
        for name in ("info", "occurred", "failed", "changed", "expired"):
            monkeypatch.setattr(Reporter, name, self._around(getattr(Reporter, name), name))

    def _around(self, method: Any, name: str) -> Any:
        def observed(reporter: Reporter, *args: Any, **fields: Any) -> Any:
            if name == "changed":
                self.callbacks[args[0]] += 1
            elif name == "expired":
                self.expired += args[1].count or 0
            else:
                self.lines[args[0]] += 1
                self.returned += fields.get("reason") == "not_held"
            return method(reporter, *args, **fields)

        return observed


def run(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, KeptMeter]:
    kept = KeptMeter()
    kept.is_served = True
    monkeypatch.setattr(meter, "METER", kept)
    return simulate(scenario), kept


def total(kept: KeptMeter, metric: Metric, **labels: str) -> float:
    chosen = [each for each in kept.series(metric) if labels.items() <= each.labels.items()]
    return sum(each.total if metric.kind == COUNTER else each.count for each in chosen)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.face)
def test_metrics_agree_with_the_log_and_do_not_change_the_history(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I19: a change of ownership has one log line, one count and one callback."""
    plain = simulate(scenario)
    observed = Observed(monkeypatch)
    result, kept = run(scenario, monkeypatch)
    assert result.digest == plain.digest
    lines, callbacks = observed.lines, observed.callbacks
    given_up = lines["partition_released"] + lines["partition_handed_over"]
    operations = partial(total, kept, metrics.LEASE_OPERATIONS)
    assert operations(op="claim", outcome="ok") == lines["partition_claimed"] == callbacks[CLAIMED]
    assert operations(op="release", outcome="ok") == given_up > 0
    assert given_up == callbacks[RELEASED] + observed.returned
    assert operations(op="lose") == lines["partition_lost"] == callbacks[LOST]
    assert operations(op="renew", outcome="ok") == callbacks[RENEWED] > 0
    clean = total(kept, metrics.HANDOFFS, outcome="clean")
    assert result.figures.moves >= clean == lines["partition_handed_over"]
    assert clean >= total(kept, metrics.HANDOFF_SECONDS)
    assert total(kept, metrics.EXPIRED_EVENTS) == observed.expired
    # What the simulation counts by itself.
    assert total(kept, metrics.POISON_EVENTS) == result.figures.reports["PoisonEvent"]
    requests = partial(total, kept, metrics.STORE_REQUEST_SECONDS)
    assert requests(op="list_ownership") >= result.calls["list"] > 0
    assert requests(op="list_ownership") >= total(kept, metrics.CYCLE_SECONDS) > 0
    # A call of a host that crashes does not end.
    batches = result.figures.batches
    assert 0.9 * batches <= total(kept, metrics.PROCESS_DURATION) <= batches
