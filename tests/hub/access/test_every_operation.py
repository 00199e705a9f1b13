"""Every operation of $management and every route of the HTTP API is refused without its claim.

The operations come from the code. One that is added needs a line here, with the claim that it
needs; without a line these tests fail.
"""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.messages import Message
from pumphouse.hub.access.auth import AccessRule, Claim, sign_sas, verify_plain
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.links import management
from pumphouse.hub.links.management import FAULT, GROUP, HUB, OPERATIONS, PARTITION
from pumphouse.hub.listeners.admin_api import READ_METHODS, ROUTES, AdminApi, Request
from pumphouse.hub.namespace import Namespace

LATER = 4_000_000_000
ANY_OF_HUB, MANAGE_OF_HUB, MANAGE_OF_NAMESPACE = "any of hub", "Manage of hub", "Manage of all"
RULES = {
    "root": AccessRule("root", "k"),
    "sender": AccessRule("sender", "k", frozenset({Claim.SEND})),
    "listener": AccessRule("listener", "k", frozenset({Claim.LISTEN})),
    "manager": AccessRule("manager", "k", hub="eh"),
    "sender of the hub": AccessRule("sender of the hub", "k", frozenset({Claim.SEND}), hub="eh"),
    "manager of another": AccessRule("manager of another", "k", hub="other"),
}
CALLERS = [None, *RULES]
# The rules that fulfil a need; all other rules, and no rule, do not.
FULFIL = {
    ANY_OF_HUB: {"root", "sender", "listener", "manager", "sender of the hub"},
    MANAGE_OF_HUB: {"root", "manager"},
    MANAGE_OF_NAMESPACE: {"root"},
}
NEEDS = {
    ("READ", HUB): ANY_OF_HUB,
    ("READ", PARTITION): ANY_OF_HUB,
    ("CREATE", HUB): MANAGE_OF_NAMESPACE,
    ("UPDATE", HUB): MANAGE_OF_HUB,
    ("DELETE", HUB): MANAGE_OF_NAMESPACE,
    ("QUERY", HUB): MANAGE_OF_NAMESPACE,
    ("CREATE", GROUP): MANAGE_OF_HUB,
    ("DELETE", GROUP): MANAGE_OF_HUB,
    ("QUERY", GROUP): MANAGE_OF_HUB,
    ("CREATE", FAULT): MANAGE_OF_NAMESPACE,
    ("DELETE", FAULT): MANAGE_OF_NAMESPACE,
    ("QUERY", FAULT): MANAGE_OF_NAMESPACE,
}
FIELDS = {"name": "eh", "partition": "0", "partition_count": 3, "group": "g", "kind": "delay"}
HTTP_NEEDS = {
    ("hubs/*", "PUT"): MANAGE_OF_NAMESPACE,
    ("hubs/*", "DELETE"): MANAGE_OF_NAMESPACE,
    ("hubs/*/groups/*", "PUT"): MANAGE_OF_HUB,
    ("hubs/*/groups/*", "DELETE"): MANAGE_OF_HUB,
}


def make_namespace() -> Namespace:
    namespace = Namespace(list(RULES.values()))
    for name in ("eh", "other"):
        namespace.create_hub(name, 2, ["g"] if name == "other" else [])
    return namespace


def state_of(namespace: Namespace) -> list[Any]:
    hubs = [(hub.name, len(hub.partitions), sorted(hub.groups)) for hub in namespace.hubs]
    return [hubs, len(namespace.faults.planned)]


# -- $management ----------------------------------------------------------------------------------


def test_the_claim_of_every_management_operation_is_stated() -> None:
    assert NEEDS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize(("verb", "kind"), OPERATIONS)
@pytest.mark.parametrize("rule", CALLERS)
@pytest.mark.parametrize("in_address", [True, False])
def test_a_management_operation_needs_its_claim(
    verb: str, kind: str, rule: str | None, in_address: bool
) -> None:
    """The name of the hub is in the request, or in the address of the link."""
    namespace = make_namespace()
    guard = Guard(namespace, "localhost")
    if rule is not None:
        guard.add(verify_plain(rule, "k", namespace.rules))
    before = state_of(namespace)
    fields = {name: value for name, value in FIELDS.items() if not in_address or name != "name"}
    request = Message(application={"operation": verb, "type": kind, **fields})
    reply = management.handle(request, namespace, guard, "eh" if in_address else "")
    refused = reply.application["status-code"] == 401
    assert refused == (rule not in FULFIL[NEEDS[verb, kind]])
    if refused:
        assert reply.value is None
        assert state_of(namespace) == before


# -- the HTTP API ---------------------------------------------------------------------------------


def changes() -> list[tuple[str, str]]:
    """The pattern and method of every route that is not only for reading."""
    return [
        (pattern, method)
        for pattern, methods in ROUTES.items()
        for method in methods
        if method not in READ_METHODS
    ]


def test_the_claim_of_every_change_over_http_is_stated() -> None:
    assert HTTP_NEEDS.keys() == set(changes())


@pytest.mark.parametrize(("pattern", "method"), changes())
@pytest.mark.parametrize("rule", CALLERS)
def test_a_change_over_http_needs_its_claim(pattern: str, method: str, rule: str | None) -> None:
    namespace = make_namespace()
    before = state_of(namespace)
    target = "/" + pattern.replace("*", "eh", 1).replace("*", "g")
    response = call(namespace, method, target, rule)
    allowed = rule in FULFIL[HTTP_NEEDS[pattern, method]]
    assert (response not in (401, 403)) == allowed
    if not allowed:
        assert state_of(namespace) == before


@pytest.mark.parametrize("pattern", ROUTES)
def test_reading_over_http_changes_nothing(pattern: str) -> None:
    namespace = make_namespace()
    before = state_of(namespace)
    target = "/" + pattern.replace("*", "eh", 1).replace("*", "g")
    assert call(namespace, "GET", target, None) in (200, 405)
    assert state_of(namespace) == before


def call(namespace: Namespace, method: str, target: str, rule: str | None) -> int:
    """The status of a request with a token of a rule for what the rule covers."""
    api = AdminApi(namespace)
    api.port = 80
    headers = {"host": "localhost"}
    if rule is not None:
        resource = f"sb://localhost/{RULES[rule].hub}"
        headers["authorization"] = sign_sas(resource, RULES[rule], LATER)
    return api.handle(Request(method, target, headers, b"{}")).status
