"""CallSize: how many events without a key one call of a handler gets.

    KeyOrder.take -> CallSize -> the first events that wait
                     ^^^^^^^^ this module (pure)

If a handler waits for something with each event, equal shares of the waiting events are fast: busy
handlers will be free again. If a handler hardly takes any time, equal shares gain nothing, and
small calls cost more than the handler itself. It gets larger calls, which are still short.
"""

from __future__ import annotations

from math import inf

QUICK_S = 0.002  # a call with QUICK_EVENTS takes less: more than most waits for a network
QUICK_EVENTS = 64  # if the handler becomes slow, one handler at most has this many to handle
WEIGHT = 1 / 8  # of a new call in the mean


class CallSize:
    """Follows the time that a handler takes for an event."""

    def __init__(self, handlers: int, events_max: int) -> None:
        self._handlers, self._events_max = handlers, events_max
        self._mean_s = inf  # per event; recent calls count most

    def add(self, events: int, seconds: float) -> None:
        """Record the duration of a call with this number of events."""
        event_s, mean_s = seconds / events, self._mean_s
        self._mean_s = event_s if mean_s == inf else mean_s + WEIGHT * (event_s - mean_s)

    def next(self, waiting: int) -> int:
        """The most events of the next call, while `waiting` events wait."""
        share = -(-waiting // self._handlers)
        if self._mean_s * QUICK_EVENTS <= QUICK_S:
            share = max(share, QUICK_EVENTS)
        return min(share, self._events_max)

    def calls(self, waiting: int) -> int:
        """The approximate number of calls for these events."""
        return -(-waiting // self.next(waiting)) if waiting else 0
