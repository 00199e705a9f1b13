"""The SDK's buffered producer: it collects events for each partition and sends them by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError

from pumphouse.hub.routing import partition_for
from tests.conformance.entity import Entity, eventually
from tests.conformance.readers import body, condition, numbered
from tests.conformance.sdks import NO_RETRY, Sdk, both_sdks

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Outcomes:
    """The arguments of the two callbacks."""

    sent: list[tuple[str | None, bytes]] = field(default_factory=list)
    failed: list[tuple[str | None, bytes, Exception]] = field(default_factory=list)

    def succeeded(self, events: list[EventData], partition: str | None) -> None:
        self.sent += [(partition, body(event)) for event in events]

    def went_wrong(self, events: list[EventData], partition: str | None, error: Exception) -> None:
        self.failed += [(partition, body(event), error) for event in events]


def buffered(sdk: Sdk, eh: Entity, outcomes: Outcomes, **options: Any) -> Any:
    # The blocking client checks its buffer this often, and closing waits for the next check.
    settings: dict[str, Any] = {"max_wait_time": 0.5, **options}
    return sdk.producer(
        eh.connection,
        buffered_mode=True,
        on_success=sdk.callback(outcomes.succeeded),
        on_error=sdk.callback(outcomes.went_wrong),
        **settings,
    )


def stored(eh: Entity) -> list[int]:
    return [partition.log.next_sequence for partition in eh.model.partitions]


@both_sdks
async def test_flush_sends_what_was_collected(sdk: Sdk, eh: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, eh, outcomes) as producer:
        await producer.send_event(EventData(b"a"), partition_id="1")
        await producer.send_batch(numbered(3), partition_id="2")
        await producer.flush()
        assert stored(eh) == [0, 1, 3, 0]
        assert producer.client.total_buffered_event_count == 0
    assert sorted(outcomes.sent) == [("1", b"a"), ("2", b"0"), ("2", b"1"), ("2", b"2")]
    assert outcomes.failed == []


@both_sdks
async def test_closing_sends_the_rest(sdk: Sdk, eh: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, eh, outcomes) as producer:
        for number in range(10):
            await producer.send_event(EventData(str(number)))
    # Without a key the SDK itself goes round the partitions.
    assert stored(eh) == [3, 3, 2, 2]
    assert len(outcomes.sent) == 10


@both_sdks
async def test_max_wait_time_sends_the_buffer(sdk: Sdk, eh: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, eh, outcomes, max_wait_time=0.1) as producer:
        await producer.send_event(EventData(b"x"), partition_id="0")
        await eventually(lambda: outcomes.sent)
        assert outcomes.sent == [("0", b"x")]
        assert stored(eh) == [1, 0, 0, 0]


@both_sdks
async def test_a_full_buffer_sends(sdk: Sdk, single: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, single, outcomes, max_buffer_length=5) as producer:
        for number in range(12):
            await producer.send_event(EventData(str(number)))
        await eventually(lambda: len(outcomes.sent) >= 10)
    # The buffer was full twice; closing sent the rest. The order is kept.
    assert outcomes.sent == [("0", b"%d" % number) for number in range(12)]
    assert stored(single) == [12]


@both_sdks
async def test_keys(sdk: Sdk, eh: Entity) -> None:
    """The buffered client chooses the partition itself, and not always as the service does.

    It computes the remainder of a negative hash as Python does, and hashes characters instead of
    bytes. The same key can go to two partitions, with and without a buffer: a defect of the SDK.
    """
    outcomes = Outcomes()
    keys = [f"home-{number}" for number in range(40)]
    async with buffered(sdk, eh, outcomes) as producer:
        for key in keys:
            await producer.send_event(EventData(key), partition_key=key)
            await producer.send_batch([EventData(key)], partition_key=key)
        await producer.flush()
    partitions = {content.decode(): partition for partition, content in outcomes.sent}
    # The same key, the same partition.
    assert len(outcomes.sent) == 80
    assert {(p, c.decode()) for p, c in outcomes.sent} == {(p, k) for k, p in partitions.items()}
    elsewhere = [key for key in keys if partitions[key] != str(partition_for(key, 4))]
    assert 0 < len(elsewhere) < len(keys)


@both_sdks
async def test_the_key_comes_back(sdk: Sdk, single: Entity) -> None:
    outcomes = Outcomes()
    async with (
        buffered(sdk, single, outcomes) as producer,
        sdk.read(single) as reader,
    ):
        await producer.send_event(EventData(b"event"), partition_key="Ключ")
        await producer.flush()
        [event] = await reader.take(1)
    assert event.partition_key == "Ключ".encode()


@both_sdks
async def test_an_error_reaches_the_callback(sdk: Sdk, eh: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, eh, outcomes, **NO_RETRY) as producer:
        await producer.send_event(EventData(b"before"), partition_id="0")
        await producer.flush()
        eh.hub.delete_hub(eh.name)
        for number in range(2):
            await producer.send_event(EventData(str(number)), partition_id="0")
            await producer.flush()
        await eventually(lambda: len(outcomes.failed) == 2)
    assert outcomes.sent == [("0", b"before")]
    assert [(partition, content) for partition, content, _ in outcomes.failed] == [
        ("0", b"0"),
        ("0", b"1"),
    ]
    # The send that was in flight when the link was detached has no reason; the next one has.
    first, second = (error for *_, error in outcomes.failed)
    assert isinstance(first, EventHubError)
    assert condition(second) == "not-found"


@both_sdks
async def test_many_events(sdk: Sdk, eh: Entity) -> None:
    outcomes = Outcomes()
    async with buffered(sdk, eh, outcomes) as producer:
        for partition in "0123":
            for number in range(500):
                await producer.send_event(EventData(str(number)), partition_id=partition)
        await asyncio.wait_for(producer.flush(), 30)
    assert stored(eh) == [500] * 4
    for partition in "0123":
        assert [int(c) for p, c in outcomes.sent if p == partition] == list(range(500))
