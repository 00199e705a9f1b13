"""What a pricing tier allows, and how fast: limits as data, and a meter for throughput units.

A tier limits what can be created and how large a message may be. Throughput units limit how fast
events come in and go out: what comes in too fast is refused as the service refuses it, what goes
out too fast is held back without a word, as the service does. Both are off unless asked for.

    create_hub, create_group -> check_new_hub, check_new_group -> QuotaExceeded
    Intake.publish           -> Meter.admit                    -> com.microsoft:server-busy
    Outlet.pump              -> Meter.hold_back_s              -> the reader waits
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.errors import AmqpError, OptionError, QuotaExceeded

PARTITIONS_MAX = 2000  # the service's largest; a number beyond it is a slip of the finger
KIB, MIB = 1024, 1024 * 1024
DAY_S = 24 * 3600.0
BUSY_S = 4  # what the service always asks for


@dataclass(frozen=True, slots=True)
class Tier:
    """The limits of one pricing tier."""

    name: str
    message_bytes_max: int  # of an event, or of a batch as a whole
    hubs_max: int
    partitions_max: int  # per hub
    groups_max: int  # per hub; $Default is one of them
    retention_s_max: float
    has_units: bool = True  # whether throughput units are what it is sold by


TIERS = {
    tier.name: tier
    for tier in (
        Tier("basic", 256 * KIB, 10, 32, 1, 1 * DAY_S),
        Tier("standard", MIB, 10, 32, 20, 7 * DAY_S),
        # The hubs of one processing unit. How fast that is depends on the load: it has no meter.
        Tier("premium", MIB, 100, 100, 100, 90 * DAY_S, has_units=False),
    )
}


def tier_named(name: str) -> Tier:
    """The tier of that name; OptionError if there is none."""
    tier = TIERS.get(name.lower())
    if tier is None:
        raise OptionError(f"tier must be one of {', '.join(TIERS)} (got {name!r})")
    return tier


def check_new_hub(tier: Tier, name: str, present: int, partitions: int, groups: int) -> None:
    """QuotaExceeded if a hub more, with so many partitions and groups, is beyond the tier."""
    if present >= tier.hubs_max:
        raise beyond(tier, f"hub {name!r} would be one too many", f"{tier.hubs_max} hubs")
    check_more_partitions(tier, name, partitions)
    if groups > tier.groups_max:
        found = f"hub {name!r} would have {groups} consumer groups with $Default"
        raise beyond(tier, found, f"{tier.groups_max} per hub")


def check_more_partitions(tier: Tier, name: str, partitions: int) -> None:
    """QuotaExceeded if a hub with so many partitions is beyond the tier."""
    if partitions > tier.partitions_max:
        found = f"hub {name!r} would have {partitions} partitions"
        raise beyond(tier, found, f"{tier.partitions_max} per hub")


def check_new_group(tier: Tier, hub: str, group: str, present: int) -> None:
    """QuotaExceeded if a consumer group more is beyond the tier."""
    if present >= tier.groups_max:
        found = f"consumer group {group!r} would be one too many for hub {hub!r}"
        raise beyond(tier, found, f"{tier.groups_max} per hub with $Default")


def check_retention(tier: Tier, seconds: float) -> None:
    """QuotaExceeded if events would be kept longer than the tier keeps them."""
    if seconds > tier.retention_s_max:
        found = f"events would be kept {seconds / DAY_S:g} days"
        raise beyond(tier, found, f"{tier.retention_s_max / DAY_S:g} days")


def beyond(tier: Tier, found: str, allowed: str) -> QuotaExceeded:
    return QuotaExceeded(f"{found}; the {tier.name} tier allows {allowed}")


# -- throughput units -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """So much in a second, whichever is reached first."""

    size: int  # bytes
    events: int


INGRESS, EGRESS = Pace(MIB, 1000), Pace(2 * MIB, 4096)  # of one throughput unit


class Bucket:
    """A token bucket: it holds one second's worth and fills at that pace.

    It may run into debt. A batch larger than a second's worth could otherwise never pass; so it
    passes as soon as there is anything in the bucket, and those who come after it wait longer.
    """

    __slots__ = ("at", "level", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = self.level = per_s
        self.at = now

    def wait_s(self, now: float) -> float:
        """How long until something may be taken; 0.0 is now."""
        self.level = min(self.per_s, self.level + (now - self.at) * self.per_s)
        self.at = now
        # One token, not a grain of one: whoever waits that long must find the bucket open.
        return max(0.0, (1 - self.level) / self.per_s)

    def take(self, amount: float) -> None:
        self.level -= amount


class Gate:
    """A pace kept by two buckets, one of bytes and one of events."""

    def __init__(self, pace: Pace, units: int, now: float) -> None:
        self.size = Bucket(pace.size * units, now)
        self.events = Bucket(pace.events * units, now)

    def wait_s(self, now: float) -> float:
        return max(self.size.wait_s(now), self.events.wait_s(now))

    def take(self, events: int, size: int) -> None:
        self.size.take(size)
        self.events.take(events)


class Meter:
    """The throughput units of a namespace, shared by all its hubs. `now` never goes back."""

    def __init__(self, units: int, now: float) -> None:
        if not 1 <= units <= 40:
            raise OptionError(f"throughput_units must be 1 to 40, as the service's (got {units})")
        self.units = units
        self._in = Gate(INGRESS, units, now)
        self._out = Gate(EGRESS, units, now)

    def admit(self, events: int, size: int, now: float) -> None:
        """Let events in; AmqpError if they come too fast."""
        if self._in.wait_s(now) > 0:
            raise server_busy()
        self._in.take(events, size)

    def hold_back_s(self, now: float) -> float:
        """How long readers have to wait; 0.0 if they need not."""
        return self._out.wait_s(now)

    def sent(self, events: int, size: int) -> None:
        """Events have gone out."""
        self._out.take(events, size)


def check_units(tier: Tier | None, units: int | None) -> None:
    """OptionError if a tier has no throughput units and some were asked for."""
    if tier is not None and units is not None and not tier.has_units:
        raise OptionError(
            f"the {tier.name} tier has no throughput units; leave throughput_units out"
        )


def server_busy() -> AmqpError:
    """The service's refusal, in its own words: clients look for the code and the seconds."""
    return AmqpError(
        "com.microsoft:server-busy",
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        f"Please wait {BUSY_S} seconds and try again. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions",
    )
