"""Several clients share the partitions of a hub, by the SDK's own load balancing.

The SDK gives every processor owner level 0, so an equal epoch evicts at a take-over.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.eventhub import CloseReason, EventData

from tests.conformance.entity import Entity, eventually
from tests.conformance.readers import Reader, body
from tests.conformance.sdks import STORES, Sdk, both_sdks

pytestmark = pytest.mark.asyncio(loop_scope="session")

PARTITIONS = ("0", "1", "2", "3")
BALANCING = {
    "load_balancing_interval": 0.3,
    "partition_ownership_expiration_interval": 3,
    "load_balancing_strategy": "greedy",
}


def member(sdk: Sdk, eh: Entity, store: Any, **options: Any) -> Any:
    """One client of the fleet. It checkpoints every batch."""
    client = {"checkpoint_store": store, **BALANCING, **options}
    return sdk.read(eh, None, client=client, checkpoint=True, batch=True)


def owned(reader: Reader) -> set[str]:
    """The partitions that a client owns now."""
    held = [*reader.opened]
    for partition, _ in reader.closed:
        held.remove(partition)
    return set(held)


def handled(*readers: Reader) -> set[tuple[str, bytes]]:
    return {
        (context.partition_id, body(event))
        for reader in readers
        for context, events in zip(reader.contexts, reader.calls, strict=True)
        for event in events
    }


async def send(producer: Any, word: str) -> set[tuple[str, bytes]]:
    """Five events to each partition."""
    sent = {(partition, f"{word} {n}".encode()) for partition in PARTITIONS for n in range(5)}
    await asyncio.gather(
        *(
            producer.send_batch(
                [EventData(f"{word} {n}") for n in range(5)], partition_id=partition
            )
            for partition in PARTITIONS
        )
    )
    return sent


@both_sdks
async def test_two_clients_share_four_partitions(sdk: Sdk, eh: Entity) -> None:
    store = STORES[sdk.name]()
    async with sdk.producer(eh.connection) as producer, member(sdk, eh, store) as one:
        sent = await send(producer, "one")
        await one.until(lambda: owned(one) == set(PARTITIONS) and handled(one) >= sent)

        # A second client joins and gets half of the partitions.
        async with member(sdk, eh, store) as two:
            await eventually(
                lambda: len(owned(one)) == len(owned(two)) == 2 and not owned(one) & owned(two),
                lambda: f"balance: {owned(one)} and {owned(two)}",
            )
            for partition in PARTITIONS:
                await eh.attached(1, partition)
            sent |= await send(producer, "two")
            await eventually(lambda: handled(one, two) >= sent, lambda: f"{one}, {two}")
            assert {reason for _, reason in one.closed} == {CloseReason.OWNERSHIP_LOST}

            # The first client stops, and the second resumes after its checkpoints.
            await one.close()
            await two.until(lambda: owned(two) == set(PARTITIONS))
            sent |= await send(producer, "three")
            await two.until(lambda: handled(one, two) >= sent)
    assert handled(one, two) == sent


@both_sdks
async def test_a_client_that_dies_is_replaced(sdk: Sdk, eh: Entity) -> None:
    """It neither releases its partitions nor closes its links; its ownership expires."""
    store = STORES[sdk.name]()
    async with sdk.producer(eh.connection) as producer:
        await send(producer, "before")
        # It renews nothing for an hour, like a dead client.
        async with member(sdk, eh, store, load_balancing_interval=3600) as one:
            await one.until(lambda: owned(one) == set(PARTITIONS) and len(one.events) == 20)
            async with member(sdk, eh, store, partition_ownership_expiration_interval=1) as two:
                await two.until(lambda: owned(two) == set(PARTITIONS))
                sent = await send(producer, "after")
                await two.until(lambda: handled(two) >= sent)
            # The first client was evicted.
            await one.until(lambda: len(one.errors) == 4)
            assert {getattr(error, "error", None) for error in one.errors} == {"link:stolen"}
    # Events that the first client checkpointed are not handled again.
    assert handled(two) == sent
