"""Access to the HTTP API: keys for changes, and no access for pages of other origins."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pumphouse.hub.access.auth import ALL_CLAIMS, AccessRule, Claim, sign_sas
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners.listeners import loopback
from tests.hub.listeners.http_client import HttpClient


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, http_port=0) as hub:
        yield hub


@pytest.fixture
async def api(hub: EmbeddedHub) -> AsyncIterator[HttpClient]:
    async with HttpClient(hub) as caller:
        yield caller


# -- changes --------------------------------------------------------------------------------------


async def test_without_a_key_nothing_is_changed(hub: EmbeddedHub, api: HttpClient) -> None:
    for method, target in (
        ("PUT", "/hubs/x"),
        ("DELETE", "/hubs/eh"),
        ("PUT", "/hubs/eh/groups/x"),
        ("DELETE", "/hubs/eh/groups/x"),
    ):
        reply = await api.call(method, target)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "sharedaccesssignature"
        assert "Authorization: SharedAccessSignature" in reply.error
    assert hub.hubs == {"eh": 2}


async def test_an_invalid_token_changes_nothing(hub: EmbeddedHub, api: HttpClient) -> None:
    hub.create_rule("sender", [Claim.SEND])
    root = hub.find_rule("RootManageSharedAccessKey", None)
    forged = AccessRule(root.name, "guessed", ALL_CLAIMS)
    for token, status, error in (
        (hub.sas_token(rule="sender"), 403, "lacks the claim Manage"),
        (hub.sas_token(lasts_s=-1), 401, "ExpiredToken"),
        (sign_sas("sb://x/", forged, 2_000_000_000), 401, "InvalidSignature"),
        (sign_sas("sb://x/other", root, 2_000_000_000), 401, "InvalidAudience"),
        ("Basic cm9vdDpyb290", 401, "MalformedToken"),
        ("Bearer x", 401, "MalformedToken"),
    ):
        reply = await api.put("/hubs/x", Authorization=token)
        assert reply.status == status
        assert error in reply.error
        assert root.key not in reply.error
    assert hub.hubs == {"eh": 2}


async def test_the_manager_of_a_hub_manages_its_groups_only(
    hub: EmbeddedHub, api: HttpClient
) -> None:
    hub.create_rule("manager", [Claim.MANAGE], hub="eh")
    key = api.key("manager", "eh")
    assert (await api.put("/hubs/eh/groups/x", **key)).status == 201
    assert (await api.put("/hubs/other", **key)).status == 401
    assert (await api.delete("/hubs/eh", **key)).status == 401
    assert hub.hubs == {"eh": 2}


# -- pages in a browser ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.test"},  # a name that resolves to loopback
        {"Host": "evil.test:{port}"},
        {"Host": "localhost"},
        {"Host": "localhost:1"},
        {"Host": "localhost:{port}.evil.test"},
        {"Origin": "https://evil.test"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://localhost:{port}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_is_refused(
    method: str, headers: dict[str, str], api: HttpClient
) -> None:
    formatted = {name: value.format(port=api.hub.http_port) for name, value in headers.items()}
    reply = await api.call(method, "/hubs/eh", None, {**api.key(), **formatted})
    assert reply.status == 403
    assert reply.error
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:{port}"},
        {"Host": "[::1]:{port}"},
        {"Host": "LOCALHOST:{port}"},
        {"Origin": "http://localhost:{port}"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_requests_from_this_machine_are_accepted(
    headers: dict[str, str], api: HttpClient
) -> None:
    formatted = {name: value.format(port=api.hub.http_port) for name, value in headers.items()}
    reply = await api.call("GET", "/hubs/eh", None, formatted)
    assert reply.status == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_the_api_listens_on_loopback_only() -> None:
    hosts = (
        "127.0.0.1",
        "127.0.0.2",
        "::1",
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "localhost",
        "",
        "a.test",
    )
    assert [loopback(host) for host in hosts] == ["127.0.0.1", "127.0.0.2", "::1"] + 6 * [
        "127.0.0.1"
    ]


async def test_an_address_and_a_configured_name_are_names_of_the_api() -> None:
    async with (
        EmbeddedHub(host="127.0.0.2", http_port=0, host_names=["hub.example"]) as hub,
        HttpClient(hub) as api,
    ):
        for name in ("127.0.0.2", "hub.example", "localhost"):
            reply = await api.call("GET", "/health", headers={"Host": f"{name}:{hub.http_port}"})
            assert reply.status == 200, name
        reply = await api.call("GET", "/health", headers={"Host": f"evil.example:{hub.http_port}"})
        assert reply.status == 403
