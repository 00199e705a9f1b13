"""What a failure of the official SDK means, as one of our own errors.

    whatever the SDK raises -> meaning -> AuthError, HubNotFound, ReaderEvicted, ...
                               ^^^^^^^ this module

The SDK tells one thing in three ways. Its AMQP layer raises errors with a whole condition; its
public face keeps of that the part behind the first colon; and what $cbs and $management answered
stands only in the text, as a status. All three are read here by their shape, so this file needs no
SDK, and a version that raises another class is still understood.
"""

from __future__ import annotations

import re

from pumphouse.amqp.performatives import Error
from pumphouse.amqp.types import Symbol
from pumphouse.client.errors import refusal
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

# Conditions of the service's own; all others that the SDK has shortened begin with "amqp:".
SERVICE = {
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
# What the SDK calls its own troubles: nobody on the other side has said anything.
OWN = {"amqp:socket-error", "amqp:client-error", "amqp:unknown-error", "amqp:vendor-error"}
DENIED = {"amqp:unauthorized-access", "com.microsoft:auth-failed"}

_STATUS = re.compile(
    r"Status code: (?P<status>[0-9]{3})\b,?\s*(?:Description: (?P<said>.*))?", re.DOTALL
)


def meaning(failure: Exception, place: str) -> PumphouseError:
    """A failure of the SDK, at whatever depth it was raised, as one of ours."""
    if isinstance(failure, PumphouseError):
        return failure
    if isinstance(failure, TimeoutError):
        return ConnectionFailed(f"{place} did not answer in time")
    if isinstance(failure, ImportError):
        return OptionError(f"{failure}; pip install 'pumphouse[azure]' brings all that is needed")
    text = str(failure)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return HubUntrusted(f"the certificate of {place} is not trusted: {first_line(text)}")
    if status := _STATUS.search(text):
        return answered(int(status["status"]), said(status["said"]), place)
    return told(condition_of(failure), description_of(failure), place)


def answered(status: int, description: str, place: str) -> PumphouseError:
    """What $cbs or $management answered instead of doing what it was asked to."""
    if status in (401, 403):
        return AuthError(f"{place} does not take the key, token or credential: {description}")
    if status == 404:
        return HubNotFound(f"{place} could not be found ({description})")
    if status == 400:
        return AmqpError("com.microsoft:argument-out-of-range", description)
    return ConnectionFailed(f"{place} answered {status}: {description}")


def told(condition: str, description: str, place: str) -> PumphouseError:
    """What the hub gave as its reason; without one the connection is to blame."""
    if not condition or condition in OWN:
        return ConnectionFailed(f"{place}: {description or condition or 'no reason was given'}")
    if condition in DENIED:
        return AuthError(description or condition)
    if condition == "amqp:link:message-size-exceeded":
        return EventTooLarge(description or "a message was larger than the hub allows")
    return refusal(Error(condition=Symbol(condition), description=description))


def condition_of(failure: Exception) -> str:
    """The whole condition; "" if there is none."""
    whole = getattr(failure, "condition", None)
    if whole:
        return text_of(getattr(whole, "value", whole))
    short = text_of(getattr(failure, "error", None) or "")
    if not short:
        return ""
    return f"com.microsoft:{short}" if short in SERVICE else f"amqp:{short}"


def description_of(failure: Exception) -> str:
    """What was said, without the SDK's repetitions of it."""
    if hasattr(failure, "condition"):
        return text_of(getattr(failure, "description", None) or "")
    return first_line(str(failure)) or type(failure).__name__


def said(description: str | None) -> str:
    """A description as it was before the SDK wrote its repr into a sentence."""
    text = first_line((description or "").strip())
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    text = text[1:-1] if quoted else text
    # Of what $management says, azure-eventhub 5.15 keeps the status only.
    return text if text not in ("", "None") else "no reason was given"


def first_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def text_of(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
