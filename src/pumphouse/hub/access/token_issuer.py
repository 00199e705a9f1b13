"""JSON web tokens of a local issuer, to test role-based clients without Entra.

Azure's clients send an Entra token if they have no shared access key. A hub without the Internet
cannot get Entra's keys. So a test configures an issuer with a secret and mints tokens with it; the
hub accepts these and no others. HS256 only.

    TokenIssuer.mint -> client -> put-token -> verify_jwt -> Grant (see `auth`)
    ^^^^^^^^^^^^^^^^ this module               ^^^^^^^^^^
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pumphouse.errors import AuthError, OptionError
from pumphouse.hub.access.auth import (
    Claim,
    Grant,
    check_expiry,
    check_scope,
    hmac_sha256,
    malformed,
    matches_any,
    resource_path,
    with_implied,
)
from pumphouse.hub.limits.lengths import TOKEN_CHARS_MAX

EVENT_HUBS_AUDIENCE = "https://eventhubs.azure.net/"

# The names of Azure's roles. Tokens of Entra do not contain them; tokens of this issuer do.
ROLES = {
    Claim.SEND: "Azure Event Hubs Data Sender",
    Claim.LISTEN: "Azure Event Hubs Data Receiver",
    Claim.MANAGE: "Azure Event Hubs Data Owner",
}
_HEADER = {"alg": "HS256", "typ": "JWT"}


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Mints JWTs that a hub with the same secret accepts. Replaces Entra in tests."""

    secret: bytes = field(repr=False)
    issuer: str = "pumphouse-test"

    def __post_init__(self) -> None:
        if not self.secret:
            raise OptionError(
                "a token issuer needs a secret: with an empty one, anyone could mint tokens"
            )

    def mint(
        self,
        claims: Iterable[Claim],
        *,
        now: float,
        lifetime_s: float = 3600,
        audience: str = EVENT_HUBS_AUDIENCE,
        path: str = "",
    ) -> str:
        """A token with these claims on a path ("": every hub)."""
        body = {
            "iss": self.issuer,
            "aud": audience,
            "nbf": now,
            "exp": now + lifetime_s,
            "roles": sorted(ROLES[claim] for claim in claims),
            "path": path,
        }
        signed = f"{_encoded(_HEADER)}.{_encoded(body)}"
        return f"{signed}.{self.signature(signed)}"

    def signature(self, text: str) -> str:
        return urlsafe_b64encode(hmac_sha256(self.secret, text)).rstrip(b"=").decode()


def verify_jwt(token: str, audience: str, issuer: TokenIssuer | None, now: float) -> Grant:
    """The grant of a JWT of our own issuer that was put for an audience."""
    if issuer is None:
        raise AuthError(
            "Unauthorized: this hub cannot verify JWTs. Configure a local issuer "
            "(TokenIssuer), or connect with a shared access key."
        )
    body = _verified_body(token, issuer)
    if body.get("iss") != issuer.issuer or not _is_for_event_hubs(body.get("aud")):
        raise AuthError(
            f"InvalidAudience: The token must have issuer '{issuer.issuer}' and audience "
            f"'{EVENT_HUBS_AUDIENCE}', not {body.get('iss')!r:.80} and {body.get('aud')!r:.80}."
        )
    expires_at = _time_of(body, "exp")
    check_expiry(expires_at, now)
    if _time_of(body, "nbf") > now:
        raise AuthError(
            f"ImmatureToken: The token is not valid yet: 'nbf' is {body['nbf']}, the time is {now}."
        )
    path = resource_path(audience)
    check_scope(resource_path(str(body.get("path", ""))), path)
    return Grant(path, _claims_of(body.get("roles")), expires_at)


def _verified_body(token: str, issuer: TokenIssuer) -> dict[str, Any]:
    signed, _, signature = token.strip().rpartition(".")
    header, _, body = signed.partition(".")
    if len(token) > TOKEN_CHARS_MAX or not body or "." in body:
        raise malformed("a JWT has three parts, separated by dots")
    # Never verify with the algorithm that the token names: known attacks rely on that.
    if _decoded(header).get("alg") != "HS256":
        raise AuthError("InvalidSignature: The local issuer signs with HS256; this token does not.")
    if not matches_any(signature, [issuer.signature(signed)]):
        raise AuthError("InvalidSignature: The token has an invalid signature.")
    return _decoded(body)


def _is_for_event_hubs(audience: object) -> bool:
    expected = EVENT_HUBS_AUDIENCE.rstrip("/")
    return isinstance(audience, str) and audience.rstrip("/").lower() == expected


def _claims_of(roles: object) -> frozenset[Claim]:
    role_names = roles if isinstance(roles, list) else []
    claims = with_implied(claim for claim, role in ROLES.items() if role in role_names)
    if not claims:
        raise AuthError(f"Unauthorized: the token carries none of: {', '.join(ROLES.values())}.")
    return claims


def _time_of(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise malformed(f"'{name}' must be a time in seconds since 1970")
    return value


def _encoded(value: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _decoded(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise malformed("its parts must be JSON in base64") from None
    if not isinstance(value, dict):
        raise malformed("its parts must be JSON objects")
    return value
