"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    done: Callable[[], bool], limit_s: float = 120, what: str = "", every_s: float = 0.02
) -> None:
    deadline_s = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline_s, what
        time.sleep(every_s)
