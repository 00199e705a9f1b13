"""Who may do what: tokens and keys in, grants out.

A client proves who it is in one of three ways: a shared access signature (SAS) or a JWT put on
$cbs, or a rule's name and key as SASL PLAIN. Each becomes a Grant: claims on a path, until a time.
A link or request is then allowed if some grant of its connection covers it. Keys are compared in
constant time, and appear in no repr and no error text.

    put-token -> verify_sas, issuer.verify_jwt -> Grant -> allows -> attach, or `required`
    sasl-init -> verify_plain -----------------^
                 ^^^^^^^^^^^^ this module                  ^^^^^^
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from urllib.parse import quote_plus, unquote, unquote_plus

from pumphouse.errors import AmqpError, AuthError
from pumphouse.hub.routing import hub_of, path_of


class Claim(StrEnum):
    """What a rule allows. Manage includes the other two."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_CLAIMS = frozenset(Claim)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A named key (or two, so that one can be replaced while the other is in use)."""

    name: str
    key: str = field(repr=False)
    claims: frozenset[Claim] = ALL_CLAIMS
    hub: str = ""  # "" is a rule of the namespace: good for every hub
    secondary_key: str = field(default="", repr=False)  # "" if the rule has one key only

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that open; an empty key never does."""
        return tuple(key for key in (self.key, self.secondary_key) if key)

    def governs(self, path: str) -> bool:
        """Whether this rule has a say about a path."""
        return not self.hub or hub_of(path) == self.hub.lower()


@dataclass(frozen=True, slots=True)
class Grant:
    """Claims on a path and all below it, until a time."""

    path: str  # lower-case, without slashes around it; "" is the whole namespace
    claims: frozenset[Claim]
    expires_at: float  # seconds since 1970

    def covers(self, path: str) -> bool:
        # "site" and "site/doors" may be two hubs, so being below is not enough.
        return _is_below(path, self.path) and (not self.path or hub_of(path) == hub_of(self.path))


def allows(grants: Iterable[Grant], path: str, claim: Claim | None, now: float) -> bool:
    """Whether one of the grants gives the claim on a path; None asks for any claim at all."""
    place = path_of(path).lower()
    return any(
        now < grant.expires_at and grant.covers(place) and (claim is None or claim in grant.claims)
        for grant in grants
    )


def required(claim: Claim, resource: str) -> AmqpError:
    """The refusal of a link for which no grant was put."""
    return AmqpError(
        "amqp:unauthorized-access",
        f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. "
        f"Resource: '{resource}'.",
    )


def verify_sas(token: str, audience: str, rules: Iterable[AccessRule], now: float) -> Grant:
    """The grant that a shared access signature gives for the audience it was put for."""
    fields = _sas_fields(token)
    # The audience is what the client asks for; the resource, what the token was signed for.
    resource, place = unquote_plus(fields["sr"]), resource_path(audience)
    named = _rules_named(fields["skn"], rules, resource_path(resource))
    rule = next((rule for rule in named if _is_signed_by(rule, fields)), None)
    if rule is None:
        raise AuthError(_invalid_signature(fields["skn"], resource, bool(named)))
    expires_at = int(fields["se"])
    check_expiry(expires_at, now)
    check_reach(resource_path(resource), place, rule.governs(place))
    return Grant(place, implied(rule.claims), expires_at)


def sign_sas(resource: str, rule: AccessRule, expires_at: int) -> str:
    """A token of a rule for a resource, as clients make them."""
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
    """The grant of a rule whose name and key came as SASL PLAIN. It never expires."""
    for rule in rules:
        if rule.name == user and is_one_of(password, rule.keys):
            return Grant(resource_path(rule.hub), implied(rule.claims), inf)
    raise AuthError(f"Unauthorized: no access rule {user!r:.80} with this key is known.")


def _sas_fields(token: str) -> dict[str, str]:
    kind, _, rest = token.strip().partition(" ")
    fields = dict(part.partition("=")[::2] for part in rest.split("&"))
    missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
    if kind.lower() != "sharedaccesssignature":
        raise malformed("it must begin with 'SharedAccessSignature '")
    if missing:
        raise malformed(f"it lacks {', '.join(missing)}")
    if not (fields["se"].isascii() and fields["se"].isdigit() and len(fields["se"]) <= 19):
        raise malformed("'se' must be the expiry in seconds since 1970")
    return fields


def _rules_named(skn: str, rules: Iterable[AccessRule], path: str) -> list[AccessRule]:
    # The Python SDK escapes the name twice, so both readings of it are tried.
    once = unquote_plus(skn)
    return [
        rule for rule in rules if rule.name in (once, unquote_plus(once)) and rule.governs(path)
    ]


def _is_signed_by(rule: AccessRule, fields: Mapping[str, str]) -> bool:
    # What is signed is the escaped resource. SDKs differ in what they escape and in the case of
    # the hex digits, so the text as it stands in the token counts; one that stands there plainly
    # was escaped for signing only.
    texts = {fields["sr"], quote_plus(unquote_plus(fields["sr"]))}
    # Not unquote_plus: a plus sign that nobody escaped is part of the base64 text.
    given = unquote(fields["sig"])
    good = [
        b64encode(hmac_sha256(key.encode(), f"{text}\n{fields['se']}")).decode()
        for key in rule.keys
        for text in texts
    ]
    return is_one_of(given, good)


def is_one_of(given: str, good: Iterable[str]) -> bool:
    """Compare with all of them, each in constant time, so that the time taken tells nothing."""
    return any([hmac.compare_digest(given.encode(), text.encode()) for text in good])


def _invalid_signature(skn: str, resource: str, known: bool) -> str:
    text = "InvalidSignature: The token has an invalid signature."
    name = unquote_plus(unquote_plus(skn))
    return text if known else f"{text} No access rule {name!r:.80} governs '{resource:.200}'."


def check_expiry(expires_at: float, now: float) -> None:
    """AuthError if a token's time is over."""
    if expires_at <= now:
        raise AuthError(
            f"ExpiredToken: The token is expired. Expiration time: '{_time(expires_at)}', "
            f"current time: '{_time(now)}'."
        )


def check_reach(resource: str, audience: str, governed: bool = True) -> None:
    """AuthError if what a token was made for does not include what it was put for."""
    if not governed or not _is_below(audience, resource):
        raise AuthError(
            f"InvalidAudience: The token is for '{resource:.200}' and does not reach "
            f"'{audience:.200}'."
        )


def resource_path(text: str) -> str:
    """The path of a resource or audience as grants write it: lower-case, no host, no slashes."""
    return unquote(path_of(text)).strip("/").lower()


def _is_below(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}/")


def implied(claims: Iterable[Claim]) -> frozenset[Claim]:
    """The claims with those that they include."""
    given = frozenset(claims)
    return ALL_CLAIMS if Claim.MANAGE in given else given


def hmac_sha256(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), hashlib.sha256)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def malformed(why: str) -> AuthError:
    """The refusal of a token that cannot be read; `why` never quotes the token."""
    return AuthError(f"MalformedToken: The token cannot be read: {why}.")
