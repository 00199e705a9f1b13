"""Converts failures of the official SDK to our exceptions.

    any exception of the SDK -> translate_error -> AuthError, HubNotFound, ReaderEvicted, ...
                                ^^^^^^^^^^^^^^^ this module

The SDK reports errors in three forms. Its AMQP layer raises errors with a full condition. Its
public API keeps the part after the first colon. Replies of $cbs and $management appear only in the
text, as a status. This module recognises the three forms without importing the SDK, so it also
works with other versions.
"""

from __future__ import annotations

import re

from pumphouse.amqp.performatives import Error
from pumphouse.amqp.types import Symbol
from pumphouse.client.errors import error_from, shortened
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    EventTooLarge,
    HubNotFound,
    HubUntrusted,
    OptionError,
    PumphouseError,
)

# Shortened conditions whose prefix was "com.microsoft:"; the prefix of all others was "amqp:".
SERVICE_CONDITIONS = {
    "argument-error",
    "argument-out-of-range",
    "auth-failed",
    "container-close",
    "entity-disabled",
    "operation-cancelled",
    "precondition-failed",
    "server-busy",
    "timeout",
}
# Conditions of the SDK itself, not of the hub.
SDK_CONDITIONS = {
    "amqp:socket-error",
    "amqp:client-error",
    "amqp:unknown-error",
    "amqp:vendor-error",
}
AUTH_CONDITIONS = {"amqp:unauthorized-access", "com.microsoft:auth-failed"}

_STATUS = re.compile(
    r"Status code: (?P<status>[0-9]{3})\b,?\s*(?:Description: (?P<description>.*))?", re.DOTALL
)


def translate_error(failure: Exception, address: str) -> PumphouseError:
    """Our exception for a failure at any level of the SDK."""
    if isinstance(failure, PumphouseError):
        return failure
    if isinstance(failure, TimeoutError):
        return ConnectionFailed(f"{address} did not respond in time")
    if isinstance(failure, ImportError):
        return OptionError(f"{failure}; pip install 'pumphouse[azure]' installs the dependencies")
    text = shortened(str(failure))
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return HubUntrusted(
            f"the certificate of {address} is not trusted: {first_line(text)}; "
            "set ca_file=FILE for a development certificate"
        )
    if status := _STATUS.search(text):
        return error_for_status(
            int(status["status"]), clean_description(status["description"]), address
        )
    return error_for_condition(condition_of(failure), description_of(failure), address)


def error_for_status(status: int, description: str, address: str) -> PumphouseError:
    """The error for a status of $cbs or $management."""
    if status in (401, 403):
        return AuthError(f"{address} does not accept the key, token or credential: {description}")
    if status == 404:
        return HubNotFound(f"{address} could not be found ({description})")
    if status == 400:
        return AmqpError("com.microsoft:argument-out-of-range", description)
    return ConnectionFailed(f"{address} returned status {status}: {description}")


def error_for_condition(condition: str, description: str, address: str) -> PumphouseError:
    """The error for a condition of the hub; ConnectionFailed without one."""
    if not condition or condition in SDK_CONDITIONS:
        return ConnectionFailed(f"{address}: {description or condition or 'no reason given'}")
    if condition in AUTH_CONDITIONS:
        return AuthError(description or condition)
    if condition == "amqp:link:message-size-exceeded":
        return EventTooLarge(description or "a message was larger than the hub allows")
    return error_from(Error(condition=Symbol(condition), description=description))


def condition_of(failure: Exception) -> str:
    """The full condition; "" if there is none."""
    condition = getattr(failure, "condition", None)
    if condition:
        return text_of(getattr(condition, "value", condition))
    short = text_of(getattr(failure, "error", None) or "")
    if not short:
        return ""
    return f"com.microsoft:{short}" if short in SERVICE_CONDITIONS else f"amqp:{short}"


def description_of(failure: Exception) -> str:
    """The description. In the text of a public error only the first line is the description."""
    if hasattr(failure, "condition"):
        return shortened(text_of(getattr(failure, "description", None) or ""))
    return first_line(shortened(str(failure))) or type(failure).__name__


def clean_description(description: str | None) -> str:
    """A description without the quotes that the SDK adds."""
    text = first_line((description or "").strip())
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    text = text[1:-1] if quoted else text
    # azure-eventhub 5.15 keeps only the status of a $management reply.
    return text if text not in ("", "None") else "no reason given"


def first_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def text_of(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
