"""Permanent failures are raised with their own error: unknown names and refused credentials."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.sas import sign
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubNotFound,
    HubUntrusted,
    OptionError,
)
from pumphouse.events import Event
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.client.contract.support import DRIVERS, HASTY, DriverTarget, read, running

ROOT = "RootManageSharedAccessKey"


async def test_an_unknown_hub_is_not_found(target: DriverTarget) -> None:
    async with target.client(name="nowhere") as client:
        for call in (
            client.sender(),
            client.sender("0"),
            client.reader(ReaderOptions("0")),
            client.properties(),
            client.partition_properties("0"),
        ):
            with pytest.raises(HubNotFound, match="nowhere"):
                await call


async def test_an_unknown_group_is_refused(client: HubClient) -> None:
    with pytest.raises(HubNotFound, match="ConsumerGroups/nobody"):
        await client.reader(ReaderOptions("0", group="nobody"))


async def test_an_unknown_partition_is_refused(client: HubClient) -> None:
    for call in (client.sender("9"), client.reader(ReaderOptions("9"))):
        with pytest.raises(AmqpError, match="between 0 and 3") as refused:
            await call
        assert refused.value.condition == "com.microsoft:argument-out-of-range"


async def test_a_missing_hub_name_is_refused(target: DriverTarget) -> None:
    async with target.client(name="") as client:
        for call in (client.sender(), client.reader(ReaderOptions("0")), client.properties()):
            with pytest.raises(OptionError, match="no hub is named"):
                await call


async def test_a_wrong_key_is_refused_and_not_shown(target: DriverTarget) -> None:
    right = target.hub.connection_string(target.name)
    wrong = right.replace("SharedAccessKey=", "SharedAccessKey=hush")
    async with target.client_with(wrong, target.name) as client:
        for call in (client.sender(), client.reader(ReaderOptions("0")), client.properties()):
            with pytest.raises(AuthError, match="does not accept the key") as refused:
                await call
            assert "hush" not in f"{refused.value!r} {client!r}"


async def test_a_listen_key_cannot_send(target: DriverTarget) -> None:
    target.hub.create_rule(f"ear-{target.name}", [Claim.LISTEN])
    async with target.client(rule=f"ear-{target.name}") as client:
        await client.reader(ReaderOptions("0"))
        with pytest.raises(AuthError, match=r"'Send' claim\(s\) are required"):
            await client.sender()


async def test_a_send_key_cannot_read(target: DriverTarget) -> None:
    target.hub.create_rule(f"mouth-{target.name}", [Claim.SEND])
    async with target.client(rule=f"mouth-{target.name}") as client:
        assert await (await client.sender("0")).send([Event(b"x")]) == 1
        with pytest.raises(AuthError, match=r"'Listen' claim\(s\) are required"):
            await client.reader(ReaderOptions("0"))


# -- credentials ----------------------------------------------------------------------------------


def signature(hub: EmbeddedHub, name: str, lasts_s: float = 3600.0) -> str:
    key = hub.find_rule(ROOT_RULE, None).key
    target = f"sb://127.0.0.1:{hub.port}/{name}"
    return sign(target, ROOT_RULE, key, int(time.time() + lasts_s))


async def test_a_given_signature_is_accepted(target: DriverTarget) -> None:
    token = signature(target.hub, target.name)
    text = (
        f"Endpoint=sb://127.0.0.1:{target.hub.port};SharedAccessSignature={token};"
        "UseDevelopmentEmulator=true"
    )
    async with target.client_with(text, target.name) as client:
        assert await (await client.sender("0")).send([Event(b"x")]) == 1
        assert len(await read(client, "0", 1)) == 1


async def test_an_expired_signature_is_refused(target: DriverTarget) -> None:
    token = signature(target.hub, target.name, lasts_s=-60.0)
    text = f"Endpoint=sb://127.0.0.1:{target.hub.port};UseDevelopmentEmulator=true"
    async with target.client_with(text, target.name, credential=token) as client:
        with pytest.raises(AuthError):
            await client.sender()


class Minted:
    """A token of azure-identity."""

    def __init__(self, token: str, expires_on: int) -> None:
        self.token, self.expires_on = token, expires_on


class Blocking:
    """A blocking credential like those of azure-identity."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self.issuer = issuer
        self.scopes: set[str] = set()

    def get_token(self, *scopes: str, **_: Any) -> Minted:
        self.scopes |= set(scopes)
        now = time.time()
        return Minted(self.issuer.mint([Claim.MANAGE], now=now), int(now) + 3600)


class Awaited(Blocking):
    """An asyncio credential like those of azure-identity."""

    async def get_token(self, *scopes: str, **_: Any) -> Minted:  # type: ignore[override]
        return super().get_token(*scopes)


async def test_all_kinds_of_credentials_are_accepted(driver: str) -> None:
    issuer = TokenIssuer(b"a secret of the issuer")
    async with running(EmbeddedHub({"eh": 1}, issuer=issuer)) as hub:
        text = f"Endpoint=sb://127.0.0.1:{hub.port};UseDevelopmentEmulator=true"
        given = [Blocking(issuer), Awaited(issuer), signature(hub, "eh")]
        for number, credential in enumerate(given):
            async with DRIVERS[driver](text, "eh", credential=credential) as client:
                assert await (await client.sender("0")).send([Event(b"x")]) == 1
                assert len(await read(client, "0", number + 1)) == number + 1
                assert (await client.properties()).name == "eh"
    for credential in given[:2]:
        assert isinstance(credential, Blocking)
        [scope] = credential.scopes
        assert scope.startswith("https://eventhubs.azure.net/")


async def test_a_credential_without_rights_is_refused(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1}, issuer=TokenIssuer(b"ours"))) as hub:
        text = f"Endpoint=sb://127.0.0.1:{hub.port};UseDevelopmentEmulator=true"
        credential = Awaited(TokenIssuer(b"theirs"))
        async with DRIVERS[driver](text, "eh", credential=credential) as client:
            with pytest.raises(AuthError):
                await client.properties()


def test_an_invalid_credential_is_refused(driver: str) -> None:
    with pytest.raises(OptionError, match="is not a credential"):
        DRIVERS[driver]("ns.servicebus.windows.net", "eh", credential=object())
    with pytest.raises(OptionError, match="neither SharedAccessKey nor"):
        DRIVERS[driver]("Endpoint=sb://ns.servicebus.windows.net", "eh")


def test_a_host_with_a_credential_suffices(driver: str) -> None:
    client = DRIVERS[driver](
        "ns.servicebus.windows.net", "eh", credential=Awaited(TokenIssuer(b"x"))
    )
    assert (client.namespace, client.hub) == ("ns.servicebus.windows.net", "eh")


# -- transports -----------------------------------------------------------------------------------


def test_an_unknown_transport_is_refused(driver: str) -> None:
    with pytest.raises(OptionError, match="transport must be one of tcp, websocket"):
        DRIVERS[driver]("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=b", transport="udp")


@pytest.mark.parametrize("listener", ["tls", "wss"])
async def test_an_untrusted_certificate_raises_hub_untrusted(target: DriverTarget) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(HubUntrusted):
            async with target.client(ca_file=None) as client:
                await client.properties()


@pytest.mark.parametrize("listener", ["tls"])
async def test_a_plain_client_of_a_tls_listener_fails(target: DriverTarget) -> None:
    text = target.hub.connection_string(target.name).replace(
        f":{target.hub.port};", f":{target.hub.tls_port};"
    )
    with pytest.raises(ConnectionFailed):
        async with target.client_with(text, target.name, retry=HASTY) as client:
            await client.properties()


async def test_a_missing_ca_file_is_refused(driver: str) -> None:
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(OptionError, match="nowhere"):
        async with DRIVERS[driver](text, "eh", ca_file="/nowhere/ca.pem", retry=HASTY) as client:
            await client.properties()
