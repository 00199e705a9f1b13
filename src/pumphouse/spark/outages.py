"""How long a stream waits for a hub that cannot be reached. Pure.

A stream is patient: a hub that restarts or fails over is back within minutes. Permanent failures,
such as a wrong key or a deleted hub, end the query at once.

    failure -> is_outage -> Outage.failed -> try again, or raise
                            ^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pumphouse.client.bulk import is_transient
from pumphouse.errors import PumphouseError
from pumphouse.logs import is_power_of_ten

# Until the first contact of a run: a wrong host name must not be reported after ten minutes.
START_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
WAITS = "none: the query waits (outageTimeout); check the hub and the network if this lasts"


def is_outage(failed: PumphouseError) -> bool:
    """Whether the same call may succeed later without any change."""
    return is_transient(failed)


def pause_s(failures: int, rng: Random) -> float:
    """The delay after consecutive failures: doubling, with jitter."""
    delay_s = FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 20)
    return min(LONGEST_PAUSE_S, delay_s) * (1 - 0.5 * rng.random())


@dataclass(slots=True)
class Outage:
    """Consecutive failures to reach a hub, and how long they may last."""

    limit_s: float
    contacted: bool = False  # the hub has responded before
    failures: int = 0
    since_s: float = 0.0
    error: str = ""

    def failed(self, error: PumphouseError, now_s: float) -> bool:
        """Record a failure; whether to try again."""
        if not self.failures:
            self.since_s = now_s
        self.failures, self.error = self.failures + 1, str(error)
        limit_s = self.limit_s if self.contacted else min(self.limit_s, START_S)
        return is_outage(error) and now_s - self.since_s < limit_s

    def is_logged(self) -> bool:
        return is_power_of_ten(self.failures)

    def succeeded(self) -> None:
        self.contacted, self.failures, self.error = True, 0, ""
