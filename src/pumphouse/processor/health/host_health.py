"""Whether a host is live and ready, for health checks. The checks are called in another thread.

    engine: cycle, watch -> HostHealth -> /livez, /readyz
                            ^^^^^^^^^^ this module

A host is ready after its first cycle, while store and hub respond. It is no longer ready as soon as
it begins to stop. It is not live if its watch is late: it then neither renews nor fences leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumphouse.processor.engine import Engine

CYCLES = 3  # without a response for this number of intervals; each has a deadline of its own
LEASES = 2  # in this time the watch looks several times, even if the store does not respond
LATE_S = 15.0  # longer than any pause of a healthy process on a busy machine


class HostHealth:
    """The two checks of one host: each returns None, or a sentence that says what is wrong."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def silent_s(self) -> float:
        """How long store or hub may not respond before the host is not ready."""
        return CYCLES * self._engine.options.interval_s + self._engine.options.store_s

    def not_ready(self) -> str | None:
        engine, now_s = self._engine, self._engine.clock.monotonic()
        if engine.stopping.is_set():
            return "the host stops"
        if engine.ended:
            return "the host has ended"
        if engine.last_report is None:
            return "the host has not completed a cycle yet"
        store_s, hub_s = (
            now_s - engine.cycle.store_responded_s,
            now_s - engine.cycle.hub_responded_s,
        )
        for name, seconds in (("store", store_s), ("hub", hub_s)):
            if seconds > self.silent_s:
                return f"the {name} has not responded for {seconds:.0f} s"
        return None

    def not_live(self) -> str | None:
        engine = self._engine
        if engine.last_report is None or engine.ended:
            return None
        late_s = engine.clock.monotonic() - engine.watch.looked_s
        if late_s < LEASES * engine.options.lease_s + LATE_S:
            return None
        return f"the watch of the leases has not looked for {late_s:.0f} s"
