"""The SASL layer before AMQP: mechanisms, their responses, and the outcome.

The server offers mechanisms, the client chooses one and sends its initial response, the server
sends the outcome. None of the supported mechanisms needs a challenge.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.amqp.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from pumphouse.errors import AuthError, RemoteProtocolError

ANONYMOUS, EXTERNAL, PLAIN, MSSBCBS = "ANONYMOUS", "EXTERNAL", "PLAIN", "MSSBCBS"

# MSSBCBS is the mechanism of the service: authentication by claims on the node $cbs.
MECHANISMS = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)

OK, AUTH_FAILED = 0, 1
NAMES_CHARS_MAX = 200  # of the mechanisms of a server, in an error


@dataclass(frozen=True, slots=True)
class Login:
    """The SASL mechanism and response of a client."""

    mechanism: str = ANONYMOUS
    response: bytes = b""


def check_offered(offered: SaslMechanisms, requested: str) -> None:
    """Raise if the server does not offer the requested mechanism."""
    if requested not in offered.mechanisms:
        names = ", ".join(offered.mechanisms)[:NAMES_CHARS_MAX] or "none"
        raise RemoteProtocolError(f"the server does not offer SASL {requested}; it offers {names}")


def plain_response(user: str, password: str) -> bytes:
    """The initial response of PLAIN: no authorisation identity, then user and password."""
    return b"\0" + user.encode() + b"\0" + password.encode()


def parse_plain(response: bytes | None) -> tuple[str, str]:
    """User and password of a PLAIN response."""
    try:
        _, user, password = (response or b"").decode("utf-8").split("\0")
    except ValueError:
        raise AuthError("SASL PLAIN needs a response of the form NUL user NUL password") from None
    return user, password


def mechanism_of(init: SaslInit) -> str:
    """The mechanism that a client chose; AuthError if it is unknown."""
    if init.mechanism not in MECHANISMS:
        raise AuthError(
            f"SASL mechanism {init.mechanism[:40]!r} is not one of {', '.join(MECHANISMS)}"
        )
    return init.mechanism


def check_outcome(outcome: SaslOutcome) -> None:
    """Raise if the server refused the login."""
    if outcome.code != OK:
        raise AuthError(f"the server refused the SASL login (code {outcome.code})")
