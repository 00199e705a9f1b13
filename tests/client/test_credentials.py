"""Keys, signatures and azure-identity: authorization and its renewal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.credentials import (
    JWT_TOKEN,
    SAS_TOKEN,
    SCOPE,
    credential_for,
    expiry_of,
    renewal_at,
)
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.tokens import RETRY_S, Tokens
from pumphouse.client.sas import sign
from pumphouse.clock import MovableClock, SystemClock
from pumphouse.errors import AuthError, ConnectionFailed, OptionError, PumphouseError
from pumphouse.events import Event
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.native.test_tokens import NOW, ClockEnded, FastClock
from tests.client.native.transports import DEADLINE_S, QUICK, numbered, read

ISSUER = TokenIssuer(b"secret")
EVERYTHING = [Claim.SEND, Claim.LISTEN, Claim.MANAGE]


@dataclass(frozen=True)
class Made:
    token: str
    expires_on: int


class Identity:
    """A credential like those of azure-identity, with our token issuer."""

    def __init__(self, clock: Any, lifetime_s: float = 3600, claims: Any = EVERYTHING) -> None:
        self.clock, self.lifetime_s, self.claims = clock, lifetime_s, claims
        self.asked: list[tuple[str, ...]] = []
        self.threads: set[int] = set()
        self.fails = ""

    def get_token(self, *scopes: str) -> Any:
        self.asked.append(scopes)
        self.threads.add(threading.get_ident())
        if self.fails:
            raise RuntimeError(f"{self.fails}\nand more that nobody needs")
        now = self.clock.now()
        token = ISSUER.mint(self.claims, now=now, lifetime_s=self.lifetime_s)
        return Made(token, int(now + self.lifetime_s))


class AsyncIdentity(Identity):
    async def get_token(self, *scopes: str) -> Any:
        await asyncio.sleep(0)
        return super().get_token(*scopes)


def keyless(hub: EmbeddedHub) -> str:
    return f"Endpoint=sb://{hub.authority};EntityPath=eh;UseDevelopmentEmulator=true"


async def round_trip(client: NativeClient) -> None:
    assert await (await client.sender("0")).send([Event(b"x")]) == 1
    assert (await client.partition_properties("0")).last_sequence >= 0
    await read(await client.reader(ReaderOptions("0")), 1)


# -- azure-identity -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Identity, AsyncIdentity])
async def test_a_credential_of_azure_identity_is_accepted(kind: type[Identity]) -> None:
    identity = kind(MovableClock())
    async with EmbeddedHub({"eh": 1}, issuer=ISSUER) as hub:
        async with NativeClient(keyless(hub), credential=identity) as client:
            await round_trip(client)
            hub.drop_connections()
            await round_trip(client)
        assert identity.asked == [(SCOPE,)], "a valid token is reused"
        here = threading.get_ident()
        assert (here in identity.threads) is (kind is AsyncIdentity), "blocking ones do not block"


async def test_the_error_of_a_credential_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identity = Identity(MovableClock())
    identity.fails = "az login first"
    async with EmbeddedHub({"eh": 1}, issuer=ISSUER) as hub:
        async with NativeClient(keyless(hub), credential=identity, retry=QUICK) as client:
            with pytest.raises(AuthError, match="cannot get the token of Identity: az login") as no:
                await client.properties()
            assert "nobody needs" not in str(no.value)
        assert len(identity.asked) == 1, "the credential is called only once"


async def test_a_missing_role_is_reported() -> None:
    identity = Identity(MovableClock(), claims=[Claim.LISTEN])
    async with (
        EmbeddedHub({"eh": 1}, issuer=ISSUER) as hub,
        NativeClient(keyless(hub), credential=identity, retry=QUICK) as client,
    ):
        await client.reader(ReaderOptions("0"))
        with pytest.raises(AuthError, match=r"'Send' claim\(s\) are required"):
            await client.sender()


async def test_a_credential_that_never_returns_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pumphouse.client.credentials.TOKEN_REQUEST_S", 0.05)

    class Stuck:
        async def get_token(self, *scopes: str) -> Any:
            await asyncio.Event().wait()

    async with (
        EmbeddedHub({"eh": 1}, issuer=ISSUER) as hub,
        NativeClient(keyless(hub), credential=Stuck()) as client,
    ):
        with pytest.raises(AuthError, match=r"token of Stuck did not arrive within 0\.05 s"):
            await client.properties()


async def test_tokens_of_readers_and_senders_are_renewed() -> None:
    """Tokens of a few seconds, and several of them."""
    identity = Identity(MovableClock(), lifetime_s=3)
    async with (
        EmbeddedHub({"eh": 1}, issuer=ISSUER) as hub,
        NativeClient(keyless(hub), credential=identity, retry=QUICK) as client,
    ):
        sender, reader = await client.sender("0"), await client.reader(ReaderOptions("0"))
        async with asyncio.timeout(DEADLINE_S):
            while len(identity.asked) < 3:
                await sender.send(numbered(1))
                await read(reader, 1)


# -- renewal, in virtual time ---------------------------------------------------------------------


class FakeCbs:
    """Replaces $cbs and accepts tokens unless a failure is set."""

    def __init__(self, clock: FastClock) -> None:
        self.clock = clock
        self.puts: list[tuple[float, str, str]] = []
        self.refuses: Callable[[float], PumphouseError | None] = lambda now: None

    async def put_token(self, properties: Mapping[str, Any], token: str) -> None:
        now = self.clock.now() - NOW
        self.puts.append((now, str(properties["type"]), token))
        if (refusal := self.refuses(now)) is not None:
            raise refusal


def tokens_of(credential: Any, end_s: float) -> tuple[Tokens, FakeCbs]:
    clock = FastClock(end_s)
    if isinstance(credential, Identity):
        credential.clock = clock
    cbs = FakeCbs(clock)
    connection = parse_connection_string("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=b")
    return Tokens(cbs.put_token, connection, credential_for(connection, credential), clock), cbs


async def test_a_jwt_is_renewed_before_it_expires() -> None:
    identity = Identity(None, lifetime_s=1000)
    tokens, cbs = tokens_of(identity, 5000)
    await tokens.ensure("eh")
    with pytest.raises(ClockEnded):
        await tokens.renew_forever()
    assert {kind for _, kind, _ in cbs.puts} == {JWT_TOKEN}
    assert len({token for *_, token in cbs.puts}) == len(cbs.puts) >= 5
    assert [put_s for put_s, *_ in cbs.puts] == pytest.approx([900 * n for n in range(6)], abs=61)


@pytest.mark.parametrize(
    "failure", [ConnectionFailed("the hub did not respond"), AuthError("temporarily refused")]
)
async def test_a_failed_renewal_is_retried_until_the_old_token_expires(
    failure: PumphouseError,
) -> None:
    tokens, cbs = tokens_of(None, 4500)
    cbs.refuses = lambda now: failure if 0 < now < 3400 else None
    await tokens.ensure("eh")
    with pytest.raises(ClockEnded):
        await tokens.renew_forever()
    times = [put_s for put_s, *_ in cbs.puts]
    assert times[1] == pytest.approx(3240, abs=1)
    retries = [put_s for put_s in times if 3240 < put_s < 3401 + RETRY_S]
    assert len(retries) >= 20, "a retry every few seconds"
    assert times[-1] - times[0] < 3600, "the renewal succeeds before the expiry"


async def test_a_renewal_that_fails_after_the_expiry_is_raised() -> None:
    tokens, cbs = tokens_of(None, 9000)
    cbs.refuses = lambda now: AuthError("The rule is gone.") if now > 0 else None
    await tokens.ensure("eh")
    with pytest.raises(
        AuthError, match=r"h:5671 does not accept the key of 'a': The rule is gone\."
    ):
        await tokens.renew_forever()
    assert tokens.clock.now() - NOW == pytest.approx(3600, abs=1)


async def test_readers_raise_when_the_key_is_removed_and_expired_tokens_are_put_again() -> None:
    clock = MovableClock()
    async with EmbeddedHub({"eh": 1}, clock=clock) as hub:
        hub.create_rule("ear", [Claim.LISTEN])
        # Only the clock of the hub is advanced: for the client, its token is still valid.
        async with NativeClient(hub.connection_string("eh", "ear"), retry=QUICK) as client:
            reader = await client.reader(ReaderOptions("0"))
            async with NativeClient(hub.connection_string("eh")) as other:
                await (await other.sender("0")).send(numbered(3))
            assert len(await read(reader, 3)) == 3
            clock.advance(3000)
            hub.server.tick()
            assert await reader.receive(1, 0.01) == []
            hub.namespace.rules[:] = [r for r in hub.namespace.rules if r.name != "ear"]
            clock.advance(3000)
            hub.server.tick()
            with pytest.raises(AuthError, match="does not accept the key of 'ear'"):
                await reader.receive(1, DEADLINE_S)


async def test_a_token_that_expired_while_the_machine_slept_is_put_again() -> None:
    clock = MovableClock()
    async with (
        EmbeddedHub({"eh": 1}, clock=clock) as hub,
        NativeClient(
            hub.connection_string("eh"), retry=QUICK, options=ConnectionOptions(clock=clock)
        ) as client,
    ):
        reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
        for number in range(3):
            clock.advance(4000)
            hub.server.tick()
            assert await sender.send(numbered(1)) == 1
            assert [event.sequence for event in await read(reader, 1)] == [number]


# -- signatures and keys --------------------------------------------------------------------------


def signature(hub: EmbeddedHub, lasts_s: float = 3600.0) -> str:
    return hub.sas_token("eh", lasts_s=lasts_s)


async def test_a_signature_as_text_is_accepted() -> None:
    async with (
        EmbeddedHub({"eh": 1}) as hub,
        NativeClient(keyless(hub), credential=signature(hub)) as client,
    ):
        await round_trip(client)


class CommonClock(SystemClock):
    """The clock of a hub and of its clients."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


async def test_an_expired_signature_ends_the_reader_with_its_reason() -> None:
    clock = CommonClock()
    async with EmbeddedHub({"eh": 1}, clock=clock) as hub:
        text = f"{keyless(hub)};SharedAccessSignature={signature(hub, 60)}"
        async with NativeClient(
            text, retry=QUICK, options=ConnectionOptions(clock=clock)
        ) as client:
            reader = await client.reader(ReaderOptions("0"))
            clock.ahead_s = 61
            hub.server.tick()
            with pytest.raises(
                AuthError, match=r"does not accept the SharedAccessSignature: Expired"
            ):
                await reader.receive(1, DEADLINE_S)


async def test_credentials_of_azure_core_are_accepted() -> None:
    @dataclass
    class AzureNamedKeyCredential:
        named_key: tuple[str, str]

    @dataclass
    class AzureSasCredential:
        signature: str

    async with EmbeddedHub({"eh": 1}) as hub:
        rule = hub.find_rule("RootManageSharedAccessKey", None)
        for credential in (
            AzureNamedKeyCredential((rule.name, rule.key)),
            AzureSasCredential(signature(hub)),
        ):
            async with NativeClient(keyless(hub), credential=credential) as client:
                await round_trip(client)


def test_an_invalid_credential_is_refused_before_anything_is_sent() -> None:
    connection = parse_connection_string("Endpoint=sb://h;EntityPath=eh", keyless=True)
    with pytest.raises(OptionError, match="int is not a credential: it has no get_token"):
        credential_for(connection, 7)
    with pytest.raises(OptionError, match="no credential for h:5671"):
        credential_for(connection)


async def test_a_key_in_place_of_a_signature_is_refused_and_not_shown() -> None:
    credential = credential_for(
        parse_connection_string("Endpoint=sb://h", keyless=True), "c2VjcmV0"
    )
    with pytest.raises(OptionError, match="must be a signature") as refused:
        await credential.token("sb://h/eh", NOW)
    assert "c2VjcmV0" not in str(refused.value) + repr(credential)


def test_repr_shows_no_secret() -> None:
    connection = parse_connection_string(
        "Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=hush"
    )
    client = NativeClient(connection, "eh")
    assert "hush" not in repr(client) + repr(client.connection.settings) + repr(client.connection)


def test_the_expiry_of_a_signature() -> None:
    assert expiry_of(sign("sb://h/eh", "a", "b", 1234)) == 1234.0
    assert expiry_of("SharedAccessSignature sr=x&sig=y&se=soon") == float("inf")
    assert expiry_of("") == float("inf")
    assert renewal_at(100.0, 200.0) == 190.0
    assert SAS_TOKEN.endswith("sastoken")
