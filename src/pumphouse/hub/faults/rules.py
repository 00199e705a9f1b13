"""Planned faults: which one is due at which moment. Nothing here touches a connection.

A fault applies at a moment: a client connects, attaches a link or sends a batch, or the hub is
about to send events to a reader. Rules and a seeded random generator decide at which moments a
fault happens; `injection` carries it out.

    faults = Faults(seed=7)
    faults.throttle(times=3)                      # the next three sends are refused as "busy"
    faults.drop(rate=0.01, on="send")             # one send in a hundred breaks the connection
    faults.delay(0.2, on="attach", hub="sensors")

    moment -> Faults.select -> Fault or None -> injection
              ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from pumphouse.errors import OptionError

Moment = Literal["connect", "attach", "send", "deliver"]
Action = Literal["drop", "delay", "refuse", "detach", "throttle", "freeze"]

MOMENTS: tuple[Moment, ...] = ("connect", "attach", "send", "deliver")
# The moments at which each action is possible: only an attached link can be detached.
MOMENTS_OF: dict[Action, tuple[Moment, ...]] = {
    "drop": MOMENTS,
    "delay": MOMENTS,
    "refuse": ("attach",),
    "detach": ("send", "deliver"),
    "throttle": ("send",),
    "freeze": ("deliver",),
}

SERVER_BUSY = "com.microsoft:server-busy"
BUSY_TEXT = (
    "The request was terminated because the entity is being throttled. "
    "Please wait 4 seconds and try again."
)
DETACH_FORCED = "amqp:link:detach-forced"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault. An empty name matches every hub, partition or group."""

    action: Action
    moment: Moment
    hub: str = ""
    partition: str = ""
    group: str = ""
    rate: float = 1.0  # the share of its moments at which it happens
    times: int | None = None  # how many more times it may happen; None: no limit
    seconds: float = 0.0  # how long a delay lasts
    condition: str = ""
    description: str = ""
    id: int = field(default=0, compare=False)

    def matches(self, moment: Moment, hub: str, partition: str, group: str) -> bool:
        return self.moment == moment and all(
            not planned or planned.lower() == actual.lower()
            for planned, actual in (
                (self.hub, hub),
                (self.partition, partition),
                (self.group, group),
            )
        )


class Faults:
    """The planned faults. The same seed and the same operations give the same faults."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = Random(seed)
        self._planned: dict[int, Fault] = {}
        self._next_id = 1
        self.struck: Counter[Action] = Counter()  # how often each action has happened
        self.on_removed: Callable[[], None] = lambda: None  # called after a fault is removed

    def __bool__(self) -> bool:
        return bool(self._planned)

    def __repr__(self) -> str:
        struck = " ".join(f"{name}={count}" for name, count in sorted(self.struck.items()))
        return f"<Faults {len(self._planned)} planned | struck {struck or 'none'}>"

    # -- planning ---------------------------------------------------------------------------------

    def plan(self, fault: Fault) -> int:
        """Add a fault; returns its id, for `cancel`."""
        check(fault)
        fault_id, self._next_id = self._next_id, self._next_id + 1
        self._planned[fault_id] = replace(fault, id=fault_id)
        return fault_id

    def drop(self, *, on: Moment = "send", rate: float = 1.0, times: int | None = None,
             hub: str = "", partition: str = "", group: str = "") -> int:  # fmt: skip
        """Break the connection without a close."""
        return self.plan(Fault("drop", on, hub, partition, group, rate, times))

    def delay(self, seconds: float, *, on: Moment = "send", rate: float = 1.0,
              times: int | None = None, hub: str = "", partition: str = "",
              group: str = "") -> int:  # fmt: skip
        """Delay the connection, as a slow network does."""
        return self.plan(Fault("delay", on, hub, partition, group, rate, times, seconds))

    def refuse(self, condition: str = DETACH_FORCED, description: str = "Refused on purpose.", *,
               rate: float = 1.0, times: int | None = None, hub: str = "", partition: str = "",
               group: str = "") -> int:  # fmt: skip
        """Refuse an attach."""
        fault = Fault("refuse", "attach", hub, partition, group, rate, times)
        return self.plan(replace(fault, condition=condition, description=description))

    def detach(self, condition: str = DETACH_FORCED, description: str = "Detached on purpose.", *,
               on: Moment = "deliver", rate: float = 1.0, times: int | None = None, hub: str = "",
               partition: str = "", group: str = "") -> int:  # fmt: skip
        """Detach a link that is in use, with an error condition."""
        fault = Fault("detach", on, hub, partition, group, rate, times)
        return self.plan(replace(fault, condition=condition, description=description))

    def throttle(self, *, rate: float = 1.0, times: int | None = None, hub: str = "",
                 partition: str = "") -> int:  # fmt: skip
        """Reject sends as the service does under load."""
        fault = Fault("throttle", "send", hub, partition, "", rate, times)
        return self.plan(replace(fault, condition=SERVER_BUSY, description=BUSY_TEXT))

    def freeze(self, hub: str, partition: str = "", group: str = "") -> int:
        """Send no events of a partition to any reader until the fault is cancelled."""
        return self.plan(Fault("freeze", "deliver", hub, partition, group))

    def cancel(self, number: int) -> bool:
        """Remove a fault; False if it was removed before or has happened as often as planned."""
        was_planned = self._planned.pop(number, None) is not None
        self.on_removed()
        return was_planned

    def clear(self) -> None:
        """Remove all faults."""
        self._planned.clear()
        self.on_removed()

    @property
    def planned(self) -> Sequence[Fault]:
        return tuple(self._planned.values())

    # -- selecting --------------------------------------------------------------------------------

    def select(
        self, moment: Moment, hub: str = "", partition: str = "", group: str = ""
    ) -> Fault | None:
        """The fault that happens at this moment, if any: the first planned one that is due."""
        for fault in list(self._planned.values()):
            if fault.matches(moment, hub, partition, group) and self._rng.random() < fault.rate:
                self.count(fault)
                return fault
        return None

    def count(self, fault: Fault) -> None:
        self.struck[fault.action] += 1
        if fault.times is not None:
            times_left = fault.times - 1
            if times_left:
                self._planned[fault.id] = replace(fault, times=times_left)
            else:
                del self._planned[fault.id]


# The fields of a fault in a request, with their types.
FIELDS: dict[str, type | tuple[type, ...]] = {
    "action": str,
    "moment": str,
    "hub": str,
    "partition": str,
    "group": str,
    "rate": (int, float),
    "times": int,
    "seconds": (int, float),
    "condition": str,
    "description": str,
}
TYPE_NAMES = {str: "a string", int: "a whole number", (int, float): "a number"}
DEFAULT_MOMENTS: dict[str, Moment] = {"refuse": "attach", "detach": "deliver", "freeze": "deliver"}
# The default condition and description of the actions that send an error.
DEFAULT_ERRORS: dict[str, tuple[str, str]] = {
    "refuse": (DETACH_FORCED, "Refused on purpose."),
    "detach": (DETACH_FORCED, "Detached on purpose."),
    "throttle": (SERVER_BUSY, BUSY_TEXT),
}


def parse_fault(request: Mapping[Any, Any]) -> Fault:
    """The fault that a request describes; OptionError for an invalid field."""
    fields = {name: request[name] for name in FIELDS if request.get(name) is not None}
    for name, value in fields.items():
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise OptionError(
                f"{name} of a fault must be {TYPE_NAMES[FIELDS[name]]} (got {value!r:.60})"
            )
    action = fields.get("action", "")
    condition, description = DEFAULT_ERRORS.get(action, ("", ""))
    defaults = {"moment": DEFAULT_MOMENTS.get(action, "send"), "condition": condition}
    fault = Fault(**{"description": description, **defaults, "action": "", **fields})
    check(fault)
    return fault


def describe_fault(fault: Fault) -> dict[str, Any]:
    """The fields of a planned fault, as a reply holds them."""
    values = {name: getattr(fault, name) for name in FIELDS}
    return {"id": fault.id, **{name: value for name, value in values.items() if value is not None}}


def check(fault: Fault) -> None:
    if fault.action not in MOMENTS_OF:
        raise OptionError(f"action must be one of {', '.join(MOMENTS_OF)} (got {fault.action!r})")
    if fault.moment not in MOMENTS_OF[fault.action]:
        moments = ", ".join(MOMENTS_OF[fault.action])
        raise OptionError(f"{fault.action} is possible on {moments} (got {fault.moment!r})")
    if not 0 <= fault.rate <= 1:
        raise OptionError(f"rate must be between 0 and 1 (got {fault.rate})")
    if fault.times is not None and fault.times < 1:
        raise OptionError(f"times must be at least 1 (got {fault.times})")
    if fault.action == "delay" and not 0 < fault.seconds <= 3600:
        raise OptionError(
            f"seconds of a delay must be above 0 and at most 3600 (got {fault.seconds})"
        )
