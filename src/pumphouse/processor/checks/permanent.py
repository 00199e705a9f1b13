"""PermanentFailures: ends a host after a failure that does not pass by itself.

    reporter -> PermanentFailures.lasting -> engine: stop, and raise PermanentFailure in run()
                ^^^^^^^^^^^^^^^^^ this module

A deleted hub or consumer group, a key that was revoked, a token that expired and a store that
rejects requests are retried for `give_up_s`: an operator may be about to correct them. After that
the host stops cleanly and its `run()` raises. An unreachable hub or store is retried without end:
it may return at any time.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from pumphouse.errors import (
    AuthError,
    HubNotFound,
    PermanentFailure,
    StoreError,
    StoreUnavailable,
)
from pumphouse.processor.reporting import FailureSeries, Reporter

Key = tuple[str, str | None]  # the event name and the partition of a failure

# Failures of the host's own hub and store. A handler may raise the same errors about other ones.
HUB_EVENTS = frozenset({"receive_failed", "hub_properties_failed"})
STORE_EVENTS = frozenset({"cycle_failed", "ownership_write_failed"})


def is_permanent(event: str, error: Exception) -> bool:
    """Whether a failure stays until its cause is corrected."""
    if event in STORE_EVENTS:
        return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)
    return event in HUB_EVENTS and isinstance(error, HubNotFound | AuthError)


class PermanentFailures:
    """Since when each permanent failure lasts."""

    def __init__(self, host: str, limit_s: float | None) -> None:
        self.host, self.limit_s = host, limit_s
        self.error: PermanentFailure | None = None  # the reason why the host stops
        self._since_s: dict[FailureSeries, float] = {}

    def have_lasted(self, reporter: Reporter, held: Container[str], now_s: float) -> bool:
        """Report and return True, once, if a failure has lasted too long."""
        if self.error is not None:
            return False
        self.error = self.lasting(reporter.failures, held, now_s)
        if self.error is not None:
            reporter.failed("host_gave_up", None, self.error)
        return self.error is not None

    def lasting(
        self, failures: Mapping[Key, FailureSeries], held: Container[str], now_s: float
    ) -> PermanentFailure | None:
        """The error to end with, if one of these failures has lasted too long.

        Failures of a partition count only while this host owns it: only then are they retried.
        """
        self._since_s = {
            series: self._since_s.get(series, now_s)
            for (event, partition), series in failures.items()
            if is_permanent(event, series.error) and (partition is None or partition in held)
        }
        if self.limit_s is None or not self._since_s:
            return None
        series, since_s = min(self._since_s.items(), key=lambda item: item[1])
        lasted_s = now_s - since_s
        return (
            PermanentFailure(self.host, lasted_s, series.error)
            if lasted_s >= self.limit_s
            else None
        )
