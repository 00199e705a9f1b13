"""Converts errors of a hub to our exceptions.

    detach, rejected -> error_from -> AuthError, HubNotFound, ReaderEvicted, AmqpError
                        ^^^^^^^^^^ this module

The epoch of the reader that evicted or excludes us is only in the text. The patterns match the
sentences of the service, which the embedded hub uses too.
"""

from __future__ import annotations

import re

from pumphouse.amqp.performatives import Error
from pumphouse.errors import AmqpError, AuthError, HubNotFound, PumphouseError, ReaderEvicted

LINK_STOLEN = "amqp:link:stolen"

# The name of the other reader comes before its epoch in the first two, and after it in the third.
# A name that looks like an epoch must not match: hence the last match, and the first.
_EVICTED = re.compile(
    r"New receiver '.*with higher epoch of '(?P<epoch>[0-9]{1,19})' is created", re.DOTALL
)
_KEPT_OUT = re.compile(
    r"Receiver '.*with a higher epoch '(?P<epoch>[0-9]{1,19})' already", re.DOTALL
)
_NO_EPOCH = re.compile(
    r"At least one receiver for the endpoint is created with epoch of '(?P<epoch>[0-9]{1,19})'"
)


def error_from(error: Error | None) -> PumphouseError:
    """The exception for an error of a hub."""
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
    """The epoch of the preferred reader; None if the text does not contain it."""
    for form in (_NO_EPOCH, _EVICTED, _KEPT_OUT):
        if match := form.match(description):
            return int(match["epoch"])
    return None


def reason_text(error: Error | None) -> str:
    """The reason of a close, to append to a sentence."""
    return f": {error.description or error.condition}" if error is not None else ""
