"""Compares the CPU time of an input with that of a four times longer one.

Linear code needs about four times as long, quadratic code sixteen times. The limit between them is
far from both, and the least of several runs counts, so a busy machine does not fail a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

FACTOR, GROWTH_MAX = 4, 9.0
RUNS = 5
SHORTEST_S = 0.0005  # below this the clock is too coarse to compare


def assert_linear(
    call: Callable[[T], object],
    make: Callable[[int], T],
    size: int,
    *expected: type[Exception],
) -> None:
    """Assert that `call` takes linear time; it may raise the expected exceptions."""
    small, large = make(size), make(FACTOR * size)
    for _ in range(RUNS):
        base = max(least_cpu_s(call, small, expected), SHORTEST_S)
        if least_cpu_s(call, large, expected) < GROWTH_MAX * base:
            return
    raise AssertionError(
        f"{FACTOR} times the input takes more than {GROWTH_MAX:g} times as long as {base:.4f} s"
    )


def least_cpu_s(
    call: Callable[[T], object], argument: T, expected: tuple[type[Exception], ...]
) -> float:
    times = []
    for _ in range(RUNS):
        start = time.thread_time()
        with suppress(*expected):
            call(argument)
        times.append(time.thread_time() - start)
    return min(times)
