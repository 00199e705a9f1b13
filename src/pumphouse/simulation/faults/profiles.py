"""Fault profiles: which faults are injected, and how often. `Faults` has a rate for each kind.

parse_faults -> Faults -> fleet (per hour), store (per call), handler (per batch)
                ^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite
from random import Random

from pumphouse.errors import OptionError

PER_HOUR = (
    "crash",
    "pause",
    "leave",
    "join",
    "restart",
    "lost",
    "evicted",
    "hub_away",
    "store_away",
    "grow",
    "expired",
)
PER_CALL = ("before", "after", "failed", "stale", "slow")
PER_BATCH = ("handler_slow", "handler_stuck", "handler_raises", "handler_cancels", "poison")


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates by kind: per hour of the whole fleet, or a probability per store call or batch."""

    # Per hour, in the fleet.
    crash: float = 0.0  # a host dies and starts again later, with the same name or a new one
    pause: float = 0.0  # a host is frozen, mostly for longer than its lease
    leave: float = 0.0  # a host stops gracefully
    join: float = 0.0  # a new host starts
    restart: float = 0.0  # a host stops gracefully and starts again
    lost: float = 0.0  # the connection of a host to the hub breaks
    evicted: float = 0.0  # a foreign reader with a higher epoch reads a partition for a while
    hub_away: float = 0.0  # the hub does not respond for a while
    store_away: float = 0.0  # the store does not respond for a while
    grow: float = 0.0  # the hub gets another partition
    expired: float = 0.0  # retention removes events before they are handled

    # Per call to the store.
    before: float = 0.0  # a write is lost on the way to the store
    after: float = 0.0  # a write takes effect, and its response is lost
    failed: float = 0.0  # a read fails
    stale: float = 0.0  # a read returns the previous listing
    slow: float = 0.0  # a call takes up to 15 s, longer than its deadline

    # Per batch.
    handler_slow: float = 0.0
    handler_stuck: float = 0.0  # for longer than handler_timeout_s
    handler_raises: float = 0.0  # and succeeds when it is retried
    handler_cancels: float = 0.0  # its own task; it succeeds when it is retried
    poison: float = 0.0  # an event on which the handler always raises

    # Errors of clocks.
    skew_s: float = 0.0  # at most, in both directions
    drift: float = 0.0  # at most, in both directions: 0.0001 is 100 ppm

    def __post_init__(self) -> None:
        for kind in fields(self):
            rate = getattr(self, kind.name)
            if not isfinite(rate):
                raise OptionError(f"the rate of {kind.name} must be finite (got {rate:g})")
            if rate < 0:
                raise OptionError(f"the rate of {kind.name} must not be below 0 (got {rate})")
        for name in (*PER_CALL, *PER_BATCH):
            if getattr(self, name) > 1:
                rate = getattr(self, name)
                raise OptionError(f"{name} is a probability: it must be at most 1 (got {rate})")
        if not isfinite(self.per_hour):
            raise OptionError("the sum of the rates per hour must be finite")

    @property
    def per_hour(self) -> float:
        return float(sum(getattr(self, name) for name in PER_HOUR))

    def draw_event(self, rng: Random) -> str:
        """The kind of the next fault of the fleet, chosen by the rates per hour."""
        drawn = rng.random() * self.per_hour
        for name in PER_HOUR:
            drawn -= getattr(self, name)
            if drawn < 0:
                return name
        return PER_HOUR[-1]


NO_FAULTS = Faults()
DEFAULT = Faults(
    crash=3, pause=3, leave=2, join=3, restart=1, lost=8, evicted=3, hub_away=1, store_away=1.5,
    grow=0.5, expired=2,
    before=0.01, after=0.01, failed=0.01, stale=0.02, slow=0.01,
    handler_slow=0.05, handler_stuck=0.003, handler_raises=0.01, poison=0.0005,
    skew_s=7200, drift=0.0001,
)  # fmt: skip
HARSH = Faults(
    crash=10, pause=10, leave=6, join=12, restart=4, lost=30, evicted=10, hub_away=4, store_away=6,
    grow=2, expired=8,
    before=0.06, after=0.06, failed=0.06, stale=0.1, slow=0.05,
    handler_slow=0.15, handler_stuck=0.02, handler_raises=0.05, poison=0.003,
    skew_s=7200, drift=0.0001,
)  # fmt: skip
HOSTS_ONLY = Faults(crash=6, pause=6, leave=4, join=6, restart=2, skew_s=7200, drift=0.0001)
STORE_ONLY = Faults(
    store_away=4, before=0.05, after=0.05, failed=0.05, stale=0.1, slow=0.05,
    handler_slow=0.05,
)  # fmt: skip
# Long times without faults, as in most of the life of a fleet.
QUIET = Faults(
    crash=0.3, pause=0.3, leave=0.2, join=0.3, restart=0.1, lost=0.8, evicted=0.2, hub_away=0.1,
    store_away=0.1, grow=0.05, expired=0.2,
    before=0.002, after=0.002, failed=0.002, stale=0.005, slow=0.002,
    handler_slow=0.01, handler_stuck=0.001, handler_raises=0.002, poison=0.0001,
    skew_s=7200, drift=0.0001,
)  # fmt: skip
PROFILES = {
    "none": NO_FAULTS,
    "default": DEFAULT,
    "harsh": HARSH,
    "hosts": HOSTS_ONLY,
    "store": STORE_ONLY,
    "quiet": QUIET,
}


def parse_faults(text: str) -> Faults:
    """A profile by name, optionally with changed rates: `default,crash=20,stale=0`."""
    name, *changes = (word.strip() for word in text.split(","))
    if "=" in name:
        name, changes = "none", [name, *changes]
    if name not in PROFILES:
        raise OptionError(f"unknown fault profile {name!r}: use one of {', '.join(PROFILES)}")
    kinds = {kind.name for kind in fields(Faults)}
    chosen: dict[str, float] = {}
    for change in changes:
        kind, _, rate = change.partition("=")
        if kind not in kinds:
            raise OptionError(f"unknown fault {kind!r}: use one of {', '.join(sorted(kinds))}")
        try:
            chosen[kind] = float(rate)
        except ValueError:
            raise OptionError(f"the rate of {kind} must be a number (got {rate!r})") from None
    return replace(PROFILES[name], **chosen)
