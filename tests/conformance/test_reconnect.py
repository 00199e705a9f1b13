"""The network fails, the hub goes away and comes back: clients resume, nothing lost or skipped."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError

from pumphouse.hub.connection import ServerOptions
from tests.conformance.doors import Door, free_port
from tests.conformance.entity import Entity, eventually, running
from tests.conformance.faces import NO_RETRY, Sdk, both_faces
from tests.conformance.readers import bodies, condition, numbered, sequences

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# The SDK's own number of attempts, with less of a wait between them.
RETRIES: dict[str, Any] = {"retry_total": 3, "retry_backoff_factor": 0.05}


@both_faces
async def test_both_resume_after_a_break(sdk: Sdk, door: Door) -> None:
    async with running(door.hub({"eh": 1})) as hub:
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
    # Neither twice nor not at all: the SDK goes on after the last event it handed over.
    assert sequences(events) == list(range(11))
    assert bodies(events) == [b"%d" % number for number in range(11)]


@both_faces
async def test_breaks_while_events_are_under_way(sdk: Sdk, door: Door) -> None:
    """If the answer to a send is lost the SDK sends again: twice is possible, missing is not."""
    async with running(door.hub({"eh": 1})) as hub:
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


@both_faces
async def test_an_epoch_reader_resumes(sdk: Sdk, door: Door) -> None:
    """Its own former link is no obstacle: that one is gone, and an equal epoch would evict it."""
    async with running(door.hub({"eh": 1})) as hub:
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


@both_faces
async def test_the_hub_goes_and_comes_back(sdk: Sdk, door: Door) -> None:
    """On the same port, with what it held. The reader goes on from its checkpoint."""
    hub = door.hub({"eh": 1}, port=free_port())
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
        # Nobody is there now.
        with pytest.raises(EventHubError):
            await producer.send_batch(numbered(1))
        async with running(hub):
            await producer.send_batch(numbered(5, 5))
            await reader.until(lambda: len(reader.events) >= 10)
            await reader.close()
    assert sequences(reader.events) == list(range(10))
    assert bodies(reader.events) == [b"%d" % number for number in range(10)]


@both_faces
async def test_stopping_says_so(sdk: Sdk, door: Door) -> None:
    hub = door.hub({"eh": 1}, port=free_port())
    eh = Entity(hub, "eh")
    async with AsyncExitStack() as stack:
        async with running(hub):
            reader = await stack.enter_async_context(sdk.read(eh))
            await eh.attached()
        error = await reader.error()
    assert condition(error) == "connection:forced"
    assert "The hub is shutting down." in str(error)


@both_faces
async def test_an_idle_producer_that_was_hung_up_on(sdk: Sdk, door: Door) -> None:
    """As the service does after a few minutes; the SDK notices with its next event."""
    options = ServerOptions(enforce_idle=True, idle_timeout_s=0.2)
    async with running(door.hub({"eh": 1}, options=options)) as hub:
        async with sdk.producer(hub.connection_string("eh"), **RETRIES) as producer:
            await producer.send_event(EventData(b"before"))
            await eventually(lambda: not hub.server.conversations)
            await producer.send_event(EventData(b"after"))
        assert hub.namespace.hub("eh").partitions[0].log.next_sequence == 2


@both_faces
async def test_a_reader_that_wants_to_hear_from_the_hub(sdk: Sdk, door: Door) -> None:
    """With `idle_timeout` the SDK hangs up on a silent hub; ours is not silent."""
    async with running(door.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with (
            sdk.producer(eh.connection) as producer,
            sdk.read(eh, client={"idle_timeout": 0.5, "socket_timeout": 0.2}) as reader,
        ):
            await eh.attached()
            [link] = eh.partition(0).readers["$default"]
            talk = link.talk  # type: ignore[attr-defined]
            await eventually(lambda: talk.spoke - talk.since > 1.5)
            await producer.send_event(EventData(b"still there"))
            assert bodies(await reader.take(1)) == [b"still there"]
            # It is the same link as before.
            assert eh.partition(0).readers["$default"] == [link]
            await reader.close()
