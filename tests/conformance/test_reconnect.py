"""Dropped connections and restarts of the hub: clients resume and no event is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError

from pumphouse.clock import MovableClock
from pumphouse.hub.options import ServerOptions
from tests.conformance.entity import Entity, eventually, running
from tests.conformance.readers import bodies, condition, numbered, sequences
from tests.conformance.sdks import NO_RETRY, Sdk, both_sdks
from tests.conformance.variants import HubVariant, free_port

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("unclosed_sockets"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# The SDK's default number of attempts, with shorter waits.
RETRIES: dict[str, Any] = {"retry_total": 3, "retry_backoff_factor": 0.05}


@both_sdks
async def test_producer_and_reader_resume_after_a_dropped_connection(
    sdk: Sdk, variant: HubVariant
) -> None:
    async with running(variant.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with (
            sdk.producer(eh.connection, **RETRIES) as producer,
            sdk.read(eh, client=RETRIES) as reader,
        ):
            for broken in range(2):
                await producer.send_batch(numbered(5, 5 * broken))
                await reader.take(5 * broken + 5)
                assert hub.drop_connections() >= 2
            await producer.send_event(EventData(b"10"))
            events = await reader.take(11)
            await reader.close()
    # Each event exactly once: the SDK resumes after the last event that it delivered.
    assert sequences(events) == list(range(11))
    assert bodies(events) == [b"%d" % number for number in range(11)]


@both_sdks
async def test_dropped_connections_during_sends_lose_nothing(sdk: Sdk, variant: HubVariant) -> None:
    """The SDK re-sends when an outcome is lost: duplicates are possible, lost events are not."""
    async with running(variant.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with (
            sdk.producer(eh.connection, **RETRIES) as producer,
            sdk.read(eh, client=RETRIES, batch=True) as reader,
        ):

            async def send() -> None:
                for number in range(60):
                    await producer.send_event(EventData(str(number)))

            sending = asyncio.create_task(send())
            for count in (10, 30):
                await reader.take(count)
                hub.drop_connections()
            await sending
            stored = eh.partition(0).log.next_sequence
            events = await reader.take(stored)
            await reader.close()
    assert sequences(events) == list(range(stored))
    assert set(bodies(events)) == {b"%d" % number for number in range(60)}


@both_sdks
async def test_an_epoch_reader_resumes(sdk: Sdk, variant: HubVariant) -> None:
    """Its old link does not block it: the link is gone, and an equal epoch would evict it."""
    async with running(variant.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with (
            sdk.producer(eh.connection, **RETRIES) as producer,
            sdk.read(eh, client=RETRIES, owner_level=3) as reader,
        ):
            await producer.send_batch(numbered(3))
            await reader.take(3)
            hub.drop_connections()
            await producer.send_batch(numbered(3, 3))
            assert sequences(await reader.take(6)) == list(range(6))
            await reader.close()


@both_sdks
async def test_clients_survive_a_restart_of_the_hub(sdk: Sdk, variant: HubVariant) -> None:
    """On the same port, with its events. The reader resumes after its checkpoint."""
    hub = variant.hub({"eh": 1}, port=free_port())
    eh = Entity(hub, "eh")
    client = {**RETRIES, "load_balancing_interval": 0.3}
    async with AsyncExitStack() as stack:
        async with running(hub):
            opened = sdk.producer(eh.connection, **NO_RETRY)
            producer = await stack.enter_async_context(opened)
            opened = sdk.read(eh, client=client, checkpoint=True, batch=True)
            reader = await stack.enter_async_context(opened)
            await producer.send_batch(numbered(5))
            await reader.until(lambda: len(reader.events) >= 5)
        # The hub is stopped now.
        with pytest.raises(EventHubError):
            await producer.send_batch(numbered(1))
        async with running(hub):
            await producer.send_batch(numbered(5, 5))
            await reader.until(lambda: len(reader.events) >= 10)
            await reader.close()
    assert sequences(reader.events) == list(range(10))
    assert bodies(reader.events) == [b"%d" % number for number in range(10)]


@both_sdks
async def test_a_stopping_hub_sends_the_reason(sdk: Sdk, variant: HubVariant) -> None:
    hub = variant.hub({"eh": 1}, port=free_port())
    eh = Entity(hub, "eh")
    async with AsyncExitStack() as stack:
        async with running(hub):
            reader = await stack.enter_async_context(sdk.read(eh))
            await eh.attached()
        error = await reader.error()
    assert condition(error) == "connection:forced"
    assert "The hub is shutting down." in str(error)


@both_sdks
async def test_an_idle_producer_reconnects(sdk: Sdk, variant: HubVariant) -> None:
    """The service closes idle connections after minutes; the SDK notices at its next send."""
    options = ServerOptions(enforce_idle=True, idle_timeout_s=0.2)
    async with running(variant.hub({"eh": 1}, options=options)) as hub:
        async with sdk.producer(hub.connection_string("eh"), **RETRIES) as producer:
            await producer.send_event(EventData(b"before"))
            await eventually(lambda: not hub.server.connections)
            await producer.send_event(EventData(b"after"))
        assert hub.namespace.hub("eh").partitions[0].log.next_sequence == 2


@both_sdks
async def test_a_reader_with_an_idle_timeout_stays_connected(sdk: Sdk, variant: HubVariant) -> None:
    """With `idle_timeout` the SDK closes a connection without frames; the hub sends heartbeats."""
    async with running(variant.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with (
            sdk.producer(eh.connection) as producer,
            sdk.read(eh, client={"idle_timeout": 2.0, "socket_timeout": 0.2}) as reader,
        ):
            await eh.attached()
            [link] = eh.partition(0).readers["$default"]
            talk = link.connection  # type: ignore[attr-defined]
            await eventually(lambda: talk.sent_at - talk.slot.accepted_at > 4.5)
            await producer.send_event(EventData(b"still there"))
            assert bodies(await reader.take(1)) == [b"still there"]
            # It is the same link as before.
            assert eh.partition(0).readers["$default"] == [link]
            await reader.close()


@both_sdks
async def test_new_tokens_are_accepted_by_a_clock_far_ahead(sdk: Sdk, variant: HubVariant) -> None:
    """Clients make tokens by the clock of the machine, however far the hub's was moved."""
    clock = MovableClock()
    async with running(variant.hub({"one": 1}, clock=clock)) as hub:
        one = Entity(hub, "one")
        client = sdk.make_consumer(one.connection, "$Default", **RETRIES)
        async with (
            sdk.producer(one.connection, **RETRIES) as producer,
            sdk.read_with(client) as reader,
        ):
            await producer.send_batch(numbered(1))
            await reader.take(1)
            for day in range(1, 4):
                clock.advance(86_400)
                hub.tick()
                assert not one.partition(0).readers
                await producer.send_batch(numbered(1, day))
                assert sequences(await reader.take(day + 1)) == list(range(day + 1))
            await reader.close()
