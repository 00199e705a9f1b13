"""The quotas of the service: limits of the pricing tiers, and a meter for throughput units.

A tier limits the number of hubs, partitions and groups, and the size of a message. Throughput units
limit the rate of events: a send above it is refused with the service's error, and readers above it
wait, without an error. Both are off by default.

    create_hub, create_group -> check_hub_quota, check_group_quota -> QuotaExceeded
    ProducerLink.publish     -> Meter.admit                        -> com.microsoft:server-busy
    ConsumerLink.send_slice  -> Meter.egress_wait_s                -> the reader waits
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.errors import AmqpError, OptionError, QuotaExceeded

PARTITIONS_MAX = 2000  # the service's maximum; a larger number is refused as a mistake
KIB, MIB = 1024, 1024 * 1024
DAY_S = 24 * 3600.0
BUSY_S = 4  # the wait in the service's text, which is always the same


@dataclass(frozen=True, slots=True)
class Tier:
    """The limits of one pricing tier."""

    name: str
    message_bytes_max: int  # of an event, or of a whole batch
    hubs_max: int
    partitions_max: int  # per hub
    groups_max: int  # per hub, including $Default
    retention_s_max: float
    has_units: bool = True  # whether its rate is set by throughput units


TIERS = {
    tier.name: tier
    for tier in (
        Tier("basic", 256 * KIB, 10, 32, 1, 1 * DAY_S),
        Tier("standard", MIB, 10, 32, 20, 7 * DAY_S),
        # With the limits of one processing unit. Its rate depends on the load, so it has no meter.
        Tier("premium", MIB, 100, 100, 100, 90 * DAY_S, has_units=False),
    )
}


def find_tier(name: str) -> Tier:
    """The tier with this name; OptionError if there is none."""
    tier = TIERS.get(name.lower())
    if tier is None:
        raise OptionError(f"tier must be one of {', '.join(TIERS)} (got {name!r})")
    return tier


def check_hub_quota(tier: Tier, name: str, hub_count: int, partitions: int, groups: int) -> None:
    """QuotaExceeded if the tier does not allow one more hub with these partitions and groups."""
    if hub_count >= tier.hubs_max:
        raise above_tier(tier, f"hub {name!r} would be one too many", f"{tier.hubs_max} hubs")
    check_partition_quota(tier, name, partitions)
    if groups > tier.groups_max:
        problem = f"hub {name!r} would have {groups} consumer groups, including $Default"
        raise above_tier(tier, problem, f"{tier.groups_max} per hub")


def check_partition_quota(tier: Tier, name: str, partitions: int) -> None:
    """QuotaExceeded if the tier does not allow a hub with this number of partitions."""
    if partitions > tier.partitions_max:
        problem = f"hub {name!r} would have {partitions} partitions"
        raise above_tier(tier, problem, f"{tier.partitions_max} per hub")


def check_group_quota(tier: Tier, hub: str, group: str, group_count: int) -> None:
    """QuotaExceeded if the tier does not allow one more consumer group."""
    if group_count >= tier.groups_max:
        problem = f"consumer group {group!r} would be one too many for hub {hub!r}"
        raise above_tier(tier, problem, f"{tier.groups_max} per hub, including $Default")


def check_retention(tier: Tier, seconds: float) -> None:
    """QuotaExceeded if events would be kept longer than the tier allows."""
    if seconds > tier.retention_s_max:
        problem = f"events would be kept {seconds / DAY_S:g} days"
        raise above_tier(tier, problem, f"{tier.retention_s_max / DAY_S:g} days")


def above_tier(tier: Tier, problem: str, allowed: str) -> QuotaExceeded:
    return QuotaExceeded(f"{problem}; the {tier.name} tier allows {allowed}")


# -- throughput units -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Bytes and events per second; whichever is reached first limits."""

    size: int  # bytes
    events: int


INGRESS, EGRESS = RateLimit(MIB, 1000), RateLimit(2 * MIB, 4096)  # of one throughput unit


class TokenBucket:
    """A token bucket that holds the tokens of one second and fills at that rate.

    Its level may become negative: a batch above the tokens of one second passes as soon as the
    bucket has any token, and later ones wait longer.
    """

    __slots__ = ("level", "per_s", "updated_at")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = self.level = per_s
        self.updated_at = now

    def wait_s(self, now: float) -> float:
        """Seconds until tokens may be taken; 0.0 if they may be taken now."""
        self.level = min(self.per_s, self.level + (now - self.updated_at) * self.per_s)
        self.updated_at = now
        # Wait for a whole token, so that rounding does not leave the bucket empty after the wait.
        return max(0.0, (1 - self.level) / self.per_s)

    def take(self, amount: float) -> None:
        self.level -= amount


class RateLimiter:
    """Enforces a rate limit with two buckets, one for bytes and one for events."""

    def __init__(self, limit: RateLimit, units: int, now: float) -> None:
        self.size = TokenBucket(limit.size * units, now)
        self.events = TokenBucket(limit.events * units, now)

    def wait_s(self, now: float) -> float:
        return max(self.size.wait_s(now), self.events.wait_s(now))

    def take(self, events: int, size: int) -> None:
        self.size.take(size)
        self.events.take(events)


class Meter:
    """The throughput units of a namespace, shared by all its hubs. Its `now` is monotonic."""

    def __init__(self, units: int, now: float) -> None:
        if not 1 <= units <= 40:
            raise OptionError(f"throughput_units must be 1 to 40 (got {units})")
        self.units = units
        self._in = RateLimiter(INGRESS, units, now)
        self._out = RateLimiter(EGRESS, units, now)

    def admit(self, events: int, size: int, now: float) -> None:
        """Count received events; AmqpError if the rate limit is reached."""
        if self._in.wait_s(now) > 0:
            raise server_busy()
        self._in.take(events, size)

    def egress_wait_s(self, now: float) -> float:
        """Seconds that readers have to wait; 0.0 if they need not."""
        return self._out.wait_s(now)

    def sent(self, events: int, size: int) -> None:
        """Count sent events."""
        self._out.take(events, size)


def check_units(tier: Tier | None, units: int | None) -> None:
    """OptionError if throughput units are given for a tier without them."""
    if tier is not None and units is not None and not tier.has_units:
        raise OptionError(
            f"the {tier.name} tier has no throughput units; leave throughput_units out"
        )


def server_busy() -> AmqpError:
    """The service's error, to the letter: clients look for the code and the seconds."""
    return AmqpError(
        "com.microsoft:server-busy",
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        f"Please wait {BUSY_S} seconds and try again. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions",
    )
