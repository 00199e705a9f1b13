"""A host that could not read its hub refuses to start, with one sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import AuthError, HubNotFound
from pumphouse.hub.access.auth import Claim
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HubAndStore
from tests.processor.support.virtual_time import run


async def serve(partition: PartitionClient) -> None:
    async for _ in partition.batches():
        pass


async def start(env: HubAndStore, connection: str, driver: str, **more: Any) -> None:
    engine = Engine(
        lambda: open_client(connection, driver=driver),
        serve,
        store=MemoryStore(env.clock),
        host="a",
        clock=env.clock,
        **more,
    )
    async with engine:
        pass


def refusal(driver: str, error: type[Exception], make: Any, **more: Any) -> str:
    async def scenario() -> str:
        async with HubAndStore(2) as env:
            with pytest.raises(error) as raised:
                await start(env, make(env), driver, **more)
            return str(raised.value)

    return run(scenario())


def with_token(env: HubAndStore, lasts_s: float) -> str:
    token = env.hub.sas_token("eh", lasts_s=lasts_s)
    return re.sub("SharedAccessKeyName=.*?;SharedAccessKey=[^;]*", lambda _: token_part(token),
                  env.connection)  # fmt: skip


def token_part(token: str) -> str:
    return f"SharedAccessSignature={token}"


def send_only(env: HubAndStore) -> str:
    env.hub.create_rule("sender", [Claim.SEND])
    return env.hub.connection_string("eh", rule="sender")


def test_a_missing_consumer_group_is_refused() -> None:
    text = refusal("native", HubNotFound, lambda env: env.connection, group="readers")
    assert text == "hub 'eh' has no consumer group 'readers': create it, or correct the name"


def test_a_missing_hub_is_refused() -> None:
    text = refusal("native", HubNotFound, lambda env: env.connection.replace("=eh", "=eg"))
    assert "hub 'eg' not found; existing hubs: eh" in text


def test_a_key_that_may_only_send_is_refused() -> None:
    text = refusal("native", AuthError, send_only)
    assert "the key or token may not read hub 'eh': use one with the Listen claim" in text


def test_an_expired_token_is_refused() -> None:
    text = refusal("native", AuthError, lambda env: with_token(env, -10))
    assert "ExpiredToken: The token is expired" in text


@pytest.mark.parametrize("epoch", [None, 5])
def test_other_readers_do_not_prevent_a_start_and_stay(epoch: int | None) -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            options = ReaderOptions("0", epoch=epoch)
            readers = [await env.client.reader(options) for _ in range(1 if epoch else 5)]
            engine = Engine(
                env.connection, serve, store=MemoryStore(env.clock), host="a", clock=env.clock
            )
            await engine.start()
            assert [await reader.receive(1, 0) for reader in readers] == [[]] * len(readers)
            engine.abandon()
            await engine.stop()

    run(scenario())
