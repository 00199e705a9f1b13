"""What a hub's error means to us, as one of our own.

    detach, rejected -> refusal -> AuthError, HubNotFound, ReaderEvicted, AmqpError
                        ^^^^^^^ this module

The epoch of the reader that has evicted us (or keeps us out) stands only in the text. The service's
sentences are matched, which the embedded hub writes to the letter.
"""

from __future__ import annotations

import re

from pumphouse.amqp.performatives import Error
from pumphouse.errors import AmqpError, AuthError, HubNotFound, PumphouseError, ReaderEvicted

LINK_STOLEN = "amqp:link:stolen"

# The name of the other reader stands before its epoch in the first two, behind it in the third. It
# is not ours, so it must not be able to pass for an epoch: hence the last match, and the first.
_EVICTED = re.compile(
    r"New receiver '.*with higher epoch of '(?P<epoch>[0-9]{1,19})' is created", re.DOTALL
)
_KEPT_OUT = re.compile(
    r"Receiver '.*with a higher epoch '(?P<epoch>[0-9]{1,19})' already", re.DOTALL
)
_NO_EPOCH = re.compile(
    r"At least one receiver for the endpoint is created with epoch of '(?P<epoch>[0-9]{1,19})'"
)


def refusal(error: Error | None) -> PumphouseError:
    """A hub's error as one of ours."""
    if error is None:
        return AmqpError("amqp:link:detach-forced", "the hub detached the link")
    description = error.description or ""
    match error.condition:
        case "amqp:unauthorized-access":
            return AuthError(description or error.condition)
        case "amqp:not-found":
            return HubNotFound(description or error.condition)
        case "amqp:link:stolen":
            return ReaderEvicted(error.condition, description, other_epoch(description))
    return AmqpError(error.condition, description)


def other_epoch(description: str) -> int | None:
    """The epoch of the reader that was preferred to us; None if the text does not name it."""
    for form in (_NO_EPOCH, _EVICTED, _KEPT_OUT):
        if found := form.match(description):
            return int(found["epoch"])
    return None


def told(error: Error | None) -> str:
    """What a hub said when it hung up, to stand behind a sentence."""
    return f": {error.description or error.condition}" if error is not None else ""
