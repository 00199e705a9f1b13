"""Tokens of the local issuer are accepted; all others are refused."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import AuthError, OptionError
from pumphouse.hub.access.auth import Claim, Grant
from pumphouse.hub.access.token_issuer import ROLES, TokenIssuer, verify_jwt

SEND, LISTEN, MANAGE = Claim.SEND, Claim.LISTEN, Claim.MANAGE
NOW = 1_714_564_800.0
LATER = int(NOW) + 3600
EH1 = "sb://localhost:5672/eh1"
ISSUER = TokenIssuer(b"a secret of the tests, 32 bytes.")


def refusal(
    token: str, audience: str, issuer: TokenIssuer | None = ISSUER, now: float = NOW
) -> str:
    with pytest.raises(AuthError) as refused:
        verify_jwt(token, audience, issuer, now)
    assert refused.value.status == 401
    return refused.value.description


@pytest.mark.parametrize(
    ("claims", "held"),
    [
        ([SEND], {SEND}),
        ([LISTEN], {LISTEN}),
        ([SEND, LISTEN], {SEND, LISTEN}),
        ([MANAGE], {SEND, LISTEN, MANAGE}),
    ],
)
def test_roles_become_claims(claims: list[Claim], held: set[Claim]) -> None:
    grant = verify_jwt(ISSUER.mint(claims, now=NOW), EH1, ISSUER, NOW)
    assert grant == Grant("eh1", frozenset(held), LATER)


def test_a_minted_token_is_a_standard_jwt() -> None:
    header, body, signature = ISSUER.mint([MANAGE], now=NOW, path="eh1").split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "HS256", "typ": "JWT"}
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert claims["aud"] == "https://eventhubs.azure.net/"
    assert claims["roles"] == ["Azure Event Hubs Data Owner"]
    assert "=" not in header + body + signature


def test_without_an_issuer_every_jwt_is_refused_with_advice() -> None:
    text = refusal(ISSUER.mint([SEND], now=NOW), EH1, None, NOW)
    assert "Configure a local issuer" in text


def forged(header: object, body: object, issuer: TokenIssuer = ISSUER) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode() for p in (header, body)]
    signed = ".".join(part.rstrip("=") for part in parts)
    return f"{signed}.{issuer.signature(signed)}"


HS256 = {"alg": "HS256", "typ": "JWT"}
BODY: dict[str, Any] = {
    "iss": "pumphouse-test", "aud": "https://eventhubs.azure.net", "nbf": NOW, "exp": LATER,
    "roles": [ROLES[SEND]],
}  # fmt: skip


def test_a_token_made_by_another_program_with_the_secret_is_accepted() -> None:
    assert verify_jwt(forged(HS256, BODY), EH1, ISSUER, NOW).claims == {SEND}


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (forged({"alg": "none"}, BODY), "signs with HS256"),
        (forged({"alg": "RS256"}, BODY), "signs with HS256"),
        (forged({}, BODY), "signs with HS256"),
        (forged({"alg": "none"}, BODY).rpartition(".")[0] + ".", "signs with HS256"),
        (forged(HS256, BODY).rpartition(".")[0] + ".", "invalid signature"),
        (forged(HS256, BODY, TokenIssuer(b"another secret")), "invalid signature"),
        (forged(HS256, BODY) + "A", "invalid signature"),
        (forged(HS256, {**BODY, "iss": "https://sts.example/x"}), "not 'https://sts.example/x'"),
        (forged(HS256, {**BODY, "aud": "https://storage.azure.com/"}), "and 'https://storage"),
        (forged(HS256, {**BODY, "aud": None}), "and None"),
        (forged(HS256, {**BODY, "exp": NOW}), "ExpiredToken: The token is expired."),
        (forged(HS256, {**BODY, "nbf": NOW + 1}), "not valid yet"),
        (forged(HS256, {**BODY, "exp": None}), "MalformedToken"),
        (forged(HS256, {**BODY, "exp": True}), "MalformedToken"),
        (forged(HS256, {**BODY, "exp": -1e30}), "MalformedToken"),
        (forged(HS256, {**BODY, "exp": math.inf}), "MalformedToken"),
        (forged(HS256, {**BODY, "exp": math.nan}), "MalformedToken"),
        (forged(HS256, {**BODY, "roles": []}), "carries none of: Azure Event Hubs Data Sender"),
        (forged(HS256, {**BODY, "roles": ["Owner"]}), "carries none of"),
        (forged(HS256, {**BODY, "roles": ROLES[SEND]}), "carries none of"),
        (forged(HS256, {**BODY, "path": "eh2"}), "does not include 'eh1'"),
        (forged(HS256, ["a list"]), "MalformedToken"),
        ("", "MalformedToken"),
        ("a.b", "MalformedToken"),
        ("a.b.c", "MalformedToken"),
        ("a.b.c.d", "a JWT has three parts"),
        ("ж.ж.ж", "MalformedToken"),
        ("A" * 70000 + ".b.c", "MalformedToken"),
        (base64.urlsafe_b64encode(b"[" * 40000).decode().rstrip("=") + ".b.c", "MalformedToken"),
    ],
    ids=range(29),
)  # fmt: skip
def test_invalid_jwts_are_refused(token: str, text: str) -> None:
    assert text in refusal(token, EH1)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_refused_as_a_token(text: str) -> None:
    assert refusal(text, EH1)


def test_a_minted_token_is_limited_to_its_path_and_time() -> None:
    token = ISSUER.mint([LISTEN], now=NOW, lifetime_s=60, path="eh1")
    grant = verify_jwt(token, f"{EH1}/ConsumerGroups/g", ISSUER, NOW + 59)
    assert grant == Grant("eh1/consumergroups/g", frozenset({LISTEN}), NOW + 60)
    assert "include" in refusal(token, "sb://h/eh2")
    assert "Expired" in refusal(token, EH1, ISSUER, NOW + 60)


def test_an_issuer_without_secret_is_refused() -> None:
    with pytest.raises(OptionError, match="needs a secret"):
        TokenIssuer(b"")


def test_secrets_are_not_shown() -> None:
    assert "a secret of the tests" not in f"{ISSUER!r} {ISSUER}"
    token = ISSUER.mint([SEND], now=NOW, lifetime_s=-1)
    for bad in (token, token[:-1] + "~"):
        text = refusal(bad, EH1)
        assert not [part for part in token.split(".") if part[:20] in text]
