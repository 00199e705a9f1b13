"""A native sender under faults: all events are stored, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from pumphouse.client.base import RetryOptions
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.errors import (
    ConnectionFailed,
)
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.native.connection_faults import BREAKS, SENDING, FaultInjector
from tests.client.native.transports import (
    DEADLINE_S,
    TRANSPORTS,
    client_over,
    numbered,
    read_all,
)


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, tls_port=0, ws_port=0, fault_seed=11) as hub:
        yield hub


@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("key", [None, "home-7"])
async def test_all_sent_events_are_stored_in_order_under_any_fault(
    hub: EmbeddedHub, transport: str, key: str | None
) -> None:
    """Refused batches are stored once; only a broken connection may duplicate a batch."""
    async with client_over(transport, hub) as client, client_over("tcp", hub) as calm:
        sender = await client.sender("0" if key is None else None)
        rng = Random(transport)
        sent = 0
        injector = FaultInjector(hub, rng, SENDING)
        while injector.count < BREAKS[transport] // 2:
            count = rng.randrange(1, 60)
            assert await sender.send(numbered(count, key, sent), batch_events_max=7) == count
            sent += count
            injector.again()
        injector.stop()
        stored = [e for p in ("0", "1") for e in await read_all(calm, p)]
        first = dict.fromkeys(int(event.body) for event in stored)
        assert list(first) == list(range(sent)), (
            "all are stored, and their first copies are in order"
        )
        assert sender.accepted == sent


async def test_only_the_refused_batch_is_sent_again(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub) as client:
        sender = await client.sender("0")
        hub.faults.throttle(rate=0.5)
        assert await sender.send(numbered(500), batch_events_max=5) == 500
        assert hub.faults.struck["throttle"] > 20
        hub.faults.clear()
        bodies = [event.body for event in await read_all(client)]
        assert bodies == [b"%d" % number for number in range(500)], "in order, and none twice"


async def test_at_most_one_batch_of_a_key_is_pending(hub: EmbeddedHub) -> None:
    async with client_over("tcp", hub) as client:
        sender = await client.sender()
        hub.faults.throttle(rate=0.5)
        keys = [f"k{number}" for number in range(6)]
        events = [Event(b"%d" % number, partition_key=key) for number in range(100) for key in keys]
        assert await sender.send(events, batch_events_max=3) == 600
        hub.faults.clear()
        stored = [e for p in ("0", "1") for e in await read_all(client, p)]
        for key in keys:
            bodies = [int(event.body) for event in stored if event.partition_key == key]
            assert bodies == list(range(100))


async def test_a_permanently_throttled_send_raises(hub: EmbeddedHub) -> None:
    hub.faults.throttle()
    async with client_over("tcp", hub, retry=RetryOptions(3, 0.001, 0.01)) as client:
        sender = await client.sender()
        with pytest.raises(ConnectionFailed, match="the entity is being throttled"):
            await sender.send(numbered(1))
        assert (sender.accepted, hub.faults.struck["throttle"]) == (0, 4)


async def test_a_hub_without_a_response_is_reconnected(
    hub: EmbeddedHub,
) -> None:
    hub.faults.delay(30.0, on="send", times=1)
    async with client_over("tcp", hub, options=ConnectionOptions(answer_s=0.5)) as client:
        async with asyncio.timeout(DEADLINE_S):
            assert await (await client.sender("0")).send(numbered(3)) == 3
        assert [event.body for event in await read_all(client)] == [b"0", b"1", b"2"]
