"""The grants of one connection: what its tokens allow."""

from __future__ import annotations

from math import inf

from pumphouse.amqp.performatives import SaslInit
from pumphouse.amqp.sasl import PLAIN, parse_plain
from pumphouse.errors import AuthError
from pumphouse.hub.access.auth import Claim, Grant, allows, unauthorized, verify_plain, verify_sas
from pumphouse.hub.access.token_issuer import verify_jwt
from pumphouse.hub.namespace import Namespace

SAS_TOKEN, JWT_TOKEN = "servicebus.windows.net:sastoken", "jwt"
GRANTS_MAX = 1000  # tokens of one connection


class Guard:
    """The grants of one connection."""

    def __init__(self, namespace: Namespace, authority: str) -> None:
        self.namespace = namespace
        self.authority = authority  # host and port, for error texts
        self._grants: dict[str, Grant] = {}

    def authenticate(self, init: SaslInit) -> None:
        """Handle the SASL login. PLAIN gives a grant; the others need a token on $cbs."""
        if init.mechanism == PLAIN:
            user, password = parse_plain(init.initial_response)
            grant = verify_plain(user, password, self.namespace.rules)
            self._grants[grant.path] = grant

    def put_token(self, audience: str, kind: str, token: str) -> None:
        """Add the grant of a token for an audience; AuthError if the token is not valid."""
        now = self.namespace.clock.now()
        if kind == SAS_TOKEN:
            grant = verify_sas(token, audience, self.namespace.rules, now)
        elif kind == JWT_TOKEN:
            grant = verify_jwt(token, audience, self.namespace.issuer, now)
        else:
            raise AuthError(f"Unauthorized: tokens of type '{kind[:80]}' are not supported.")
        if len(self._grants) >= GRANTS_MAX and grant.path not in self._grants:
            raise AuthError(f"QuotaExceeded: more than {GRANTS_MAX} tokens on one connection.", 403)
        self._grants[grant.path] = grant

    def allows(self, path: str, claim: Claim | None) -> bool:
        return allows(self._grants.values(), path, claim, self.namespace.clock.now())

    def check(self, path: str, claim: Claim) -> None:
        """AmqpError unless a token gives the claim on this path."""
        if not self.allows(path, claim):
            raise unauthorized(claim, self.resource(path))

    def resource(self, path: str) -> str:
        """The URL of a path, for error texts."""
        return f"sb://{self.authority}/{path}"

    @property
    def next_expiry(self) -> float:
        """When the first token expires, in seconds since 1970."""
        return min((grant.expires_at for grant in self._grants.values()), default=inf)
