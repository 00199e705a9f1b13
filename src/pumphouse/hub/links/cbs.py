"""The node $cbs (claims-based security): a client puts a token to get access."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pumphouse.amqp.messages import Message, Properties
from pumphouse.amqp.types import Int
from pumphouse.errors import AmqpError, AuthError, HubNotFound
from pumphouse.hub.access.auth import resource_path
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.limits.lengths import check_fields

ACCEPTED, BAD_REQUEST, NOT_FOUND = 202, 400, 404


def handle(request: Message, guard: Guard) -> Message:
    """Carry out a request on $cbs and return its reply. The reply never holds the token."""
    fields = request.application
    try:
        check_fields(fields)
    except AmqpError as refusal:
        return reply(request, BAD_REQUEST, guard.tracked(refusal.description))
    operation, name, kind = (fields.get(key) for key in ("operation", "name", "type"))
    token = token_of(request)
    if operation != "put-token" or not all(isinstance(v, str) for v in (name, kind, token)):
        text = "A request to $cbs needs operation 'put-token', name, type and a token as its value."
        return reply(request, BAD_REQUEST, guard.tracked(text))
    try:
        guard.put_token(name, kind, token)  # type: ignore[arg-type]
    except AuthError as refusal:
        path = resource_path(str(name))
        return reply(request, refusal.status, guard.tracked(refusal.description, path))
    except HubNotFound as refusal:
        path = resource_path(str(name))
        return reply(request, NOT_FOUND, guard.tracked(str(refusal), path))
    return reply(request, ACCEPTED, "Accepted")


def token_of(request: Message) -> Any:
    """The token, as a value or, from some clients, as binary data."""
    if request.data:
        return b"".join(request.data).decode("utf-8", "replace")
    return request.value


def reply(request: Message, status: int, description: str, value: Any = None) -> Message:
    """The reply to a request, with the request's id as its correlation id."""
    message_id = request.properties.message_id if request.properties else None
    if not isinstance(message_id, int | UUID | bytes | str):
        message_id = None  # other types are not valid ids, and not all of them can be sent back
    return Message(
        properties=Properties(correlation_id=message_id),
        application={"status-code": Int(status), "status-description": description},
        value=value,
    )
