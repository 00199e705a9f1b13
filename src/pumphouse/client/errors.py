"""Converts errors of a hub to our exceptions.

    detach, rejected -> error_from -> AuthError, HubNotFound, ReaderEvicted, AmqpError
                        ^^^^^^^^^^ this module

The epoch of the reader that evicts or excludes this one is only in the description. The patterns
match the sentences of the service, which the embedded hub sends too.
"""

from __future__ import annotations

import re

from pumphouse.amqp.performatives import Error
from pumphouse.errors import AmqpError, AuthError, HubNotFound, PumphouseError, ReaderEvicted

LINK_STOLEN = "amqp:link:stolen"
# A hub can send a description as large as a frame. Its own sentences have a few hundred characters.
TEXT_CHARS_MAX = 2000
CONDITION_CHARS_MAX = (
    100  # of the name of a condition; those of AMQP and of the service have up to 35
)

SENTENCE_CHARS_MAX = 1024  # the sentence with the epoch comes first, and names have up to 256
# A reader name may contain text that looks like an epoch. In the first two sentences the name comes
# before the epoch, so the greedy `.*` selects the last candidate. In the third it comes after.
_EVICTED = re.compile(
    r"New receiver '.*with higher epoch of '(?P<epoch>[0-9]{1,19})' is created", re.DOTALL
)
_EXCLUDED = re.compile(
    r"Receiver '.*with a higher epoch '(?P<epoch>[0-9]{1,19})' already", re.DOTALL
)
_NO_EPOCH = re.compile(
    r"At least one receiver for the endpoint is created with epoch of '(?P<epoch>[0-9]{1,19})'"
)


def error_from(error: Error | None) -> PumphouseError:
    """The exception for an error of a hub."""
    if error is None:
        return AmqpError("amqp:link:detach-forced", "the hub detached the link")
    description = shortened(error.description or "")
    match error.condition:
        case "amqp:unauthorized-access":
            return AuthError(description or error.condition)
        case "amqp:not-found":
            return HubNotFound(description or error.condition)
        case "amqp:link:stolen":
            return ReaderEvicted(error.condition, description, other_epoch(description))
    return AmqpError(shortened(error.condition, CONDITION_CHARS_MAX), description)


def other_epoch(description: str) -> int | None:
    """The epoch of the other reader; None if the description does not contain it."""
    start = description[:SENTENCE_CHARS_MAX]
    for pattern in (_NO_EPOCH, _EVICTED, _EXCLUDED):
        if match := pattern.match(start):
            return int(match["epoch"])
    return None


def reason_text(error: Error | None) -> str:
    """The reason of a close, to append to a sentence."""
    return f": {shortened(error.description or error.condition)}" if error is not None else ""


def shortened(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A text of a hub for an error."""
    return text if len(text) <= chars_max else f"{text[:chars_max]} ..."
