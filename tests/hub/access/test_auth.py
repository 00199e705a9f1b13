"""Tokens of the official clients are accepted; others are refused, without showing a key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import urllib.parse
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.sas import sign
from pumphouse.errors import AuthError, TokenExpired
from pumphouse.hub.access.auth import (
    ALL_CLAIMS,
    AccessRule,
    Claim,
    Grant,
    allows,
    resource_path,
    unauthorized,
    verify_by_both_clocks,
    verify_plain,
    verify_sas,
)
from tests.growth import assert_linear

SEND, LISTEN, MANAGE = Claim.SEND, Claim.LISTEN, Claim.MANAGE
NOW = 1_714_564_800.0
LATER = int(NOW) + 3600
KEY, SECOND_KEY = "cHJpbWFyeSBrZXkgb2YgdGhlIHJvb3Q=", "c2Vjb25kIGtleSBvZiB0aGUgcm9vdA=="
ROOT = AccessRule("Root", KEY, frozenset({MANAGE}), secondary_key=SECOND_KEY)
SENDER = AccessRule("sender", "the key of eh1", frozenset({SEND}), hub="EH1")
RULES = [ROOT, SENDER]
EH1 = "sb://localhost:5672/eh1"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(AuthError) as refused:
        call()
    assert refused.value.status == 401
    return refused.value.description


def test_claims_are_spelled_as_in_the_portal() -> None:
    assert [str(claim) for claim in Claim] == ["Send", "Listen", "Manage"]


# --- shared access signatures -------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, SECOND_KEY])
def test_either_key_of_a_rule_is_valid(key: str) -> None:
    grant = verify_sas(sign(EH1, "Root", key, LATER), EH1, RULES, NOW)
    assert grant == Grant("eh1", ALL_CLAIMS, LATER)


def test_manage_includes_send_and_listen_and_send_includes_only_itself() -> None:
    assert verify_sas(sign(EH1, "Root", KEY, LATER), EH1, RULES, NOW).claims == ALL_CLAIMS
    assert verify_sas(sign(EH1, "sender", SENDER.key, LATER), EH1, RULES, NOW).claims == {SEND}


@given(
    st.text("abcÄж/$ +%&=!'()*~.-_", max_size=20).map("sb://h/{}".format),
    # A field of a token has at most 1,024 characters, and one of a name may take twelve of them.
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=80),
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.integers(1, 10**9),
)
def test_a_token_signed_by_our_client_is_accepted(
    resource: str, name: str, key: str, lifetime_s: int
) -> None:
    rules = [AccessRule(name, key)]
    token = sign(resource, name, key, int(NOW) + lifetime_s)
    assert verify_sas(token, resource, rules, NOW).expires_at == NOW + lifetime_s
    assert refusal(lambda: verify_sas(token, resource, [AccessRule(name, key + "x")], NOW))


@pytest.mark.parametrize(
    "resource", [EH1, f"{EH1}/ConsumerGroups/$Default", "sb://ns.servicebus.windows.net/a b+c"]
)
@pytest.mark.parametrize("name", ["Root", "my rule/7", "100%"])
def test_tokens_of_the_python_sdk_are_accepted(resource: str, name: str) -> None:
    # It escapes the rule's name twice, which only matters for names with special characters.
    sdk = pytest.importorskip("azure.eventhub._pyamqp.utils")
    token = sdk.generate_sas_token(resource, name, KEY, LATER)
    assert verify_sas(token, resource, [AccessRule(name, KEY)], NOW).expires_at == LATER


def test_the_credential_of_the_python_sdk_is_accepted() -> None:
    sdk = pytest.importorskip("azure.eventhub._client_base")
    made = sdk.EventHubSharedKeyCredential("Root", KEY).get_token(EH1)
    grant = verify_sas(made.token, EH1, RULES, now=made.expires_on - 10)
    assert grant == Grant("eh1", ALL_CLAIMS, made.expires_on)


def javascript(text: str) -> str:
    return urllib.parse.quote(text, safe="!'()*-._~")  # encodeURIComponent


def lower_hex(text: str) -> str:
    # .NET's HttpUtility.UrlEncode, and hand-made tokens: %2f where others write %2F.
    escaped = urllib.parse.quote_plus(text, safe="!()*-._")
    return "".join(part.lower() if i % 2 else part for i, part in _hex_pairs(escaped))


def _hex_pairs(text: str) -> list[tuple[int, str]]:
    first, *rest = text.split("%")
    pieces = [(0, first)]
    for piece in rest:
        pieces += [(1, f"%{piece[:2]}"), (2, piece[2:])]
    return pieces


@pytest.mark.parametrize("escape", [javascript, lower_hex, urllib.parse.quote_plus])
@pytest.mark.parametrize("resource", [EH1, "sb://h/it's (all) hers*!", "sb://h/дом"])
def test_the_resource_is_checked_in_the_form_it_was_signed(
    escape: Callable[[str], str], resource: str
) -> None:
    token = hand_made(escape(resource), signed=escape(resource))
    assert verify_sas(token, resource, RULES, NOW).claims == ALL_CLAIMS


def test_an_unescaped_resource_is_checked_in_its_escaped_form() -> None:
    assert verify_sas(hand_made(EH1, urllib.parse.quote_plus(EH1)), EH1, RULES, NOW).path == "eh1"


def test_a_token_recorded_from_the_javascript_client_is_accepted() -> None:
    # core-amqp 4.4.2: createSasTokenProvider({sharedAccessKeyName: "Root", sharedAccessKey: KEY})
    # .getToken("sb://localhost:5672/eh1/it's (all) hers"), with Date.now() stopped at NOW.
    assert verify_sas(JAVASCRIPT_TOKEN, f"{EH1}/it's (all) hers", RULES, NOW).expires_at == LATER


def hand_made(sr: str, signed: str, se: str = str(LATER)) -> str:
    digest = hmac.new(KEY.encode(), f"{signed}\n{se}".encode(), hashlib.sha256).digest()
    # The order of the fields is free, and the signature need not be escaped.
    return f"SharedAccessSignature skn=Root&se={se}&sig={base64.b64encode(digest).decode()}&sr={sr}"


JAVASCRIPT_TOKEN = (
    "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%3A5672%2Feh1%2Fit's%20(all)%20hers"
    "&sig=X5DRbpJK4HJCdXS4XoMlPv%2FRfjJLCu4hUR6rH%2FoHBas%3D&se=1714568400&skn=Root"
)


@pytest.mark.parametrize(
    ("resource", "audience", "path"),
    [
        ("sb://h/", "sb://h/eh1", "eh1"),
        ("sb://h", "sb://h/eh1/ConsumerGroups/$Default", "eh1/consumergroups/$default"),
        ("sb://h/eh1", "sb://h/eh1", "eh1"),
        ("sb://h/EH1/", "amqps://other:5671/eh1/", "eh1"),
        ("https://h/eh1", "sb://h/eh1/Partitions/3", "eh1/partitions/3"),
        ("http://h/eh1/publishers/dev-7", "sb://h/eh1/Publishers/dev-7", "eh1/publishers/dev-7"),
    ],
)
def test_a_token_covers_paths_below_its_resource(resource: str, audience: str, path: str) -> None:
    assert verify_sas(sign(resource, "Root", KEY, LATER), audience, RULES, NOW).path == path


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("sb://h/eh1", "sb://h/eh2"),
        ("sb://h/eh1", "sb://h/eh10"),
        ("sb://h/eh1", "sb://h/"),
        ("sb://h/eh1/publishers/dev-7", "sb://h/eh1"),
    ],
)
def test_a_token_does_not_cover_other_paths(resource: str, audience: str) -> None:
    token = sign(resource, "Root", KEY, LATER)
    assert "does not include" in refusal(lambda: verify_sas(token, audience, RULES, NOW))


@pytest.mark.parametrize("path", ["eh1", "eh1/publishers/dev-7", "eh1/consumergroups/g"])
def test_a_rule_of_a_hub_applies_to_that_hub(path: str) -> None:
    token = sign(f"sb://h/{path}", "sender", SENDER.key, LATER)
    assert verify_sas(token, f"sb://h/{path}", RULES, NOW).path == path


@pytest.mark.parametrize("path", ["", "eh2", "eh10", "eh1/sub-hub"])
def test_a_rule_of_a_hub_does_not_apply_to_other_hubs(path: str) -> None:
    token = sign(f"sb://h/{path}", "sender", SENDER.key, LATER)
    text = refusal(lambda: verify_sas(token, f"sb://h/{path}", RULES, NOW))
    assert "No access rule 'sender' applies to" in text


def test_a_rule_of_a_hub_does_not_apply_to_a_hub_below_its_name() -> None:
    token = sign("sb://h/eh1", "sender", SENDER.key, LATER)
    text = refusal(lambda: verify_sas(token, "sb://h/eh1/sub-hub", RULES, NOW))
    assert text == "InvalidAudience: The token is for 'eh1' and does not include 'eh1/sub-hub'."


def test_rules_with_the_same_name_are_distinguished_by_their_keys() -> None:
    rules = [AccessRule("app", "a", frozenset({LISTEN})), AccessRule("app", "b", hub="eh1")]
    assert verify_sas(sign(EH1, "app", "a", LATER), EH1, rules, NOW).claims == {LISTEN}
    assert verify_sas(sign(EH1, "app", "b", LATER), EH1, rules, NOW).claims == ALL_CLAIMS


def test_a_wrong_key_is_an_invalid_signature() -> None:
    text = refusal(lambda: verify_sas(sign(EH1, "Root", "wrong", LATER), EH1, RULES, NOW))
    assert text == "InvalidSignature: The token has an invalid signature."


def test_an_unknown_rule_is_named() -> None:
    text = refusal(lambda: verify_sas(sign(EH1, "Boss", KEY, LATER), EH1, RULES, NOW))
    assert text == (
        "InvalidSignature: The token has an invalid signature. "
        f"No access rule 'Boss' applies to '{EH1}'."
    )


def test_an_empty_key_is_never_valid() -> None:
    rules = [AccessRule("Root", "")]
    assert refusal(lambda: verify_sas(sign(EH1, "Root", "", LATER), EH1, rules, NOW))
    assert refusal(lambda: verify_plain("Root", "", rules))


@pytest.mark.parametrize(("expiry", "valid"), [(1, True), (0, False), (-3600, False)])
def test_a_token_is_valid_until_its_expiry(expiry: int, valid: bool) -> None:
    token = sign(EH1, "Root", KEY, int(NOW) + expiry)
    if valid:
        assert verify_sas(token, EH1, RULES, NOW).expires_at == NOW + expiry
    else:
        assert refusal(lambda: verify_sas(token, EH1, RULES, NOW))


def test_an_expired_token_is_refused_with_the_text_of_the_service() -> None:
    token = sign(EH1, "Root", KEY, int(NOW) - 3600)
    assert refusal(lambda: verify_sas(token, EH1, RULES, NOW)) == (
        "ExpiredToken: The token is expired. Expiration time: '2024-05-01 11:00:00Z', "
        "current time: '2024-05-01 12:00:00Z'."
    )


def test_a_changed_expiry_is_an_invalid_signature() -> None:
    token = sign(EH1, "Root", KEY, int(NOW) - 1).replace(f"se={int(NOW) - 1}", f"se={LATER}")
    assert refusal(lambda: verify_sas(token, EH1, RULES, NOW)).startswith("InvalidSignature")


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "must begin with 'SharedAccessSignature '"),
        ("Bearer sr=a&sig=b&se=1&skn=c", "must begin with 'SharedAccessSignature '"),
        ("SharedAccessSignature", "lacks sr, sig, se, skn"),
        ("SharedAccessSignature sr=a&se=1", "lacks sig, skn"),
        ("SharedAccessSignature sr=&sig=b&se=1&skn=c", "lacks sr"),
        ("SharedAccessSignature sr=a&sig=b&se=soon&skn=c", "'se' must be the expiry"),
        ("SharedAccessSignature sr=a&sig=b&se=\u0661&skn=c", "'se' must be the expiry"),
        (f"SharedAccessSignature sr=a&sig=b&se={'9' * 1000}&skn=c", "'se' must be the expiry"),
    ],
)
def test_a_malformed_token_is_refused_with_the_reason(token: str, problem: str) -> None:
    text = refusal(lambda: verify_sas(token, EH1, RULES, NOW))
    assert text.startswith("MalformedToken: ")
    assert problem in text


@given(st.text(st.characters(codec="utf-8")), st.booleans())
def test_any_text_is_refused_as_a_token(text: str, prefixed: bool) -> None:
    token = f"SharedAccessSignature sr={text}&sig={text}&se=1&skn=Root" if prefixed else text
    assert refusal(lambda: verify_sas(token, EH1, RULES, NOW))


# --- grants --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("granted", "path", "allowed"),
    [
        ("", "eh1", True),
        ("", "site/doors/Partitions/1", True),
        ("eh1", "eh1", True),
        ("eh1", "EH1/ConsumerGroups/$Default/Partitions/0", True),
        ("eh1", "sb://localhost:5672/eh1/Partitions/0", True),
        ("eh1", "eh1/$management", True),
        ("eh1/$management", "eh1/$management", True),
        ("eh1/$management", "eh1", False),
        ("eh1/consumergroups/$default", "eh1/ConsumerGroups/$Default/Partitions/0", True),
        ("eh1/consumergroups/$default", "eh1/ConsumerGroups/other/Partitions/0", False),
        ("eh1", "eh10", False),
        ("eh1", "", False),
        ("site", "site/doors", False),  # two hubs
        ("site/doors", "site/doors/Publishers/x", True),
    ],
)
def test_a_grant_covers_its_path_and_below(granted: str, path: str, allowed: bool) -> None:
    grant = Grant(granted, frozenset({SEND}), LATER)
    assert allows([grant], path, SEND, NOW) is allowed
    assert allows([grant], path, None, NOW) is allowed
    assert not allows([grant], path, LISTEN, NOW)


def test_grants_add_up_and_expire() -> None:
    grants = [Grant("eh1", frozenset({SEND}), NOW + 1), Grant("eh1", frozenset({LISTEN}), LATER)]
    assert allows(grants, "eh1", SEND, NOW)
    assert allows(grants, "eh1", LISTEN, NOW)
    assert not allows(grants, "eh1", SEND, NOW + 1)
    assert allows(grants, "eh1", LISTEN, NOW + 1)
    assert not allows([], "eh1", None, NOW)


def test_a_missing_claim_is_reported_with_the_text_of_the_service() -> None:
    error = unauthorized(LISTEN, "sb://localhost/eh1/consumergroups/$default/partitions/3")
    assert error.condition == "amqp:unauthorized-access"
    assert error.description == (
        "Unauthorized access. 'Listen' claim(s) are required to perform this operation. "
        "Resource: 'sb://localhost/eh1/consumergroups/$default/partitions/3'."
    )


# --- SASL PLAIN ----------------------------------------------------------------------------------


def test_a_rules_name_and_key_give_the_claims_of_the_rule() -> None:
    assert verify_plain("Root", KEY, RULES) == Grant("", ALL_CLAIMS, math.inf)
    assert verify_plain("Root", SECOND_KEY, RULES) == Grant("", ALL_CLAIMS, math.inf)
    assert verify_plain("sender", SENDER.key, RULES) == Grant("eh1", frozenset({SEND}), math.inf)


@pytest.mark.parametrize(
    ("user", "password"), [("Root", "x"), ("unknown", KEY), ("", ""), ("ж", "ж")]
)
def test_an_unknown_name_or_key_is_refused(user: str, password: str) -> None:
    assert repr(user) in refusal(lambda: verify_plain(user, password, RULES))


# --- secrets -------------------------------------------------------------------------------------


def test_no_repr_shows_a_secret() -> None:
    shown = f"{RULES!r} {RULES} {ROOT}"
    assert "AccessRule(name='Root'" in shown
    for secret in (KEY, SECOND_KEY, SENDER.key):
        assert secret not in shown


def test_no_error_text_contains_a_key_or_a_signature() -> None:
    expired, foreign = (sign(EH1, "Root", k, int(NOW) - 1) for k in (KEY, "a foreign key"))
    texts = [
        refusal(lambda: verify_sas(expired, EH1, RULES, NOW)),
        refusal(lambda: verify_sas(foreign, EH1, RULES, NOW)),
        refusal(lambda: verify_sas(foreign.replace("&se", "&es"), EH1, RULES, NOW)),
        refusal(lambda: verify_sas(sign(EH1, "Boss", KEY, LATER), EH1, RULES, NOW)),
        refusal(lambda: verify_sas(sign(EH1, "Root", KEY, LATER), "sb://h/eh2", RULES, NOW)),
        refusal(lambda: verify_plain("Root", "a foreign key", RULES)),
    ]
    signatures = [expired.split("sig=")[1][:20], foreign.split("sig=")[1][:20]]
    for secret in (KEY, SECOND_KEY, SENDER.key, "a foreign key", *signatures):
        assert not [text for text in texts if secret in text]


# -- a clock that a test has moved ahead ----------------------------------------------------------


def test_a_token_of_a_client_behind_the_hubs_clock_lasts_from_now() -> None:
    ahead = LATER + 86_400.0
    verify = partial(verify_sas, sign(EH1, "Root", KEY, LATER), EH1, RULES)
    assert verify_by_both_clocks(verify, ahead, NOW).expires_at == ahead + LATER - NOW
    assert verify_by_both_clocks(verify, NOW, NOW).expires_at == LATER
    for client_now in (ahead, LATER):
        with pytest.raises(TokenExpired):
            verify_by_both_clocks(verify, ahead, client_now)
    with pytest.raises(AuthError, match="invalid signature"):
        verify_by_both_clocks(
            partial(verify_sas, sign(EH1, "Root", "x", LATER), EH1, RULES), ahead, NOW
        )


# --- long text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("SharedAccessSignature " + "sr=a&" * 20_000, "at most 4096 are allowed"),
        ("SharedAccessSignature " + "x" * 100_000, "at most 4096 are allowed"),
        (
            f"SharedAccessSignature sr={'a' * 1025}&sig=s&se=1&skn=Root",
            "its fields have at most 1024 characters",
        ),
        (
            f"SharedAccessSignature sr=a&sig=s&se=1&skn=Root&more={'a' * 1025}",
            "its fields have at most 1024 characters",
        ),
    ],
)
def test_a_long_token_is_refused_and_not_quoted(token: str, why: str) -> None:
    text = refusal(lambda: verify_sas(token, EH1, RULES, NOW))
    assert text.startswith("MalformedToken: ")
    assert why in text
    assert len(text) < 200


def test_a_token_for_the_longest_resource_is_accepted() -> None:
    resource = f"sb://{'n' * 250}:5671/{'h' * 256}/ConsumerGroups/{'g' * 50}/Partitions/0"
    grant = verify_sas(sign(resource, "Root", KEY, LATER), resource, RULES, NOW)
    assert grant.expires_at == LATER


@pytest.mark.parametrize("unit", ["a", "a:", "://", "/consumergroups/", "%", "%2F", "/"])
def test_the_path_of_a_resource_is_found_in_linear_time(unit: str) -> None:
    assert_linear(resource_path, lambda count: unit * count, 5000)
