"""The simulated hub: evictions and start positions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import ReaderEvicted
from pumphouse.events import Position
from pumphouse.simulation.hub import SimHub
from pumphouse.simulation.loop import HostProcess, SimLoop


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


def test_an_evicted_reader_returns_prefetched_events_and_then_raises() -> None:
    async def scene() -> None:
        hub = SimHub(1, Random(1))
        first_client, second_client = (
            hub.client(HostProcess(name), Random(1)) for name in ("one", "two")
        )
        first = await first_client.reader(ReaderOptions("0", epoch=1, name="one"))
        hub.publish("0", [b"a", b"b"])
        second = await second_client.reader(ReaderOptions("0", epoch=2, name="two"))
        hub.publish("0", [b"c"])
        assert [event.body for event in await first.receive(1)] == [b"a"]
        assert [event.body for event in await first.receive()] == [b"b"]
        with pytest.raises(ReaderEvicted) as evicted:
            await first.receive()
        assert evicted.value.epoch == 2
        with pytest.raises(ReaderEvicted):
            await first_client.reader(ReaderOptions("0", epoch=1))
        assert [event.body for event in await second.receive()] == [b"a", b"b", b"c"]
        assert await second.receive(deadline_s=5) == []

    run(scene())


def test_a_reader_starts_at_its_position() -> None:
    async def scene() -> None:
        hub = SimHub(1, Random(1))
        hub.publish("0", [b"a", b"b", b"c"])
        log = hub.logs["0"]
        hub.retain("0", 2)
        positions = {
            Position("earliest"): 1,
            Position("latest"): 3,
            Position("sequence", "1"): 2,
            Position("sequence", "1", inclusive=True): 1,
            Position("offset", "128"): 2,
            Position("time", "0"): 0,
        }
        assert {position: log.start_of(position) for position in positions} == positions

    run(scene())
