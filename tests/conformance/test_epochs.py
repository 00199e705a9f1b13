"""The epoch rules, through the SDK's `owner_level`.

Every case uses its own partition, so that several run at once and must not affect one another.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import ConnectionLostError

from pumphouse.hub.options import ServerOptions
from tests.conformance.entity import Entity, Refusals, eventually, running
from tests.conformance.readers import Reader, condition, numbered, refused, sequences
from tests.conformance.sdks import Sdk, both_sdks
from tests.conformance.variants import HubVariant

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("unclosed_sockets"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def disconnected(old: object, new: int) -> str:
    return (
        f"New receiver 'nil' with higher epoch of '{new}' is created hence current receiver 'nil' "
        f"with epoch '{old}' is getting disconnected. If you are recreating the receiver, make "
        "sure a higher epoch is used."
    )


def higher_exists(attached: int, new: int) -> str:
    return (
        f"Receiver 'nil' with a higher epoch '{attached}' already exists. "
        f"Receiver 'nil' with epoch {new} cannot be created. "
        "Make sure you are creating receiver with increasing epoch value to ensure connectivity, "
        "or ensure all old epoch receivers are closed or disconnected."
    )


def epoch_exists(attached: int) -> str:
    """The start of the text; the embedded hub appends which reader was refused."""
    return (
        f"At least one receiver for the endpoint is created with epoch of '{attached}', and so "
        "non-epoch receiver is not allowed. Either reconnect with a higher epoch, or make sure "
        "all epoch receivers are closed or disconnected."
    )


TOO_MANY = (
    "Exceeded the maximum number of allowed receivers per partition in a consumer group which is "
    "5. List of connected receivers - nil, nil, nil, nil, nil."
)


def stolen(error: Exception) -> str:
    """The text of an eviction, or of a refusal because of epochs."""
    assert isinstance(error, ConnectionLostError)
    assert condition(error) == "link:stolen"
    text, tracking, _ = error.message.splitlines()[0].partition(" TrackingId:")
    assert tracking
    return text


def read(sdk: Sdk, eh: Entity, partition: int, epoch: int | None, **options: Any) -> Any:
    return sdk.read(eh, str(partition), owner_level=epoch, **options)


async def send(sdk: Sdk, eh: Entity, count: int = 3) -> None:
    """The same events into each partition."""
    async with sdk.producer(eh.connection) as producer:
        await asyncio.gather(
            *(producer.send_batch(numbered(count), partition_id=str(n)) for n in range(4))
        )


# -- a newcomer with an epoch ---------------------------------------------------------------------


async def evicts(sdk: Sdk, eh: Entity, partition: int, attached: int, new: int) -> None:
    async with read(sdk, eh, partition, attached) as old:
        await eh.attached(number=partition)
        async with read(sdk, eh, partition, new) as newcomer:
            assert stolen(await old.error()) == disconnected(attached, new)
            await old.until(lambda: old.closed)
            assert old.closed == [(str(partition), CloseReason.OWNERSHIP_LOST)]
            assert sequences(await newcomer.take(3)) == [0, 1, 2]
            assert eh.reader_count(partition) == 1


@both_sdks
async def test_a_higher_or_equal_epoch_evicts(sdk: Sdk, eh: Entity) -> None:
    cases = [(1, 2), (0, 0), (0, 7), (2**40, 2**40)]
    sent = asyncio.create_task(send(sdk, eh))
    await asyncio.gather(*(evicts(sdk, eh, n, *case) for n, case in enumerate(cases)))
    await sent


async def refuses(sdk: Sdk, eh: Entity, partition: int, attached: int, new: int | None) -> None:
    async with read(sdk, eh, partition, attached) as old:
        await eh.attached(number=partition)
        async with read(sdk, eh, partition, new) as newcomer:
            text = stolen(await newcomer.error())
            if new is None:
                assert text.startswith(epoch_exists(attached))
            else:
                assert text == higher_exists(attached, new)
        assert newcomer.events == []
        # The attached reader is not affected.
        assert sequences(await old.take(3)) == [0, 1, 2]
        assert old.closed == []


@both_sdks
async def test_a_lower_epoch_and_no_epoch_are_refused(sdk: Sdk, eh: Entity) -> None:
    cases = [(2, 1), (1, 0), (5, None), (0, None)]
    sent = asyncio.create_task(send(sdk, eh))
    await asyncio.gather(*(refuses(sdk, eh, n, *case) for n, case in enumerate(cases)))
    await sent


@both_sdks
async def test_an_evicted_reader_reads_no_more(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, read(sdk, single, 0, 1) as old:
        await producer.send_batch(numbered(2))
        await old.take(2)
        async with read(sdk, single, 0, 2) as newcomer:
            await old.error()
            await producer.send_batch(numbered(2))
            assert sequences(await newcomer.take(4)) == [0, 1, 2, 3]
    assert sequences(old.events) == [0, 1]


# -- readers without an epoch ---------------------------------------------------------------------


@both_sdks
async def test_five_readers_without_an_epoch_and_no_sixth(
    sdk: Sdk, single: Entity, refusals: Refusals
) -> None:
    async with sdk.producer(single.connection) as producer, AsyncExitStack() as stack:
        readers: list[Reader] = []
        for _ in range(5):
            readers.append(await stack.enter_async_context(read(sdk, single, 0, None)))
        await single.attached(5)
        async with read(sdk, single, 0, None) as sixth:
            await refused(sixth, refusals, "amqp:resource-limit-exceeded", TOO_MANY)
            await sixth.close()
        await producer.send_batch(numbered(3))
        for reader in readers:
            assert sequences(await reader.take(3)) == [0, 1, 2]

        # One reader leaves, and another can attach.
        await readers.pop().close()
        await single.attached(4)
        readers.append(await stack.enter_async_context(read(sdk, single, 0, None)))
        assert sequences(await readers[-1].take(3)) == [0, 1, 2]

        # A reader with an epoch evicts all five.
        async with read(sdk, single, 0, 0) as newcomer:
            for reader in readers:
                assert stolen(await reader.error()) == disconnected("nil", 0)
            assert sequences(await newcomer.take(3)) == [0, 1, 2]


# -- coming and going -----------------------------------------------------------------------------


@both_sdks
async def test_once_it_is_gone_its_epoch_is_forgotten(sdk: Sdk, eh: Entity) -> None:
    async def follow(partition: int, epoch: int | None) -> None:
        async with read(sdk, eh, partition, 9) as old:
            await eh.attached(number=partition)
            await old.close()
        async with read(sdk, eh, partition, epoch) as newcomer:
            assert sequences(await newcomer.take(3)) == [0, 1, 2]

    sent = asyncio.create_task(send(sdk, eh))
    await asyncio.gather(follow(0, None), follow(1, 0))
    await sent


@both_sdks
async def test_consumer_groups_are_independent(sdk: Sdk, single: Entity) -> None:
    single.hub.create_group(single.name, "other")
    async with (
        sdk.producer(single.connection) as producer,
        read(sdk, single, 0, 1) as one,
        read(sdk, single, 0, 5, group="other") as other,
    ):
        await single.attached()
        await single.attached(group="other")
        await producer.send_batch(numbered(3))
        assert sequences(await one.take(3)) == sequences(await other.take(3)) == [0, 1, 2]


@both_sdks
async def test_a_dropped_connection_removes_its_reader_at_once(
    sdk: Sdk, variant: HubVariant
) -> None:
    async with running(variant.hub({"eh": 1})) as hub:
        eh = Entity(hub, "eh")
        async with read(sdk, eh, 0, 9, client={"retry_total": 0}) as old:
            await eh.attached()
            old_link = eh.partition(0).readers["$default"][0]
            hub.drop_connections()
            await eventually(lambda: old_link not in eh.partition(0).readers.get("$default", []))
            await old.close()


@both_sdks
async def test_a_dropped_reader_counts_for_vanished_s(sdk: Sdk, variant: HubVariant) -> None:
    """The service needs about ten minutes to notice a dropped connection."""
    async with running(variant.hub({"eh": 1}, options=ServerOptions(vanished_s=3600))) as hub:
        eh = Entity(hub, "eh")
        async with read(sdk, eh, 0, 9) as old:
            await eh.attached()
            hub.drop_connections()
            async with read(sdk, eh, 0, None) as newcomer:
                assert stolen(await newcomer.error()).startswith(epoch_exists(9))
                await asyncio.gather(old.close(), newcomer.close())
