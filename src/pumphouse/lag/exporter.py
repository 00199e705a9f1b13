"""LagExporter: a poller with its page for Prometheus and its health checks.

    LagPoller -> LagExporter -> TelemetryServer -> GET /metrics, /livez, /readyz
                 ^^^^^^^^^^^ this module

The page has the metrics of consumer groups only. The exporter has its own Meter, because the client
that reads the hub records metrics of its own in the common one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError
from pumphouse.escapes import printable
from pumphouse.lag.observed_store import ObservedStore
from pumphouse.lag.options import LagOptions
from pumphouse.lag.poller import HUB, STORE, LagPoller
from pumphouse.lag.readings import client_of
from pumphouse.logs import TRACKING
from pumphouse.telemetry.definitions import (
    EARLIEST_OFFSET,
    GROUP_LAG,
    GROUP_LAG_SECONDS,
    GROUP_MAX_LAG,
    GROUP_MAX_LAG_SECONDS,
    GROUP_OFFSET,
    GROUP_STATUS,
    GROUP_SUM_LAG,
    LATEST_OFFSET,
    POLL_FAILURES,
    POLL_SECONDS,
)
from pumphouse.telemetry.health import LIVE, READY, HealthChecks
from pumphouse.telemetry.meter import Labels, Meter
from pumphouse.telemetry.server import TelemetryServer

OBSERVED = (
    GROUP_OFFSET,
    GROUP_LAG,
    GROUP_LAG_SECONDS,
    GROUP_MAX_LAG,
    GROUP_MAX_LAG_SECONDS,
    GROUP_SUM_LAG,
    GROUP_STATUS,
    LATEST_OFFSET,
    EARLIEST_OFFSET,
)
NOT_YET = "not read yet"
# In addition to the interval: a poll may wait for hub and store until their deadlines.
LATE_S = 60.0


class LagExporter:
    """`serve` starts the page, `run` polls. `notify` is called when a failure begins or ends."""

    def __init__(
        self, options: LagOptions, notify: Callable[[str], None], clock: Clock | None = None
    ) -> None:
        # Invalid options end the command here; later errors are temporary.
        client_of(options), ObservedStore(options.store)
        self._options, self._notify = options, notify
        self._clock: Clock = clock or SystemClock()
        self._poller = LagPoller(options, self._report, self._polled, self._clock)
        self._failures: dict[str, str | None] = dict.fromkeys((HUB, STORE), NOT_YET)
        self._polled_s = self._clock.monotonic()
        self._meter = meter = Meter()
        meter.add_source(self._poller, *OBSERVED)
        # Counters begin with 0, so that the first failure is an increase.
        self._failed = {
            part: meter.open(POLL_FAILURES, self._labels(part=part)) for part in (HUB, STORE)
        }
        self._durations = meter.open(POLL_SECONDS, self._labels())

    async def run(self) -> None:
        await self._poller.run()

    @contextmanager
    def serve(self, port: int, host: str) -> Iterator[TelemetryServer]:
        text = page_of(self._meter)
        checks = HealthChecks()
        for part in (HUB, STORE):
            checks.add(READY, part, partial(self._failures.get, part))
        checks.add(LIVE, "polls", self._late)
        with TelemetryServer(port, host, text, checks) as server:
            yield server

    def _labels(self, **more: str) -> Labels:
        return {"namespace": self._options.namespace, "eventhub": self._options.hub, **more}

    def _report(self, part: str, failure: str | None) -> None:
        before = self._failures[part]
        # Without the number and the time of the response, which change with every poll.
        shown = None if failure is None else TRACKING.sub("", printable(failure)).rstrip(" ,")
        self._failures[part] = shown
        if shown is not None:
            self._failed[part].add()
        if shown is not None and shown != before:
            self._notify(f"{part}: {shown}")
        elif shown is None and before not in (None, NOT_YET):
            self._notify(f"{part}: responds again")

    def _polled(self, seconds: float) -> None:
        self._polled_s = self._clock.monotonic()
        self._durations.record(seconds)

    def _late(self) -> str | None:
        ago_s = self._clock.monotonic() - self._polled_s
        late = ago_s > self._options.interval_s + LATE_S
        return f"the last poll ended {ago_s:.0f} s ago" if late else None


def page_of(meter: Meter) -> Callable[[], bytes]:
    try:
        from pumphouse.telemetry.prometheus import page
    except ImportError as missing:
        raise OptionError(
            f"metrics need the extra `telemetry`: pip install 'pumphouse[telemetry]' ({missing})"
        ) from None
    return partial(page, meter)
