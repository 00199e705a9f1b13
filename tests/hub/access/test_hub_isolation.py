"""A token or key for one hub gives no access to another, whatever the form of the path.

Hub names may have slashes, so `site` and `site/doors` can both be hubs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.connection import Login
from pumphouse.amqp.messages import Message
from pumphouse.amqp.sasl import PLAIN, plain_response
from pumphouse.client.sas import sign
from pumphouse.errors import AmqpError, AuthError, OptionError
from pumphouse.hub.access.auth import (
    ALL_CLAIMS,
    AccessRule,
    Claim,
    Grant,
    allows,
    verify_plain,
    verify_sas,
)
from pumphouse.hub.access.guard import JWT_TOKEN, SAS_TOKEN
from pumphouse.hub.access.token_issuer import TokenIssuer, verify_jwt
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import hub_of, parse_address
from tests.hub.listeners.http_client import HttpClient
from tests.hub.peer import Peer, Refused

NOW = 1_714_564_800.0
LATER = int(NOW) + 3600
KEY = "the key of the namespace"
ROOT = AccessRule("root", KEY)
ISSUER = TokenIssuer(b"secret")

# Every form of a path in a hub; {} is its name.
FORMS = [
    "{}",
    "{}/",
    "{}//",
    "/{}",
    "//{}",
    "{}/Partitions/0",
    "{}/PARTITIONS/0",
    "{}/ConsumerGroups/$Default",
    "{}/ConsumerGroups/$Default/Partitions/0",
    "{}/consumergroups/%24default/partitions/0/",
    "{}/Publishers/dev-7",
    "{}/$management",
]
# Spellings of `site/doors`, and of names that only begin with `site`.
OTHER_HUBS = [
    "site/doors",
    "SITE/Doors",
    "site%2Fdoors",
    "site%2fdoors",
    "%73ite/doors",
    "site/./doors",
    "site//doors",
    "site/%2E/doors",
    "site/doors/inner",
    "site-2",
    "site.doors",
    "sitedoors",
]


def sas_grant(resource: str, audience: str, rule: AccessRule = ROOT) -> Grant:
    token = sign(f"sb://h/{resource}", rule.name, rule.key, LATER)
    return verify_sas(token, f"sb://h/{audience}", [rule], NOW)


def jwt_grant(resource: str, audience: str) -> Grant:
    token = ISSUER.mint(ALL_CLAIMS, now=NOW, path=resource)
    return verify_jwt(token, f"sb://h/{audience}", ISSUER, NOW)


def hub_rule_grant(resource: str, audience: str) -> Grant:
    return sas_grant(resource, audience, AccessRule("manager", "its key", hub="Site"))


BY_TOKEN = pytest.mark.parametrize("grant_of", [sas_grant, jwt_grant, hub_rule_grant])
GrantOf = Callable[[str, str], Grant]

# -- the forms of a path --------------------------------------------------------------------------


@BY_TOKEN
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["site", "SITE", "%73ite"])
def test_a_token_for_a_hub_covers_every_form_of_its_paths(
    grant_of: GrantOf, form: str, name: str
) -> None:
    for resource in ("site", "Site/", "//site"):
        grant = grant_of(resource, form.format(name))
        assert hub_of(grant.path) == "site"
        assert allows([grant], grant.path, Claim.MANAGE, NOW)


@BY_TOKEN
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OTHER_HUBS)
def test_a_token_for_a_hub_is_refused_for_another(grant_of: GrantOf, form: str, name: str) -> None:
    with pytest.raises(AuthError, match="does not include"):
        grant_of("site", form.format(name))


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("site", "site/Partitions"),  # neither the hub nor a path in it
        ("site", "site/ConsumerGroups/g/ConsumerGroups/h"),
        ("site/Publishers/a", "site/Publishers/a/b"),
        ("site/Partitions/0", "site/Partitions/0/$management"),
        ("site/$management", "site/$management/doors"),
        ("site/ConsumerGroups/g", "site"),
        ("site/doors", "site"),
        ("site/doors", "site/Partitions/0"),
    ],
)
@pytest.mark.parametrize("grant_of", [sas_grant, jwt_grant])
def test_a_token_is_refused_for_a_path_that_is_in_no_hub_of_it(
    grant_of: GrantOf, resource: str, audience: str
) -> None:
    with pytest.raises(AuthError, match="does not include"):
        grant_of(resource, audience)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OTHER_HUBS)
def test_a_grant_of_a_hub_does_not_allow_paths_of_another(form: str, name: str) -> None:
    grant = Grant("site", ALL_CLAIMS, LATER)
    assert not allows([grant], form.format(name), None, NOW)


@pytest.mark.parametrize("name", ["site%2fdoors", "site%2Fdoors/Publishers/x"])
def test_a_path_is_unescaped_only_once(name: str) -> None:
    """`site%252Fdoors` is not another spelling of `site/doors`."""
    assert hub_of(name) == "site%2Fdoors".replace("%2F", name[4:7])
    grant = sas_grant("", name.replace("%", "%25"))
    assert not allows([grant], "site/doors", None, NOW)


def test_a_publisher_may_have_a_percent_sign_in_its_name() -> None:
    address = parse_address("site/Publishers/a%252Fb")
    assert address.publisher == "a%2Fb"
    assert allows([Grant("site", ALL_CLAIMS, LATER)], address.path, Claim.SEND, NOW)


# -- keys without a token (SASL PLAIN) ------------------------------------------------------------


@pytest.mark.parametrize("hub", ["/", "//", "sb://h", "sb://h/", " ", "site/", "site/Partitions/0"])
def test_a_rule_of_an_invalid_hub_is_refused(hub: str) -> None:
    rule = AccessRule("manager", "its key", hub=hub)
    with pytest.raises(OptionError, match="for a hub"):
        EmbeddedHub(rules=[rule])
    with pytest.raises(OptionError, match="for a hub"):
        EmbeddedHub().create_rule("manager", ALL_CLAIMS, hub=hub)


@pytest.mark.parametrize("hub", ["/", "sb://h/", " "])
def test_a_key_of_an_invalid_hub_is_not_a_key_of_the_namespace(hub: str) -> None:
    """A data directory of an earlier version may have such a rule."""
    grant = verify_plain("manager", "its key", [AccessRule("manager", "its key", hub=hub)])
    assert not allows([grant], "", Claim.MANAGE, NOW)
    assert not allows([grant], "site", Claim.SEND, NOW)


# -- any hubs, any paths --------------------------------------------------------------------------

NAMES = ["a", "B", "a/b", "a/B/0", "a.b", "a.b/a", "b/a", "0", "a/0", "partitions", "Publishers"]
SUFFIXES = [form.removeprefix("{}") for form in FORMS if form.startswith("{}")]
names, suffixes = st.sampled_from(NAMES), st.sampled_from(SUFFIXES)
pieces = st.sampled_from(
    [
        "a", "A", "B", "0", ".", "..", "/", "/", "//", "%2F", "%2f", "%252F", "%", "%61", "+", " ",
        "/Partitions/", "/ConsumerGroups/", "/Publishers/", "/$management", "$cbs", "$Default",
        "sb://h/", "?", "#", "\n", "\u212a", "\u017f", "Partition\u017f",
    ]
)  # fmt: skip
texts = st.lists(pieces, max_size=7).map("".join)
paths = st.builds(lambda *parts: "".join(parts), names, suffixes | texts, suffixes)


@given(names, paths, paths, texts)
def test_no_grant_of_one_hub_allows_anything_on_another(
    mine: str, resource: str, audience: str, text: str
) -> None:
    grants = [grant for make in GRANTS if (grant := make(mine, resource, audience)) is not None]
    others = [name for name in NAMES if name != mine]
    assert not allows(grants, "", None, NOW)
    for other in others:
        assert not allows(grants, f"{other}/$management", None, NOW)
        for path in (audience, text, f"{other}{text}", *(other + suffix for suffix in SUFFIXES)):
            assert hub_opened(grants, path) in ("", mine.lower())


def hub_opened(grants: list[Grant], text: str) -> str:
    """The hub of a link with this address, in lower case; "" if the link is refused."""
    with suppress(AmqpError):
        address = parse_address(text)
        return address.hub.lower() if allows(grants, address.path, None, NOW) else ""
    return ""


def of_namespace_rule(mine: str, resource: str, audience: str) -> Grant | None:
    """The holder of a token for `mine`, signed with a rule of the namespace, asks for anything."""
    with suppress(AuthError):
        return sas_grant(mine, audience)
    return None


def of_hub_rule(mine: str, resource: str, audience: str) -> Grant | None:
    """The holder of the key of a rule of `mine` signs for anything and asks for anything."""
    with suppress(AuthError):
        return sas_grant(resource, audience, AccessRule("manager", "its key", hub=mine))
    return None


def of_jwt(mine: str, resource: str, audience: str) -> Grant | None:
    with suppress(AuthError):
        return jwt_grant(mine, audience)
    return None


def of_key(mine: str, resource: str, audience: str) -> Grant:
    return verify_plain("manager", "its key", [AccessRule("manager", "its key", hub=mine)])


GRANTS = [of_namespace_rule, of_hub_rule, of_jwt, of_key]


@given(names, texts)
def test_the_path_of_a_link_is_in_the_hub_of_its_address(hub: str, rest: str) -> None:
    """So that the grant is checked for the hub that the link opens."""
    with suppress(AmqpError):
        address = parse_address(f"{hub}/{rest}")
        assert hub_of(address.path.lower()) == address.hub.lower()


# -- over AMQP ------------------------------------------------------------------------------------


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    hubs = {"site": 1, "site/doors": 1}
    async with EmbeddedHub(hubs, http_port=0, root_key=KEY, issuer=ISSUER) as hub:
        hub.create_rule("manager", [Claim.MANAGE], hub="site", key="its key")
        yield hub


@pytest.fixture
async def peer(hub: EmbeddedHub) -> AsyncIterator[Peer]:
    peer = await Peer.connect(hub, Login())
    yield peer
    await peer.drop()


def token_for(hub: EmbeddedHub, kind: str, resource: str) -> tuple[str, str]:
    """The type of a token, and the token."""
    if kind == "jwt":
        now = hub.namespace.clock.now()
        return JWT_TOKEN, ISSUER.mint(ALL_CLAIMS, now=now, path=resource)
    name, key = ("manager", "its key") if kind == "hub rule" else ("RootManageSharedAccessKey", KEY)
    return SAS_TOKEN, sign(f"sb://{hub.authority}/{resource}", name, key, 9_000_000_000)


async def put(peer: Peer, hub: EmbeddedHub, kind: str, resource: str, audience: str) -> int:
    token_type, token = token_for(hub, kind, resource)
    fields = {"operation": "put-token", "type": token_type, "name": f"sb://h/{audience}"}
    return status(await peer.request("$cbs", fields, value=token))


def status(reply: Message) -> int:
    return int(reply.application["status-code"])


async def refused(attach: Any) -> str:
    with pytest.raises(Refused) as refusal:
        await attach
    return refusal.value.error.condition


KINDS = pytest.mark.parametrize("kind", ["namespace rule", "hub rule", "jwt"])


@KINDS
async def test_a_token_for_one_hub_is_not_accepted_for_another(
    kind: str, hub: EmbeddedHub, peer: Peer
) -> None:
    assert await put(peer, hub, kind, "site", "site") == 202
    for form in FORMS:
        for name in ("site/doors", "SITE/DOORS", "site%2Fdoors", "site//doors", "site/./doors"):
            assert await put(peer, hub, kind, "site", form.format(name)) == 401
    await check_only_site(peer)


async def check_only_site(peer: Peer) -> None:
    """The connection can use every node of `site` and no node of `site/doors`."""
    for number, name in enumerate(["site", "site/doors", "site%2Fdoors", "Site/Doors"]):
        for path in (name, f"{name}/", f"{name}/Partitions/0", f"{name}/Publishers/x"):
            sender = peer.sender(path, f"out {number} {path}")
            if number == 0:
                await sender
            else:
                assert await refused(sender) == "amqp:unauthorized-access"
        receiver = peer.receiver(f"{name}/ConsumerGroups/$Default/Partitions/0", f"in {number}")
        if number == 0:
            await receiver
        else:
            assert await refused(receiver) == "amqp:unauthorized-access"
    await check_management(peer)


async def check_management(peer: Peer) -> None:
    read = {"operation": "READ", "type": "com.microsoft:eventhub"}
    for node in ("$management", "site/$management", "site/doors/$management"):
        assert status(await peer.request(node, {**read, "name": "site"})) == 200
        for name in ("site/doors", "Site/Doors", "site/doors/", "/site/doors", "sb://h/site/doors"):
            assert status(await peer.request(node, {**read, "name": name})) == 401
    for fields in (
        {"operation": "UPDATE", "partition_count": 2},
        {"operation": "CREATE", "type": "com.microsoft:consumergroup", "group": "g"},
        {"operation": "QUERY", "type": "com.microsoft:consumergroup"},
        {"operation": "DELETE"},
        {"operation": "QUERY"},
    ):
        assert (
            status(await peer.request("$management", {**read, "name": "site/doors", **fields}))
            == 401
        )


@KINDS
async def test_a_token_in_a_management_request_opens_only_its_own_hub(
    kind: str, hub: EmbeddedHub, peer: Peer
) -> None:
    _, token = token_for(hub, kind, "site")
    read = {"operation": "READ", "type": "com.microsoft:eventhub", "security_token": token}
    for name in ("site/doors", "site%2Fdoors", "SITE/doors/"):
        assert status(await peer.request("$management", {**read, "name": name})) == 401
    if kind != "jwt":  # clients send only shared access signatures here
        assert status(await peer.request("$management", {**read, "name": "site"})) == 200


async def test_the_key_of_one_hub_opens_only_that_hub(hub: EmbeddedHub) -> None:
    peer = await Peer.connect(hub, Login(PLAIN, plain_response("manager", "its key")))
    await check_only_site(peer)
    await peer.drop()


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["namespace rule", "hub rule"])
async def test_a_token_for_one_hub_changes_no_other_over_http(kind: str, hub: EmbeddedHub) -> None:
    _, token = token_for(hub, kind, "site")
    async with HttpClient(hub) as api:
        for name in (
            "site%2Fdoors",
            "Site%2FDoors",
            "site%252Fdoors",
            "%2Fsite%2Fdoors",
            "site%2F%2Fdoors",
            "sb:%2F%2Fh%2Fsite%2Fdoors",
            "site%2F.%2Fdoors",
        ):
            for method, target in (
                ("PUT", f"/hubs/{name}/groups/g"),
                ("DELETE", f"/hubs/{name}/groups/g"),
                ("PUT", f"/hubs/{name}"),
                ("DELETE", f"/hubs/{name}"),
            ):
                reply = await api.call(method, target, None, {"Authorization": token})
                assert reply.status == 401, target
        for target in ("/hubs/site/doors/groups/g", "/hubs//groups/g", "/hubs/site//groups/g"):
            reply = await api.call("PUT", target, None, {"Authorization": token})
            assert reply.status in (401, 404), target
        assert (await api.put("/hubs/site/groups/g", Authorization=token)).status == 201
        assert (await api.put("/hubs/SITE/groups/h/", Authorization=token)).status == 201
    assert hub.groups("site") == ["$Default", "g", "h"]
    assert hub.groups("site/doors") == ["$Default"]
    assert hub.hubs == {"site": 1, "site/doors": 1}


# -- what a refusal shows -------------------------------------------------------------------------


async def test_without_access_a_hub_that_exists_looks_like_one_that_does_not(
    hub: EmbeddedHub, peer: Peer
) -> None:
    assert await put(peer, hub, "hub rule", "site", "site") == 202
    for name in ("site/doors", "site/windows", "nowhere"):
        assert await refused(peer.sender(name, f"out {name}")) == "amqp:unauthorized-access"
        path = f"{name}/ConsumerGroups/$Default/Partitions/0"
        assert await refused(peer.receiver(path, f"in {name}")) == "amqp:unauthorized-access"
