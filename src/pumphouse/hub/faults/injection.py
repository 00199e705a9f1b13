"""Faults, carried out: what happens to a conversation when one strikes. faults.py decides which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pumphouse.amqp import events as amqp
from pumphouse.amqp.performatives import SENDER, Attach, Error, Source, Target
from pumphouse.errors import AmqpError
from pumphouse.hub.faults.rules import Fault
from pumphouse.hub.links.consumer import Outlet
from pumphouse.hub.links.producer import Intake
from pumphouse.hub.routing import Address, parse_address

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation


def befall(talk: Conversation, event: amqp.Event, rest: Iterator[amqp.Event]) -> bool:
    """Let a fault strike at an event, if one is planned; True if the event is dealt with."""
    fault = find_fault(talk, event)
    if fault is None:
        return False
    match fault.action:
        case "drop":
            talk.drop()
        case "delay":
            talk.suspend(fault.seconds, event, rest)
        case "refuse" if isinstance(event, amqp.AttachAsked):
            event.link.refuse(error_of(fault))
        case "throttle" if isinstance(event, amqp.Delivered):
            event.link.user.settle(event, error_of(fault))
        case "detach" if isinstance(event, amqp.Delivered):
            event.link.user.close(fault.condition, fault.description)
        case _:
            return False
    return True


def befall_connection(talk: Conversation) -> None:
    """A client has connected and said nothing yet."""
    fault = talk.server.faults.strike("connect")
    if fault is not None and fault.action == "drop":
        talk.drop()
    elif fault is not None:
        talk.suspend(fault.seconds, None, iter(()))


def befall_outlet(outlet: Outlet) -> bool:
    """Events are about to be sent; True if they are not to be, now."""
    talk = outlet.talk
    if outlet.spared:  # it has waited for a delay: the same must not strike again
        outlet.spared = False
        return False
    fault = talk.server.faults.strike("deliver", outlet.hub_name, outlet.partition.id, outlet.group)
    if fault is None:
        return False
    match fault.action:
        case "drop":
            talk.drop()
        case "detach":
            outlet.close(fault.condition, fault.description)
        case "delay":
            outlet.spared = True
            talk.server.loop.call_later(fault.seconds, talk.schedule, outlet)
    return True


def find_fault(talk: Conversation, event: amqp.Event) -> Fault | None:
    faults = talk.server.faults
    if isinstance(event, amqp.Delivered) and isinstance(event.link.user, Intake):
        intake = event.link.user
        partition = intake.partition.id if intake.partition is not None else ""
        return faults.strike("send", intake.hub.name, partition)
    if isinstance(event, amqp.AttachAsked) and (address := address_of(event.attach)) is not None:
        return faults.strike("attach", address.hub, address.partition, address.group)
    return None


def address_of(attach: Attach) -> Address | None:
    """Where a link is to lead; None for the nodes that faults leave alone."""
    terminus = attach.target if attach.role == SENDER else attach.source
    text = terminus.address if isinstance(terminus, Source | Target) else None
    try:
        address = parse_address(text) if isinstance(text, str) else None
    except AmqpError:
        return None
    return None if address is None or address.kind in ("cbs", "management") else address


def error_of(fault: Fault) -> Error:
    return Error(condition=fault.condition, description=fault.description)
