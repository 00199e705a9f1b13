"""The security layer that comes before AMQP proper: who is speaking, by which mechanism.

The server names its mechanisms, the client picks one and gives its initial response, the server
says the outcome. No mechanism that we speak needs a challenge.
"""

from __future__ import annotations

from pumphouse.amqp.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from pumphouse.errors import AuthError, RemoteProtocolError

ANONYMOUS, EXTERNAL, PLAIN, MSSBCBS = "ANONYMOUS", "EXTERNAL", "PLAIN", "MSSBCBS"

# MSSBCBS is the service's own: "I shall authenticate by claims, on the node $cbs".
MECHANISMS = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)

OK, AUTH_FAILED = 0, 1


def choose(offered: SaslMechanisms, wanted: str) -> None:
    """Check that the server takes the mechanism we want."""
    if wanted not in offered.mechanisms:
        names = ", ".join(offered.mechanisms) or "none"
        raise RemoteProtocolError(f"the server offers no SASL {wanted}; it offers {names}")


def plain_response(user: str, password: str) -> bytes:
    """The initial response of PLAIN: no authorisation identity, then user and password."""
    return b"\0" + user.encode() + b"\0" + password.encode()


def parse_plain(response: bytes | None) -> tuple[str, str]:
    """User and password out of a PLAIN response."""
    try:
        _, user, password = (response or b"").decode("utf-8").split("\0")
    except ValueError:
        raise AuthError("SASL PLAIN needs a response of the form NUL user NUL password") from None
    return user, password


def mechanism_of(init: SaslInit) -> str:
    """The mechanism a client picked; an unknown one is an authentication failure, not a crash."""
    if init.mechanism not in MECHANISMS:
        raise AuthError(
            f"SASL mechanism {init.mechanism[:40]!r} is not one of {', '.join(MECHANISMS)}"
        )
    return init.mechanism


def check_outcome(outcome: SaslOutcome) -> None:
    """Raise if the server said no."""
    if outcome.code != OK:
        raise AuthError(f"the server refused the SASL login (code {outcome.code})")
