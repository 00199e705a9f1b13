"""The node $management: reads and changes hubs, partitions, consumer groups and faults.

READ of a hub or a partition is an operation of the service. CREATE, UPDATE, DELETE and QUERY of
hubs, consumer groups and faults are additions of the embedded hub and need the claim Manage. For
hubs and consumer groups, the service has similar operations over HTTP, in its control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pumphouse.amqp.messages import Message
from pumphouse.amqp.types import Int, Timestamp, array_of, short
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ChangeNotStored,
    HubExists,
    HubNotFound,
    OptionError,
)
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.guard import SAS_TOKEN, Guard
from pumphouse.hub.faults.rules import describe_fault, parse_fault
from pumphouse.hub.limits.lengths import TOKEN_CHARS_MAX, check_fields
from pumphouse.hub.links import cbs
from pumphouse.hub.namespace import EventHub, Namespace

HUB, PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
GROUP = "com.microsoft:consumergroup"
FAULT = "pumphouse:fault"

OK, CREATED, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, CONFLICT = 200, 201, 400, 401, 404, 409
FAILED, DISK_FULL = 500, 507

Fields = Mapping[Any, Any]  # the application properties of a request


def handle(request: Message, namespace: Namespace, guard: Guard, hub: str = "") -> Message:
    """Carry out a request on $management and return its reply.

    `hub` is the hub in the link's address, if any.
    """
    try:
        status, value = carry_out(request, namespace, guard, hub)
    except AuthError as failure:
        refusal = UNAUTHORIZED, "amqp:unauthorized-access", failure.description
    except HubNotFound as failure:
        refusal = NOT_FOUND, "amqp:not-found", str(failure)
    except HubExists as failure:
        refusal = CONFLICT, "amqp:not-allowed", str(failure)
    except OptionError as failure:
        refusal = BAD_REQUEST, "com.microsoft:argument-error", str(failure)
    except ChangeNotStored as failure:
        refusal = not_stored(failure)
    except AmqpError as failure:
        status = UNAUTHORIZED if failure.condition == "amqp:unauthorized-access" else BAD_REQUEST
        refusal = status, failure.condition, failure.description
    else:
        return cbs.reply(request, status, "OK" if status == OK else "Created", value)
    status, condition, text = refusal
    return refuse(request, status, condition, guard.tracked(text))


def not_stored(failure: ChangeNotStored) -> tuple[int, str, str]:
    """Status, condition and text for a change that could not be written to the disk."""
    if failure.disk_full:
        return DISK_FULL, "amqp:resource-limit-exceeded", failure.description
    return FAILED, "amqp:internal-error", failure.description


def carry_out(request: Message, namespace: Namespace, guard: Guard, hub: str) -> tuple[int, Any]:
    """Carry out a request; returns its status and value, or raises its error."""
    fields = {"name": hub, **request.application} if hub else request.application
    check_fields(fields, security_token=TOKEN_CHARS_MAX)
    verb, kind = fields.get("operation"), fields.get("type")
    # A client may send any type here, also one that is not hashable.
    operation = None
    if isinstance(verb, str) and isinstance(kind, str):
        operation = OPERATIONS.get((verb, kind))
    if operation is None:
        raise AmqpError(
            "amqp:not-implemented",
            f"Operation {short(verb)} on type {short(kind)} is not supported.",
        )
    take_token(fields, guard)
    return operation(namespace, guard, fields)


def refuse(request: Message, status: int, condition: str, description: str) -> Message:
    reply = cbs.reply(request, status, description)
    return replace(reply, application={**reply.application, "error-condition": condition})


def take_token(fields: Fields, guard: Guard) -> None:
    """Use the token in the request, if any: some clients send it here, not only on $cbs."""
    token, name = fields.get("security_token"), fields.get("name")
    if (
        isinstance(token, str)
        and token.startswith("SharedAccessSignature ")
        and isinstance(name, str)
    ):
        guard.put_token(name, SAS_TOKEN, token)


def find_hub(namespace: Namespace, guard: Guard, fields: Fields, claim: Claim | None) -> EventHub:
    """The hub that a request names, if the connection has access to it."""
    name = required_text(fields, "name")
    # The JavaScript client puts its token for this path, the Python client for the hub.
    if not guard.allows(f"{name}/$management", claim):
        raise AuthError(
            f"Unauthorized access. '{claim or 'Listen'}' claim(s) are required to perform this "
            f"operation. Resource: '{guard.resource(name)}'."
        )
    return guard.find_hub(name)


def required_text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise OptionError(f"the request needs '{key}' as a string (got {short(value)})")
    return value


def read_hub(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    return OK, describe_hub(find_hub(namespace, guard, fields, None))


def describe_hub(hub: EventHub) -> dict[str, Any]:
    return {
        "name": hub.name,
        "type": HUB,
        "created_at": Timestamp(hub.created_ms),
        "partition_count": Int(len(hub.partitions)),
        "partition_ids": array_of(str, [partition.id for partition in hub.partitions]),
    }


def read_partition(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, fields, None)
    partition = hub.partition(required_text(fields, "partition"))
    log = partition.log
    return OK, {
        "name": hub.name,
        "type": PARTITION,
        "partition": partition.id,
        "begin_sequence_number": log.begin,
        "last_enqueued_sequence_number": log.next_sequence - 1,
        "last_enqueued_offset": str(log.last_offset),
        "last_enqueued_time_utc": Timestamp(log.last_ms),
        "is_partition_empty": log.empty,
    }


def create_hub(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    hub = namespace.create_hub(required_text(fields, "name"), partition_count(fields))
    return CREATED, describe_hub(hub)


def update_hub(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    """Give a hub more partitions."""
    hub = find_hub(namespace, guard, fields, Claim.MANAGE)
    return OK, describe_hub(namespace.grow_hub(hub.name, partition_count(fields)))


def partition_count(fields: Fields) -> int:
    partitions = fields.get("partition_count")
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise OptionError(
            f"the request needs 'partition_count' as a whole number (got {short(partitions)})"
        )
    return int(partitions)


def delete_hub(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    namespace.delete_hub(required_text(fields, "name"))
    return OK, None


def query_hubs(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return OK, [describe_hub(hub) for hub in namespace.hubs]


def create_group(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, fields, Claim.MANAGE)
    namespace.create_group(hub.name, required_text(fields, "group"))
    return CREATED, None


def delete_group(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, fields, Claim.MANAGE)
    namespace.delete_group(hub.name, required_text(fields, "group"))
    return OK, None


def query_groups(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, fields, Claim.MANAGE)
    return OK, sorted(hub.groups.values())


def create_fault(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return CREATED, namespace.faults.plan(parse_fault(fields))


def delete_fault(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    """Remove one fault or, without an id, all faults."""
    guard.check("", Claim.MANAGE)
    fault_id = fields.get("id")
    if fault_id is None:
        namespace.faults.clear()
    elif not isinstance(fault_id, int) or not namespace.faults.cancel(int(fault_id)):
        raise HubNotFound(f"fault {fault_id} not found: it may have expired")
    return OK, None


def query_faults(namespace: Namespace, guard: Guard, fields: Fields) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return OK, [describe_fault(fault) for fault in namespace.faults.planned]


Operation = Callable[[Namespace, Guard, Fields], tuple[int, Any]]

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("READ", HUB): read_hub,
    ("READ", PARTITION): read_partition,
    ("CREATE", HUB): create_hub,
    ("UPDATE", HUB): update_hub,
    ("DELETE", HUB): delete_hub,
    ("QUERY", HUB): query_hubs,
    ("CREATE", GROUP): create_group,
    ("DELETE", GROUP): delete_group,
    ("QUERY", GROUP): query_groups,
    ("CREATE", FAULT): create_fault,
    ("DELETE", FAULT): delete_fault,
    ("QUERY", FAULT): query_faults,
}
