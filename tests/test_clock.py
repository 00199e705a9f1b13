"""Clocks: monotonic time includes the sleep of the machine."""

from __future__ import annotations

import time

import pytest

from pumphouse import clock
from pumphouse.clock import Clock, MovableClock, SystemClock, machine_now

CLOCKS: list[Clock] = [SystemClock(), MovableClock()]


@pytest.mark.parametrize("tested", CLOCKS)
def test_monotonic_time_includes_sleep(tested: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease must expire while the machine sleeps."""
    real, slept_s = time.clock_gettime, 8 * 3600.0
    before, awake_s = tested.monotonic(), time.monotonic()
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + slept_s)
    assert tested.monotonic() - before >= slept_s
    assert time.monotonic() - awake_s < slept_s, "time.monotonic does not include sleep"


@pytest.mark.parametrize("tested", CLOCKS)
def test_without_a_boot_time_clock_the_monotonic_one_is_used(
    tested: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_SINCE_BOOT", None)
    monkeypatch.delattr(time, "clock_gettime")
    least = time.monotonic()
    assert least <= tested.monotonic() <= time.monotonic()


@pytest.mark.parametrize("tested", CLOCKS)
def test_monotonic_time_never_decreases(tested: Clock) -> None:
    readings = [tested.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


def test_the_time_of_the_machine_does_not_move() -> None:
    clock = MovableClock()
    clock.advance(86_400)
    assert clock.ahead_s == 86_400
    assert abs(machine_now(clock) - SystemClock().now()) < 60
    assert abs(machine_now(SystemClock()) - SystemClock().now()) < 60
