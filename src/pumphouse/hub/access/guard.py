"""The grants of one connection: what its tokens allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from pumphouse.amqp.performatives import SaslInit
from pumphouse.amqp.sasl import PLAIN, parse_plain
from pumphouse.clock import machine_now
from pumphouse.errors import AuthError, HubNotFound
from pumphouse.hub.access.auth import (
    Claim,
    Grant,
    allows,
    unauthorized,
    verify_by_both_clocks,
    verify_plain,
    verify_sas,
)
from pumphouse.hub.access.token_issuer import verify_jwt
from pumphouse.hub.namespace import EventHub, Namespace
from pumphouse.hub.routing import ancestors, hub_of, not_found_text, path_of
from pumphouse.hub.tracking import new_id, tracked

SAS_TOKEN, JWT_TOKEN = "servicebus.windows.net:sastoken", "jwt"
GRANTS_MAX = 1000  # tokens of one connection
# Each grant keeps its path. A hub's name has up to 256 characters, a group's 50.
PATH_CHARS_MAX = 1024


def do_nothing() -> None:
    """No action is needed after a grant."""


class Guard:
    """The grants of one connection."""

    def __init__(
        self, namespace: Namespace, authority: str, on_granted: Callable[[], None] = do_nothing
    ) -> None:
        self.namespace = namespace
        self.authority = authority  # host and port, for error texts
        self._on_granted = on_granted  # called after each valid key or token
        self._grants: dict[str, Grant] = {}

    def authenticate(self, init: SaslInit) -> None:
        """Handle the SASL login. PLAIN gives a grant; the other mechanisms need a token on $cbs."""
        if init.mechanism == PLAIN:
            user, password = parse_plain(init.initial_response)
            grant = verify_plain(user, password, self.namespace.rules)
            self.add(grant)

    def add(self, grant: Grant) -> None:
        self._grants[grant.path] = grant
        self._on_granted()

    def put_token(self, audience: str, kind: str, token: str) -> None:
        """Add the grant of a token for an audience.

        AuthError if the token is not valid, HubNotFound if it is for a hub that does not exist.
        """
        clock = self.namespace.clock
        grant = verify_by_both_clocks(
            partial(self.verify, audience, kind, token), clock.now(), machine_now(clock)
        )
        if hub := hub_of(grant.path):
            # After `verify`, so that only a client with a valid token learns which hubs exist.
            self.find_hub(hub)
        if len(self._grants) >= GRANTS_MAX and grant.path not in self._grants:
            raise AuthError(f"QuotaExceeded: more than {GRANTS_MAX} tokens on one connection.", 403)
        if len(grant.path) > PATH_CHARS_MAX:
            raise AuthError(f"The audience has more than {PATH_CHARS_MAX} characters.", 403)
        self.add(grant)

    def verify(self, audience: str, kind: str, token: str, now: float) -> Grant:
        """The grant of a token at a time."""
        if kind == SAS_TOKEN:
            return verify_sas(token, audience, self.namespace.rules, now)
        if kind == JWT_TOKEN:
            return verify_jwt(token, audience, self.namespace.issuer, now)
        raise AuthError(
            f"Unauthorized: tokens of type '{kind[:80]}' are not supported; "
            f"use '{SAS_TOKEN}' or '{JWT_TOKEN}'."
        )

    def find_hub(self, name: str) -> EventHub:
        """The hub of this name; HubNotFound with the text of the service."""
        try:
            return self.namespace.hub(name)
        except HubNotFound as failure:
            raise HubNotFound(f"{not_found_text(self.resource(name))} ({failure})") from None

    def allows(self, path: str, claim: Claim | None) -> bool:
        # Only a grant of the path, or of one above it, can cover it: no need to try all of them.
        paths = ancestors(path_of(path).lower())
        grants = [self._grants[above] for above in paths if above in self._grants]
        return allows(grants, path, claim, self.namespace.clock.now())

    def check(self, path: str, claim: Claim) -> None:
        """AmqpError unless a token gives the claim on this path."""
        if not self.allows(path, claim):
            raise unauthorized(claim, self.resource(path))

    def resource(self, path: str) -> str:
        """The URL of a path, for error texts."""
        return f"sb://{self.authority}/{path}"

    def tracked(self, text: str, path: str = "") -> str:
        """An error text with a new tracking id, as the service sends it."""
        tracker = f"{self.authority}:{path}" if path else self.authority
        return tracked(text, new_id(), tracker, self.namespace.clock.now())

    @property
    def has_grants(self) -> bool:
        return bool(self._grants)

    def forget_expired(self, now: float) -> None:
        """Drop the grants that have expired, at a time in seconds since 1970."""
        expired = [path for path, grant in self._grants.items() if grant.expires_at <= now]
        for path in expired:
            del self._grants[path]

    def discard(self) -> None:
        """Drop all grants, after the end of the connection."""
        self._grants.clear()
        self._on_granted = do_nothing

    @property
    def next_expiry(self) -> float:
        """When the first token expires, in seconds since 1970."""
        return min((grant.expires_at for grant in self._grants.values()), default=inf)
