"""Tokens are put once per path, renewed in time, and refusals name the credential."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.credentials import credential_for
from pumphouse.client.native.tokens import TOKEN_S, Tokens
from pumphouse.client.sas import sign
from pumphouse.errors import AuthError
from pumphouse.hub.access.auth import AccessRule, verify_sas

NOW = 1_714_564_800.0
CONNECTION = "Endpoint=sb://h:1;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
RULES = [AccessRule("Root", "c2VjcmV0")]


class ClockEnded(Exception):
    """Raised at the end of the clock, which ends the test."""


class FastClock:
    """A clock whose sleep advances it at once, and raises at the end."""

    def __init__(self, end_s: float) -> None:
        self.time = NOW
        self.end = NOW + end_s

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.time > self.end:
            raise ClockEnded


class FakeCbs:
    """Replaces $cbs and records the tokens."""

    def __init__(self, clock: FastClock) -> None:
        self.clock = clock
        self.puts: list[tuple[float, str]] = []

    async def put_token(self, properties: Mapping[str, Any], token: str) -> None:
        grant = verify_sas(token, properties["name"], RULES, self.clock.now())
        assert properties["expiration"] == grant.expires_at * 1000
        self.puts.append((self.clock.now() - NOW, properties["name"]))


def make_tokens(connection_string: str = CONNECTION, end_s: float = 0.0) -> tuple[Tokens, FakeCbs]:
    clock = FastClock(end_s)
    cbs = FakeCbs(clock)
    connection = parse_connection_string(connection_string)
    return Tokens(cbs.put_token, connection, credential_for(connection), clock), cbs


async def test_a_token_is_put_once_per_path() -> None:
    tokens, cbs = make_tokens()
    await tokens.ensure("eh1")
    await tokens.ensure("eh1")
    await tokens.ensure("")
    assert [name for _, name in cbs.puts] == ["sb://h:1/eh1", "sb://h:1/"]


async def test_tokens_are_renewed_in_time_and_not_too_often() -> None:
    tokens, cbs = make_tokens(end_s=3 * 3600)
    await tokens.ensure("eh1")
    with pytest.raises(ClockEnded):
        await tokens.renew_forever()
    times = [put_s for put_s, _ in cbs.puts]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 3
    assert all(0.8 * TOKEN_S < gap < TOKEN_S for gap in gaps)


async def test_a_refusal_names_the_key_but_not_its_value() -> None:
    tokens, _ = make_tokens(CONNECTION.replace("c2VjcmV0", "d3Jvbmc="))
    with pytest.raises(
        AuthError, match=r"h:1 does not accept the key of 'Root'.*InvalidSig"
    ) as raised:
        await tokens.ensure("eh1")
    assert "d3Jvbmc=" not in str(raised.value)


async def test_a_given_signature_is_put_unchanged_and_not_renewed() -> None:
    token = sign("sb://h:1/eh1", "Root", "c2VjcmV0", int(NOW) + 3600)
    tokens, cbs = make_tokens(f"Endpoint=sb://h:1;SharedAccessSignature={token}", end_s=3 * 3600)
    await tokens.ensure("eh1")
    await tokens.renew_forever()
    assert len(cbs.puts) == 1
