"""Breaking it on purpose: what goes wrong, where, how often.

A fault is planned once and strikes whenever its moment comes: a client connects, attaches a link,
sends a batch, or is about to be sent events. Which moment is struck is decided here, by rules and a
seeded die, and nothing else; what is then done about it is the server's business.

    plan = Faults(seed=7)
    plan.throttle(times=3)                        # the next three sends are refused as "busy"
    plan.drop(rate=0.01, on="send")               # one in a hundred breaks the connection
    plan.delay(0.2, on="attach", hub="sensors")

    moment -> Faults.strike -> Fault or None -> server.Conversation
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
# What each action can answer: a link that is not there yet cannot be detached, and so on.
POSSIBLE: dict[Action, tuple[Moment, ...]] = {
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
    """What goes wrong, and where. An empty name means any."""

    action: Action
    moment: Moment
    hub: str = ""
    partition: str = ""
    group: str = ""
    rate: float = 1.0  # how many of its moments are struck: 1 is all of them
    times: int | None = None  # how often it may strike; None is for ever
    seconds: float = 0.0  # of a delay
    condition: str = ""
    description: str = ""
    id: int = field(default=0, compare=False)

    def fits(self, moment: Moment, hub: str, partition: str, group: str) -> bool:
        return self.moment == moment and all(
            not wanted or wanted.lower() == found.lower()
            for wanted, found in (
                (self.hub, hub),
                (self.partition, partition),
                (self.group, group),
            )
        )


class Faults:
    """The faults that are planned. Same seed, same moments, same strikes."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = Random(seed)
        self._planned: dict[int, Fault] = {}
        self._next_id = 1
        self.struck: Counter[Action] = Counter()  # how often each action has struck
        self.relieved: Callable[[], None] = lambda: None  # called when a fault is taken away

    def __bool__(self) -> bool:
        return bool(self._planned)

    def __repr__(self) -> str:
        struck = " ".join(f"{name}={count}" for name, count in sorted(self.struck.items()))
        return f"<Faults {len(self._planned)} planned | struck {struck or 'none'}>"

    # -- planning ---------------------------------------------------------------------------------

    def plan(self, fault: Fault) -> int:
        """Add a fault; the number that is returned takes it away again."""
        check(fault)
        number, self._next_id = self._next_id, self._next_id + 1
        self._planned[number] = replace(fault, id=number)
        return number

    def drop(self, *, on: Moment = "send", rate: float = 1.0, times: int | None = None,
             hub: str = "", partition: str = "", group: str = "") -> int:  # fmt: skip
        """Break the connection without a word."""
        return self.plan(Fault("drop", on, hub, partition, group, rate, times))

    def delay(self, seconds: float, *, on: Moment = "send", rate: float = 1.0,
              times: int | None = None, hub: str = "", partition: str = "",
              group: str = "") -> int:  # fmt: skip
        """Let the connection wait, as a slow network would."""
        return self.plan(Fault("delay", on, hub, partition, group, rate, times, seconds))

    def refuse(self, condition: str = DETACH_FORCED, description: str = "Refused on purpose.", *,
               rate: float = 1.0, times: int | None = None, hub: str = "", partition: str = "",
               group: str = "") -> int:  # fmt: skip
        """Say no to an attach."""
        fault = Fault("refuse", "attach", hub, partition, group, rate, times)
        return self.plan(replace(fault, condition=condition, description=description))

    def detach(self, condition: str = DETACH_FORCED, description: str = "Detached on purpose.", *,
               on: Moment = "deliver", rate: float = 1.0, times: int | None = None, hub: str = "",
               partition: str = "", group: str = "") -> int:  # fmt: skip
        """Close a link that is in use, with a condition."""
        fault = Fault("detach", on, hub, partition, group, rate, times)
        return self.plan(replace(fault, condition=condition, description=description))

    def throttle(self, *, rate: float = 1.0, times: int | None = None, hub: str = "",
                 partition: str = "") -> int:  # fmt: skip
        """Reject sends as the service does when it is busy."""
        fault = Fault("throttle", "send", hub, partition, "", rate, times)
        return self.plan(replace(fault, condition=SERVER_BUSY, description=BUSY_TEXT))

    def freeze(self, hub: str, partition: str = "", group: str = "") -> int:
        """Send no events of a partition to anyone, until this is cancelled."""
        return self.plan(Fault("freeze", "deliver", hub, partition, group))

    def cancel(self, number: int) -> bool:
        """Take a fault away; False if it has gone already."""
        known = self._planned.pop(number, None) is not None
        self.relieved()
        return known

    def clear(self) -> None:
        """Take all of them away."""
        self._planned.clear()
        self.relieved()

    @property
    def planned(self) -> Sequence[Fault]:
        return tuple(self._planned.values())

    # -- striking ---------------------------------------------------------------------------------

    def strike(
        self, moment: Moment, hub: str = "", partition: str = "", group: str = ""
    ) -> Fault | None:
        """The fault that strikes at this moment, if any: the first that was planned."""
        for fault in list(self._planned.values()):
            if fault.fits(moment, hub, partition, group) and self._rng.random() < fault.rate:
                self.count(fault)
                return fault
        return None

    def count(self, fault: Fault) -> None:
        self.struck[fault.action] += 1
        if fault.times is not None:
            left = fault.times - 1
            if left:
                self._planned[fault.id] = replace(fault, times=left)
            else:
                del self._planned[fault.id]


# The fields of a fault as they travel in a request, with the types that they must have.
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
USUAL: dict[str, Moment] = {"refuse": "attach", "detach": "deliver", "freeze": "deliver"}
TEXTS: dict[str, tuple[str, str]] = {
    "refuse": (DETACH_FORCED, "Refused on purpose."),
    "detach": (DETACH_FORCED, "Detached on purpose."),
    "throttle": (SERVER_BUSY, BUSY_TEXT),
}


def fault_from(asked: Mapping[Any, Any]) -> Fault:
    """A fault out of a request; OptionError for a field that makes no sense."""
    given = {name: asked[name] for name in FIELDS if asked.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise OptionError(f"{name} of a fault cannot be {value!r:.60}")
    action = given.get("action", "")
    condition, description = TEXTS.get(action, ("", ""))
    usual = {"moment": USUAL.get(action, "send"), "condition": condition}
    fault = Fault(**{"description": description, **usual, "action": "", **given})
    check(fault)
    return fault


def describe_fault(fault: Fault) -> dict[str, Any]:
    """The other way round: what is planned, as it is told."""
    told = {name: getattr(fault, name) for name in FIELDS}
    return {"id": fault.id, **{name: value for name, value in told.items() if value is not None}}


def check(fault: Fault) -> None:
    if fault.action not in POSSIBLE:
        raise OptionError(f"a fault must be one of {', '.join(POSSIBLE)} (got {fault.action!r})")
    if fault.moment not in POSSIBLE[fault.action]:
        where = ", ".join(POSSIBLE[fault.action])
        raise OptionError(f"{fault.action} can strike on {where} (got {fault.moment!r})")
    if not 0 <= fault.rate <= 1:
        raise OptionError(f"the rate of a fault lies between 0 and 1 (got {fault.rate})")
    if fault.times is not None and fault.times < 1:
        raise OptionError(f"a fault strikes at least once (got times={fault.times})")
    if fault.action == "delay" and not 0 < fault.seconds <= 3600:
        raise OptionError(f"a delay lasts more than 0 and at most 3600 s (got {fault.seconds})")
