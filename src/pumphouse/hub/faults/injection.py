"""Carries faults out on connections and links. `rules` decides which fault is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pumphouse.amqp import events as amqp
from pumphouse.amqp.performatives import SENDER, Attach, Error, Source, Target
from pumphouse.errors import AmqpError
from pumphouse.hub.faults.rules import Fault, Faults
from pumphouse.hub.namespace import Partition
from pumphouse.hub.routing import Address, parse_address


class ErrorTexts(Protocol):
    """Adds a tracking id to an error text."""

    def tracked(self, text: str) -> str: ...


class FaultyConnection(Protocol):
    """The part of a connection that faults act on."""

    @property
    def guard(self) -> ErrorTexts: ...

    def drop(self) -> None: ...

    def suspend(self, seconds: float, event: amqp.Event | None) -> None: ...


class DeliveringConnection(Protocol):
    """The part of a consumer link's connection that faults act on."""

    def drop(self) -> None: ...

    def schedule(self, link: Any) -> None: ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None: ...


class DeliveringLink(Protocol):
    """The part of a consumer link that faults act on."""

    hub_name: str
    partition: Partition
    group: str
    fault_done: bool

    @property
    def connection(self) -> DeliveringConnection: ...

    def close(self, condition: str, description: str) -> None: ...


def inject_on_connect(faults: Faults, connection: FaultyConnection) -> None:
    """Inject a fault into a new connection, if one is due."""
    fault = faults.select("connect")
    if fault is not None and fault.action == "drop":
        connection.drop()
    elif fault is not None:
        connection.suspend(fault.seconds, None)


def inject_on_event(faults: Faults, connection: FaultyConnection, event: amqp.Event) -> bool:
    """Inject a fault at an attach or a delivery; True if the event must not be handled now."""
    fault = fault_for(faults, event)
    if fault is None:
        return False
    match fault.action:
        case "drop":
            connection.drop()
        case "delay":
            connection.suspend(fault.seconds, event)
        case "refuse" if isinstance(event, amqp.AttachAsked):
            event.link.refuse(error_of(fault, connection.guard))
        case "throttle" if isinstance(event, amqp.Delivered):
            event.link.user.settle(event, error_of(fault, connection.guard))
        case "detach" if isinstance(event, amqp.Delivered):
            event.link.user.close(fault.condition, fault.description)
        case _:
            return False
    return True


def inject_on_deliver(faults: Faults, link: DeliveringLink) -> bool:
    """Inject a fault before events are sent, if one is due; True if they must not be sent now."""
    if link.fault_done:
        link.fault_done = False
        return False
    fault = faults.select("deliver", link.hub_name, link.partition.id, link.group)
    if fault is None:
        return False
    match fault.action:
        case "drop":
            link.connection.drop()
        case "detach":
            link.close(fault.condition, fault.description)
        case "delay":
            link.fault_done = True  # after the delay the events are sent without a further fault
            link.connection.call_later(fault.seconds, link.connection.schedule, link)
        # "freeze" has no case: the events stay in the log until the fault is cancelled.
    return True


def fault_for(faults: Faults, event: amqp.Event) -> Fault | None:
    """The fault that is due at an event."""
    if isinstance(event, amqp.Delivered):
        scope = event.link.user.send_scope
        return None if scope is None else faults.select("send", *scope)
    if isinstance(event, amqp.AttachAsked) and (address := address_of(event.attach)) is not None:
        return faults.select("attach", address.hub, address.partition, address.group)
    return None


def address_of(attach: Attach) -> Address | None:
    """The address of an attach; None for $cbs and $management, where no fault is injected."""
    terminus = attach.target if attach.role == SENDER else attach.source
    text = terminus.address if isinstance(terminus, Source | Target) else None
    try:
        address = parse_address(text) if isinstance(text, str) else None
    except AmqpError:
        return None
    return None if address is None or address.kind in ("cbs", "management") else address


def error_of(fault: Fault, texts: ErrorTexts) -> Error:
    return Error(condition=fault.condition, description=texts.tracked(fault.description))
