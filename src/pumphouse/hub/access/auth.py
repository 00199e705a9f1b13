"""Authorisation: verifies tokens and keys, and returns grants.

A client authenticates in one of three ways: a shared access signature (SAS) or a JWT put on $cbs,
or a rule's name and key as SASL PLAIN. Each becomes a Grant: claims on a path, until a time. A link
or request is allowed if a grant of its connection covers it. Keys are compared in constant time,
and are in no repr and no error text.

    put-token -> verify_sas, token_issuer.verify_jwt -> Grant -> allows -> attach or `unauthorized`
    sasl-init -> verify_plain -----------------------^
                 ^^^^^^^^^^^^ this module                        ^^^^^^
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from urllib.parse import quote_plus, unquote, unquote_plus

from pumphouse.errors import AmqpError, AuthError, TokenExpired
from pumphouse.hub.limits.lengths import TEXT_CHARS_MAX
from pumphouse.hub.routing import hub_of, path_of


class Claim(StrEnum):
    """A permission. Manage includes the other two."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_CLAIMS = frozenset(Claim)
SAS_CHARS_MAX = 4096  # of a shared access signature; it has four fields of up to TEXT_CHARS_MAX


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A named key with claims. A second key lets one be replaced while the other is in use."""

    name: str
    key: str = field(repr=False)
    claims: frozenset[Claim] = ALL_CLAIMS
    hub: str = ""  # "": a rule of the namespace, valid for every hub
    secondary_key: str = field(default="", repr=False)  # "": no second key

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys without empty ones, which are never valid."""
        return tuple(key for key in (self.key, self.secondary_key) if key)

    def applies_to(self, path: str) -> bool:
        """Whether this rule is valid for a path."""
        return not self.hub or hub_of(path) == self.hub.lower()


@dataclass(frozen=True, slots=True)
class Grant:
    """Claims on a path and all below it, until a time."""

    path: str  # in lower case, without outer slashes; "": the whole namespace
    claims: frozenset[Claim]
    expires_at: float  # seconds since 1970

    def covers(self, path: str) -> bool:
        return includes(self.path, path)


def allows(grants: Iterable[Grant], path: str, claim: Claim | None, now: float) -> bool:
    """Whether a grant gives the claim on a path; None stands for any claim."""
    lower_path = path_of(path).lower()
    return any(
        now < grant.expires_at
        and grant.covers(lower_path)
        and (claim is None or claim in grant.claims)
        for grant in grants
    )


def unauthorized(claim: Claim, resource: str) -> AmqpError:
    """The error for a link without a grant."""
    return AmqpError(
        "amqp:unauthorized-access",
        f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. "
        f"Resource: '{resource}'.",
    )


def verify_sas(token: str, audience: str, rules: Iterable[AccessRule], now: float) -> Grant:
    """The grant of a shared access signature that was put for an audience."""
    fields = _sas_fields(token)
    # The client asks for the audience; the token was signed for the resource.
    resource, path = unquote_plus(fields["sr"]), resource_path(audience)
    named_rules = _rules_named(fields["skn"], rules, resource_path(resource))
    rule = next((rule for rule in named_rules if _is_signed_by(rule, fields)), None)
    if rule is None:
        raise AuthError(_invalid_signature(fields["skn"], resource, bool(named_rules)))
    expires_at = int(fields["se"])
    check_expiry(expires_at, now)
    check_scope(resource_path(resource), path, rule.applies_to(path))
    return Grant(path, with_implied(rule.claims), expires_at)


def sign_sas(resource: str, rule: AccessRule, expires_at: int) -> str:
    """A shared access signature for a resource, as clients make them."""
    text = quote_plus(resource)
    signature = b64encode(hmac_sha256(rule.key.encode(), f"{text}\n{expires_at}")).decode()
    fields = {
        "sr": text,
        "sig": quote_plus(signature),
        "se": expires_at,
        "skn": quote_plus(rule.name),
    }
    return "SharedAccessSignature " + "&".join(f"{key}={value}" for key, value in fields.items())


def verify_plain(user: str, password: str, rules: Iterable[AccessRule]) -> Grant:
    """The grant for a rule's name and key from SASL PLAIN. It never expires."""
    for rule in rules:
        if rule.name == user and matches_any(password, rule.keys):
            # `resource_path` could turn an invalid name into "", which is the whole namespace.
            return Grant(rule.hub.lower(), with_implied(rule.claims), inf)
    raise AuthError(f"Unauthorized: there is no access rule {user!r:.80} with this key.")


def _sas_fields(token: str) -> dict[str, str]:
    if len(token) > SAS_CHARS_MAX:
        raise malformed(f"it has {len(token)} characters, at most {SAS_CHARS_MAX} are allowed")
    kind, _, rest = token.strip().partition(" ")
    fields = dict(part.partition("=")[::2] for part in rest.split("&"))
    missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
    if kind.lower() != "sharedaccesssignature":
        raise malformed("it must begin with 'SharedAccessSignature '")
    if missing:
        raise malformed(f"it lacks {', '.join(missing)}")
    if any(len(value) > TEXT_CHARS_MAX for value in fields.values()):
        raise malformed(f"its fields have at most {TEXT_CHARS_MAX} characters")
    if not (fields["se"].isascii() and fields["se"].isdigit() and len(fields["se"]) <= 19):
        raise malformed("'se' must be the expiry in seconds since 1970")
    return fields


def _rules_named(skn: str, rules: Iterable[AccessRule], path: str) -> list[AccessRule]:
    # The Python SDK escapes the name twice, so it is compared after one unescape and two.
    unescaped = unquote_plus(skn)
    return [
        rule
        for rule in rules
        if rule.name in (unescaped, unquote_plus(unescaped)) and rule.applies_to(path)
    ]


def _is_signed_by(rule: AccessRule, fields: Mapping[str, str]) -> bool:
    # Clients sign the escaped resource. SDKs differ in what they escape and in the case of the hex
    # digits, so `sr` is used as the token has it. A client may also send `sr` unescaped and sign
    # its escaped form, so both are tried.
    texts = {fields["sr"], quote_plus(unquote_plus(fields["sr"]))}
    # Not unquote_plus: an unescaped plus sign is part of the base64 text.
    signature = unquote(fields["sig"])
    valid_signatures = [
        b64encode(hmac_sha256(key.encode(), f"{text}\n{fields['se']}")).decode()
        for key in rule.keys
        for text in texts
    ]
    return matches_any(signature, valid_signatures)


def matches_any(given: str, valid: Iterable[str]) -> bool:
    """Compare with all valid texts, each in constant time, against timing attacks."""
    return any([hmac.compare_digest(given.encode(), text.encode()) for text in valid])


def _invalid_signature(skn: str, resource: str, rule_exists: bool) -> str:
    text = "InvalidSignature: The token has an invalid signature."
    name = unquote_plus(unquote_plus(skn))
    return (
        text if rule_exists else f"{text} No access rule {name!r:.80} applies to '{resource:.200}'."
    )


def check_expiry(expires_at: float, now: float) -> None:
    """AuthError if a token has expired."""
    if expires_at <= now:
        raise TokenExpired(
            f"ExpiredToken: The token is expired. Expiration time: '{_time(expires_at)}', "
            f"current time: '{_time(now)}'."
        )


def verify_by_both_clocks(verify: Callable[[float], Grant], now: float, client_now: float) -> Grant:
    """The grant of a token that is valid by the hub's clock or by the client's.

    A test may move the hub's clock ahead of the client's. A token that only the client's clock
    accepts gives a grant that lasts for the time the token still has by the client's clock.
    """
    try:
        return verify(now)
    except TokenExpired:
        if client_now >= now:
            raise
    grant = verify(client_now)
    return replace(grant, expires_at=now + grant.expires_at - client_now)


def check_scope(resource: str, audience: str, rule_applies: bool = True) -> None:
    """AuthError if the resource of a token, or its rule, does not include the audience."""
    if not rule_applies or not includes(resource, audience):
        raise AuthError(
            f"InvalidAudience: The token is for '{resource:.200}' and does not include "
            f"'{audience:.200}'."
        )


def resource_path(text: str) -> str:
    """The path of a resource or audience, in lower case, without host and outer slashes."""
    return unquote(path_of(text)).strip("/").lower()


def includes(top: str, path: str) -> bool:
    """Whether `path` is `top`, or below it in the same hub. Both are in lower case.

    "site" and "site/doors" may be two hubs, so a common beginning is not enough.
    """
    if not top or path == top:
        return True
    return path.startswith(f"{top}/") and hub_of(path) == hub_of(top)


def with_implied(claims: Iterable[Claim]) -> frozenset[Claim]:
    """The claims, and those that they include."""
    given = frozenset(claims)
    return ALL_CLAIMS if Claim.MANAGE in given else given


def hmac_sha256(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), hashlib.sha256)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def malformed(why: str) -> AuthError:
    """The error for a token that cannot be parsed; `why` never quotes the token."""
    return AuthError(f"MalformedToken: The token cannot be parsed: {why}.")
