"""The only place that knows real time."""

from __future__ import annotations

import time

import pytest

from pumphouse import clock
from pumphouse.clock import Clock, MovableClock, SystemClock

CLOCKS: list[Clock] = [SystemClock(), MovableClock()]


@pytest.mark.parametrize("one", CLOCKS)
def test_a_machine_that_slept_has_grown_older(one: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leases ran out meanwhile: a lease may not outlast the night."""
    real, slept_s = time.clock_gettime, 8 * 3600.0
    before, awake_s = one.monotonic(), time.monotonic()
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + slept_s)
    assert one.monotonic() - before >= slept_s
    assert time.monotonic() - awake_s < slept_s, "this one stood still"


@pytest.mark.parametrize("one", CLOCKS)
def test_without_such_a_clock_the_usual_one_counts(
    one: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_SINCE_BOOT", None)
    monkeypatch.delattr(time, "clock_gettime")
    least = time.monotonic()
    assert least <= one.monotonic() <= time.monotonic()


@pytest.mark.parametrize("one", CLOCKS)
def test_it_never_goes_back(one: Clock) -> None:
    told = [one.monotonic() for _ in range(1000)]
    assert told == sorted(told)
