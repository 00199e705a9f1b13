"""A hub that keeps nothing restarts while a reader is open, and grows past the last event."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from tests.processor.checks.test_continuity import OPTIONS, Host
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run

KEY = "c2VjcmV0"
DOWN_S = 7.0  # the client still retries then, and its next attempt is seconds away
WITHOUT_CHECKPOINT = ProcessorOptions(checkpoints=CheckpointPolicy(every_s=1000))


async def restarted(env: HubAndStore, events: int) -> EmbeddedHub:
    """The hub under the same address, with other events."""
    port = env.hub.port
    await env.client.__aexit__(None, None, None)
    await env.hub.__aexit__(None, None, None)
    await asyncio.sleep(DOWN_S)
    hub = EmbeddedHub({HUB: 1}, clock=env.clock, port=port, root_key=KEY)
    await hub.__aenter__()
    env.hub = hub
    env.client = await open_client(hub.connection_string(HUB)).__aenter__()
    sender = await env.client.sender("0")
    await sender.send([Event(b"%d" % number) for number in range(events)])
    return hub


@pytest.mark.parametrize("options", [OPTIONS, WITHOUT_CHECKPOINT])
@pytest.mark.parametrize("events", [3, 4, 50])
def test_a_hub_that_restarts_empty_under_an_open_reader_is_reported(
    events: int, options: ProcessorOptions
) -> None:
    async def scenario() -> None:
        async with HubAndStore(1, root_key=KEY) as env:
            await env.send("a", "b", "c")
            host = Host(env, options)
            async with host.engine:
                await until(lambda: host.record == [0, 1, 2])
                await restarted(env, events)
                await until(lambda: len(host.record) == 4 + events)
                assert host.record[3:] == [(3, None), *range(events)]
            assert [loss.recreated for loss in host.losses] == [True]

    run(scenario())


def test_a_connection_that_breaks_is_no_loss() -> None:
    async def scenario() -> None:
        async with HubAndStore(1, root_key=KEY) as env:
            await env.send("a", "b", "c")
            host = Host(env)
            async with host.engine:
                await until(lambda: host.record == [0, 1, 2])
                for number in range(3, 6):
                    env.hub.drop_connections()
                    await env.send("d")
                    await until(lambda: number in host.record)  # noqa: B023
            assert host.record == [0, 1, 2, 3, 4, 5]
            assert not host.errors

    run(scenario())
