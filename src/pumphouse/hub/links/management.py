"""The node $management: what hubs and partitions there are, and how far they have come.

READ of a hub or a partition is the service's own. CREATE, UPDATE, DELETE and QUERY of hubs,
consumer groups and faults are ours: the service does that over HTTP, in its control plane. They
need Manage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pumphouse.amqp.messages import Message
from pumphouse.amqp.types import Int, Timestamp, array_of
from pumphouse.errors import AmqpError, AuthError, HubExists, HubNotFound, OptionError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.guard import SAS_TOKEN, Guard
from pumphouse.hub.faults.rules import describe_fault, fault_from
from pumphouse.hub.links import cbs
from pumphouse.hub.namespace import EventHub, Namespace

HUB, PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
GROUP = "com.microsoft:consumergroup"
FAULT = "pumphouse:fault"

OK, CREATED, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, CONFLICT = 200, 201, 400, 401, 404, 409

Asked = Mapping[Any, Any]


def answer(request: Message, namespace: Namespace, guard: Guard, hub: str = "") -> Message:
    """The reply to a request on $management; `hub` is the one the link's address names, if any."""
    asked = {"name": hub, **request.application} if hub else request.application
    # As text: a client may send anything here, also what no table can be asked for.
    verb, kind = str(asked.get("operation")), str(asked.get("type"))
    operation = OPERATIONS.get((verb, kind))
    if operation is None:
        return refuse(
            request,
            BAD_REQUEST,
            "amqp:not-implemented",
            f"Operation '{verb:.80}' on type '{kind:.80}' is not known.",
        )
    try:
        take_token(asked, guard)
        status, value = operation(namespace, guard, asked)
    except AuthError as wrong:
        return refuse(request, UNAUTHORIZED, "amqp:unauthorized-access", wrong.description)
    except HubNotFound as wrong:
        return refuse(request, NOT_FOUND, "amqp:not-found", str(wrong))
    except HubExists as wrong:
        return refuse(request, CONFLICT, "amqp:not-allowed", str(wrong))
    except OptionError as wrong:
        return refuse(request, BAD_REQUEST, "com.microsoft:argument-error", str(wrong))
    except AmqpError as wrong:
        status = UNAUTHORIZED if wrong.condition == "amqp:unauthorized-access" else BAD_REQUEST
        return refuse(request, status, wrong.condition, wrong.description)
    return cbs.reply(request, status, "OK" if status == OK else "Created", value)


def refuse(request: Message, status: int, condition: str, description: str) -> Message:
    reply = cbs.reply(request, status, description)
    return replace(reply, application={**reply.application, "error-condition": condition})


def take_token(asked: Asked, guard: Guard) -> None:
    """Some clients send their token with the request instead of, or besides, over $cbs."""
    token, name = asked.get("security_token"), asked.get("name")
    if (
        isinstance(token, str)
        and token.startswith("SharedAccessSignature ")
        and isinstance(name, str)
    ):
        guard.put_token(name, SAS_TOKEN, token)


def find_hub(namespace: Namespace, guard: Guard, asked: Asked, claim: Claim | None) -> EventHub:
    """The hub a request names, if the connection may know of it."""
    name = text(asked, "name")
    # The JavaScript client puts its token for this very path, the Python one for the hub.
    if not guard.allows(f"{name}/$management", claim):
        raise AuthError(
            f"Unauthorized access. '{claim or 'Listen'}' claim(s) are required to perform this "
            f"operation. Resource: '{guard.resource(name)}'."
        )
    try:
        return namespace.hub(name)
    except HubNotFound as unknown:
        # The JavaScript client knows a missing hub by the service's sentence, not by the condition.
        raise HubNotFound(
            f"The messaging entity '{guard.resource(name)}' could not be found: {unknown}"
        ) from None


def text(asked: Asked, key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not value:
        raise OptionError(f"the request needs '{key}' as a string")
    return value


def read_hub(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    return OK, describe_hub(find_hub(namespace, guard, asked, None))


def describe_hub(hub: EventHub) -> dict[str, Any]:
    return {
        "name": hub.name,
        "type": HUB,
        "created_at": Timestamp(hub.created_ms),
        "partition_count": Int(len(hub.partitions)),
        "partition_ids": array_of(str, [partition.id for partition in hub.partitions]),
    }


def read_partition(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, asked, None)
    partition = hub.partition(text(asked, "partition"))
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


def create_hub(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    made = namespace.create_hub(text(asked, "name"), partition_count(asked))
    return CREATED, describe_hub(made)


def update_hub(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    """Give a hub more partitions."""
    hub = find_hub(namespace, guard, asked, Claim.MANAGE)
    return OK, describe_hub(namespace.grow_hub(hub.name, partition_count(asked)))


def partition_count(asked: Asked) -> int:
    partitions = asked.get("partition_count")
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise OptionError("the request needs 'partition_count' as a whole number")
    return int(partitions)


def delete_hub(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    namespace.delete_hub(text(asked, "name"))
    return OK, None


def query_hubs(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return OK, [describe_hub(hub) for hub in namespace.hubs]


def create_group(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, asked, Claim.MANAGE)
    namespace.create_group(hub.name, text(asked, "group"))
    return CREATED, None


def delete_group(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, asked, Claim.MANAGE)
    namespace.delete_group(hub.name, text(asked, "group"))
    return OK, None


def query_groups(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    hub = find_hub(namespace, guard, asked, Claim.MANAGE)
    return OK, sorted(hub.groups.values())


def create_fault(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return CREATED, namespace.faults.plan(fault_from(asked))


def delete_fault(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    """Take one fault away, or (without a number) all of them."""
    guard.check("", Claim.MANAGE)
    number = asked.get("id")
    if number is None:
        namespace.faults.clear()
    elif not isinstance(number, int) or not namespace.faults.cancel(int(number)):
        raise HubNotFound(f"there is no fault {number}; it may have struck as often as it was to")
    return OK, None


def query_faults(namespace: Namespace, guard: Guard, asked: Asked) -> tuple[int, Any]:
    guard.check("", Claim.MANAGE)
    return OK, [describe_fault(fault) for fault in namespace.faults.planned]


Operation = Callable[[Namespace, Guard, Asked], tuple[int, Any]]

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
