"""Keys, tokens and claims: which clients are accepted, and the errors of those that are not."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.eventhub import EventData, EventHubSharedKeyCredential
from azure.eventhub._pyamqp import cbs as azure_cbs
from azure.eventhub._pyamqp.aio import _cbs_async as azure_aio_cbs
from azure.eventhub._pyamqp.utils import generate_sas_token
from azure.eventhub.aio import EventHubSharedKeyCredential as AioSharedKeyCredential
from azure.eventhub.exceptions import AuthenticationError, ConnectionLostError, EventHubError

from pumphouse.hub.access.auth import AccessRule, Claim
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.conformance.entity import Entity, MovableClock, Refusals, eventually, running
from tests.conformance.readers import bodies, condition, numbered, refused, sequences
from tests.conformance.sdks import NEVER_S, NO_RETRY, Sdk, both_sdks
from tests.conformance.variants import HubVariant

pytestmark = pytest.mark.asyncio(loop_scope="session")

ISSUER = TokenIssuer(b"a secret of the tests")
RULES = [
    AccessRule("Sender", "send key", frozenset({Claim.SEND})),
    AccessRule("Listener", "listen key", frozenset({Claim.LISTEN})),
    AccessRule("Manager", "manage key", frozenset({Claim.MANAGE})),
    AccessRule("Of one", "key/of+one=", hub="one"),
    AccessRule("Two keys", "first key", secondary_key="second key"),
]


@pytest.fixture(scope="module")
def guarded(variant: HubVariant) -> Iterator[EmbeddedHub]:
    """Two hubs behind several rules."""
    with variant.hub({"one": 1, "two": 1}, steady=True, rules=RULES, issuer=ISSUER) as hub:
        yield hub


def connection_with(hub: EmbeddedHub, entity: str, secret: str) -> str:
    """The hub's own connection string, with another secret."""
    parts = hub.connection_string(entity).split(";")
    return ";".join([*(part for part in parts if not part.startswith("SharedAccess")), secret])


def with_key(hub: EmbeddedHub, entity: str, name: str, key: str) -> str:
    return connection_with(hub, entity, f"SharedAccessKeyName={name};SharedAccessKey={key}")


def signature(
    hub: EmbeddedHub, path: str, name: str = ROOT_RULE, *, expires_at: float | None = None
) -> str:
    """A shared access signature, made by the SDK's own function."""
    key = next(rule.key for rule in hub.namespace.rules if rule.name == name)
    expiry = int(time.time() + 3600 if expires_at is None else expires_at)
    token = generate_sas_token(f"sb://{hub.host}:{hub.port}/{path}", name, key, expiry)  # type: ignore[no-untyped-call]
    return str(token)


async def can_send(sdk: Sdk, connection: str) -> None:
    async with sdk.producer(connection, **NO_RETRY) as producer:
        await producer.send_event(EventData(b"in"))


async def can_read(sdk: Sdk, hub: EmbeddedHub, connection: str) -> None:
    """Read one event, which must exist or arrive soon."""
    client = sdk.make_consumer(
        connection,
        Entity(hub, "one").new_group(),
        load_balancing_interval=NEVER_S,
        **NO_RETRY,
    )
    async with sdk.read_with(client) as reader:
        await reader.take(1)


def error_lines(error: BaseException) -> list[str]:
    """The first lines of an error without tracking ids and times, which differ."""
    text = re.sub(r"\d\d:\d\d:\d\dZ|TrackingId:.*", "…", str(error))
    return text.splitlines()[:3]


async def refused_by_cbs(sdk: Sdk, connection: str) -> str:
    """The error of a producer and a consumer whose token is invalid."""
    client = sdk.make_consumer(connection, "$Default", **NO_RETRY)
    async with sdk.producer(connection, **NO_RETRY) as producer, sdk.read_with(client) as reader:
        with pytest.raises(AuthenticationError, match="Status code: 401") as refused:
            await producer.create_batch()
        # The reader asked for the partition ids and got the same error.
        error = await reader.error()
        assert isinstance(error, AuthenticationError)
        assert error_lines(error) == error_lines(refused.value)
        await reader.close()
    return str(refused.value)


# -- keys -----------------------------------------------------------------------------------------


@both_sdks
async def test_a_wrong_key(sdk: Sdk, guarded: EmbeddedHub) -> None:
    text = await refused_by_cbs(sdk, with_key(guarded, "one", ROOT_RULE, "wrong"))
    assert "InvalidSignature: The token has an invalid signature." in text


@both_sdks
async def test_an_unknown_rule(sdk: Sdk, guarded: EmbeddedHub) -> None:
    text = await refused_by_cbs(sdk, with_key(guarded, "one", "Nobody", "key"))
    assert "InvalidSignature: The token has an invalid signature." in text
    assert "No access rule 'Nobody' applies to" in text


@both_sdks
async def test_the_key_is_in_no_text(sdk: Sdk, guarded: EmbeddedHub) -> None:
    text = await refused_by_cbs(sdk, with_key(guarded, "one", "Sender", "not the send key"))
    assert "send key" not in text


@both_sdks
async def test_both_keys_of_a_rule(sdk: Sdk, guarded: EmbeddedHub) -> None:
    """Its name has a space, which the SDK escapes twice."""
    await asyncio.gather(
        can_send(sdk, with_key(guarded, "one", "Two keys", "first key")),
        can_send(sdk, with_key(guarded, "one", "Two keys", "second key")),
    )


@both_sdks
async def test_a_rule_of_one_hub(sdk: Sdk, guarded: EmbeddedHub) -> None:
    connection = guarded.connection_string("one", rule="Of one")
    await asyncio.gather(can_send(sdk, connection), can_read(sdk, guarded, connection))
    text = await refused_by_cbs(sdk, with_key(guarded, "two", "Of one", "key/of+one="))
    assert "No access rule 'Of one' applies to" in text


# -- claims ---------------------------------------------------------------------------------------


@both_sdks
async def test_a_sender_cannot_read(sdk: Sdk, guarded: EmbeddedHub, refusals: Refusals) -> None:
    connection = guarded.connection_string("one", rule="Sender")
    group = Entity(guarded, "one").new_group()
    client = sdk.make_consumer(connection, group, **NO_RETRY)
    async with sdk.read_with(client) as reader:
        await can_send(sdk, connection)
        text = (
            "Unauthorized access. 'Listen' claim(s) are required to perform this operation. "
            f"Resource: '{Entity(guarded, 'one').resource}/ConsumerGroups/{group}/Partitions/0'."
        )
        await refused(reader, refusals, "amqp:unauthorized-access", text)
        await reader.close()


@both_sdks
async def test_a_listener_cannot_send(sdk: Sdk, guarded: EmbeddedHub) -> None:
    connection = guarded.connection_string("two", rule="Listener")
    async with sdk.producer(connection, **NO_RETRY) as producer:
        with pytest.raises(ConnectionLostError) as refused:
            await producer.create_batch()
    assert condition(refused.value) == "unauthorized-access"
    assert (
        "Unauthorized access. 'Send' claim(s) are required to perform this operation. "
        f"Resource: '{Entity(guarded, 'two').resource}'."
    ) in str(refused.value)
    assert guarded.namespace.hub("two").partitions[0].log.empty


@both_sdks
async def test_a_listener_can_read(sdk: Sdk, guarded: EmbeddedHub) -> None:
    await asyncio.gather(
        can_send(sdk, guarded.connection_string("one")),
        can_read(sdk, guarded, guarded.connection_string("one", rule="Listener")),
    )


@both_sdks
async def test_manage_includes_the_other_two(sdk: Sdk, guarded: EmbeddedHub) -> None:
    connection = guarded.connection_string("one", rule="Manager")
    await asyncio.gather(can_send(sdk, connection), can_read(sdk, guarded, connection))


@both_sdks
async def test_any_claim_allows_reading_properties(sdk: Sdk, guarded: EmbeddedHub) -> None:
    async def ask(rule: str) -> Any:
        connection = guarded.connection_string("one", rule=rule)
        async with sdk.consumer(connection, **NO_RETRY) as consumer:
            return await consumer.get_partition_ids()

    for ids in await asyncio.gather(ask("Sender"), ask("Listener"), ask("Manager")):
        assert ids == ["0"]


# -- signatures -----------------------------------------------------------------------------------


@both_sdks
async def test_a_signature_in_the_connection_string(sdk: Sdk, guarded: EmbeddedHub) -> None:
    """For the hub, or for the whole namespace."""
    for_hub, for_all = (
        connection_with(guarded, "one", f"SharedAccessSignature={signature(guarded, path)}")
        for path in ("one", "")
    )
    await asyncio.gather(
        can_send(sdk, for_hub),
        can_read(sdk, guarded, for_hub),
        can_send(sdk, for_all),
        can_read(sdk, guarded, for_all),
    )


@both_sdks
async def test_a_signature_for_another_hub(sdk: Sdk, guarded: EmbeddedHub) -> None:
    secret = f"SharedAccessSignature={signature(guarded, 'two')}"
    text = await refused_by_cbs(sdk, connection_with(guarded, "one", secret))
    assert "InvalidAudience: The token is for 'two' and does not include 'one'." in text


@both_sdks
async def test_an_expired_signature(sdk: Sdk, guarded: EmbeddedHub) -> None:
    """The SDK checks its own clock first and does not connect."""
    secret = f"SharedAccessSignature={signature(guarded, 'one', expires_at=time.time() - 10)}"
    connection = connection_with(guarded, "one", secret)
    async with sdk.producer(connection, **NO_RETRY) as producer:
        with pytest.raises(EventHubError):
            await producer.create_batch()


@both_sdks
async def test_a_signature_expired_by_the_clock_of_the_hub(sdk: Sdk, variant: HubVariant) -> None:
    clock = MovableClock(7200)
    async with running(variant.hub({"one": 1}, clock=clock)) as hub:
        text = await refused_by_cbs(sdk, hub.connection_string("one"))
    assert "ExpiredToken: The token is expired. Expiration time:" in text


# -- credentials, without a connection string -----------------------------------------------------


def credentials(sdk: Sdk, hub: EmbeddedHub) -> dict[str, Any]:
    key = next(rule.key for rule in hub.namespace.rules if rule.name == ROOT_RULE)
    shared = {"sync": EventHubSharedKeyCredential, "aio": AioSharedKeyCredential}[sdk.name]
    return {
        "shared key": shared(ROOT_RULE, key),
        "named key": AzureNamedKeyCredential(ROOT_RULE, key),
        "signature": AzureSasCredential(signature(hub, "one")),
        "jwt": Jwt(sdk, {Claim.MANAGE}).credential,
    }


@both_sdks
async def test_credentials(sdk: Sdk, guarded: EmbeddedHub) -> None:
    one = Entity(guarded, "one")

    async def use(kind: str, credential: Any) -> None:
        client = sdk.make_consumer_with(one, credential, one.new_group(), **NO_RETRY)
        async with (
            sdk.read_with(client, batch=True) as reader,
            sdk.producer_with(one, credential, **NO_RETRY) as sender,
        ):
            await sender.send_event(EventData(f"{sdk.name} {kind}"))
            sent = f"{sdk.name} {kind}".encode()
            await reader.until(lambda: sent in bodies(reader.events) or reader.errors)
            assert reader.errors == []

    await asyncio.gather(*(use(*pair) for pair in credentials(sdk, guarded).items()))


class Jwt:
    """A credential that issues tokens, in place of one of azure-identity."""

    def __init__(self, sdk: Sdk, claims: Iterable[Claim], issuer: TokenIssuer = ISSUER) -> None:
        self.claims = frozenset(claims)
        self.issuer = issuer
        self.scopes: list[str] = []
        self.credential = self if sdk.name == "sync" else AioJwt(self)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.scopes += scopes
        now = time.time()
        return AccessToken(self.issuer.mint(self.claims, now=now), int(now) + 3600)


class AioJwt:
    def __init__(self, jwt: Jwt) -> None:
        self.jwt = jwt

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self.jwt.get_token(*scopes, **options)


async def refused_jwt(sdk: Sdk, hub: EmbeddedHub, jwt: Jwt) -> EventHubError:
    async with sdk.producer_with(Entity(hub, "one"), jwt.credential, **NO_RETRY) as producer:
        with pytest.raises(EventHubError) as refused:
            await producer.create_batch()
    return refused.value


@both_sdks
async def test_a_role_that_does_not_include_sending(sdk: Sdk, guarded: EmbeddedHub) -> None:
    jwt = Jwt(sdk, {Claim.LISTEN})
    refused = await refused_jwt(sdk, guarded, jwt)
    assert condition(refused) == "unauthorized-access"
    assert "'Send' claim(s) are required" in str(refused)
    assert set(jwt.scopes) == {"https://eventhubs.azure.net//.default"}


@both_sdks
async def test_a_jwt_of_another_issuer(sdk: Sdk, guarded: EmbeddedHub) -> None:
    refused = await refused_jwt(sdk, guarded, Jwt(sdk, {Claim.SEND}, TokenIssuer(b"other")))
    assert isinstance(refused, AuthenticationError)
    assert "InvalidSignature: The token has an invalid signature." in str(refused)


@both_sdks
async def test_a_jwt_where_there_is_no_issuer(sdk: Sdk, hub: EmbeddedHub) -> None:
    refused = await refused_jwt(sdk, hub, Jwt(sdk, {Claim.SEND}))
    assert isinstance(refused, AuthenticationError)
    assert "this hub cannot verify JWTs" in str(refused)


# -- tokens that expire ---------------------------------------------------------------------------


class Minting:
    """A credential whose tokens expire by the clock of the hub."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, sdk: Sdk, hub: EmbeddedHub, clock: MovableClock, life_s: float) -> None:
        self.hub, self.clock, self.life_s = hub, clock, life_s
        self.made = 0
        self.credential = self if sdk.name == "sync" else AioMinting(self)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.made += 1
        path = scopes[0].partition("://")[2].partition("/")[2]
        token = signature(self.hub, path, expires_at=self.clock.now() + self.life_s)
        return AccessToken(token, int(self.clock.now() + 3600))


class AioMinting:
    token_type = Minting.token_type

    def __init__(self, inner: Minting) -> None:
        self.inner = inner

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self.inner.get_token(*scopes, **options)


@both_sdks
async def test_a_token_expires_while_attached(sdk: Sdk, variant: HubVariant) -> None:
    """The links are detached, and the clients attach again with new tokens: nothing is lost."""
    clock = MovableClock()
    retries: dict[str, Any] = {"retry_backoff_factor": 0.05}
    async with running(variant.hub({"one": 1}, clock=clock)) as hub:
        one = Entity(hub, "one")
        # The SDK assumes that the tokens last an hour, so it does not renew them.
        minting = Minting(sdk, hub, clock, life_s=60)
        consumer = sdk.make_consumer_with(one, minting.credential, **retries)
        async with (
            sdk.producer_with(one, minting.credential, **retries) as sender,
            sdk.read_with(consumer) as reader,
        ):
            await sender.send_batch(numbered(3))
            await reader.take(3)
            [old] = one.partition(0).readers["$default"]
            made = minting.made
            clock.advance(61)
            hub._call(hub.server.tick)
            assert old not in one.partition(0).readers.get("$default", [])
            assert not one.model.senders
            await sender.send_batch(numbered(3, 3))
            assert sequences(await reader.take(6)) == list(range(6))
            await reader.close()
    assert minting.made >= made + 2


@both_sdks
async def test_a_reader_gets_the_reason_when_its_token_expires(
    sdk: Sdk, variant: HubVariant
) -> None:
    clock = MovableClock()
    async with running(variant.hub({"one": 1}, clock=clock)) as hub:
        one = Entity(hub, "one")
        async with sdk.read(one) as reader:
            await one.attached()
            clock.advance(3601)
            hub._call(hub.server.tick)
            error = await reader.error()
            await reader.close()
    assert isinstance(error, ConnectionLostError)
    assert condition(error) == "unauthorized-access"
    assert "ExpiredToken: the token for 'sb://" in str(error)


async def test_tokens_are_renewed_on_the_same_link(
    sdk: Sdk, variant: HubVariant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK renews a token after nine tenths of its time, and the reader stays attached."""
    clock = MovableClock()
    for cbs in (azure_cbs, azure_aio_cbs):
        monkeypatch.setattr(cbs, "utc_now", lambda: datetime.fromtimestamp(clock.now(), UTC))
    async with running(variant.hub({"one": 1}, clock=clock)) as hub:
        one = Entity(hub, "one")
        minting = Minting(sdk, hub, clock, life_s=3600)
        consumer = sdk.make_consumer_with(one, minting.credential, **NO_RETRY)
        async with sdk.read_with(consumer) as reader:
            await one.attached()
            links = list(one.partition(0).readers["$default"])
            made = minting.made
            clock.advance(3300)
            await eventually(lambda: minting.made > made)
            [guard] = {talk.guard for talk in hub.server.connections}
            await eventually(lambda: guard.next_expiry > clock.now() + 3000)
            # The first token has expired now.
            clock.advance(600)
            hub._call(hub.server.tick)
            assert one.partition(0).readers["$default"] == links
            async with sdk.producer_with(one, minting.credential, **NO_RETRY) as producer:
                await producer.send_event(EventData(b"still"))
            assert bodies(await reader.take(1)) == [b"still"]
            await reader.close()
