"""The log lines of uvicorn about requests, with a limit.

uvicorn logs one line for each invalid request. Clients without the token can send many.

    uvicorn -> RequestLog -> logger pumphouse.dashboard
               ^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pumphouse.logs import LogThrottle, line

LINES_MAX = 20  # of one text in one period
PERIOD_S = 60.0

log = logging.getLogger("pumphouse.dashboard")


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """Takes the place of uvicorn's logger in the connections of one page."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(log)
        self.monotonic = monotonic
        self.throttle = LogThrottle(LINES_MAX, PERIOD_S)
        # uvicorn reads this: at its trace level it would log every connection.
        self.level = logging.WARNING

    def log(self, level: int, msg: object, *args: Any, **fields: Any) -> None:
        text = str(msg).strip()
        if (count := self.throttle.due(text, self.monotonic())) is None:
            return
        if level >= logging.ERROR:
            event = line("http_request_failed", error=text, count=count)
        else:
            event = line("http_request_invalid", error=text, count=count)
        super().log(level, "%s", event, **fields)
