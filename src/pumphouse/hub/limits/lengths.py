"""Length limits of text that clients choose. They are checked before the text is parsed.

A parser may then examine each character several times, and an error may quote the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumphouse.errors import AmqpError

# Addresses, audiences, selectors, link names, message ids and property names. The longest valid
# address has about 700 characters: a host, a hub, a consumer group and a publisher.
TEXT_CHARS_MAX = 1024
TOKEN_CHARS_MAX = 64 * 1024  # tokens of Entra have up to a few thousand characters
QUOTED_CHARS_MAX = 300  # of a text in an error

INVALID_FIELD = "amqp:invalid-field"


def check_length(name: str, text: str | bytes, chars_max: int = TEXT_CHARS_MAX) -> None:
    """AmqpError if a text is too long."""
    if len(text) > chars_max:
        raise AmqpError(INVALID_FIELD, too_long(name, len(text), chars_max))


def check_fields(fields: Mapping[Any, Any], **longer: int) -> None:
    """AmqpError if a name or a text of a request is too long; `longer` has other limits by name."""
    for name, value in fields.items():
        check_length("name of a property", str(name))
        if isinstance(value, str):
            check_length(f"property '{name}'", value, longer.get(name, TEXT_CHARS_MAX))


def too_long(name: str, length: int, length_max: int, unit: str = "characters") -> str:
    return f"The {name} has {length} {unit}; at most {length_max} are allowed."


def shortened(text: str, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """The start of a text, for an error."""
    return text if len(text) <= chars_max else text[:chars_max] + "..."
