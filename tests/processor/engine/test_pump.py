"""Pump: refused and evicted readers, hub outages, rows and checkpoints written by others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import ReaderEvicted
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.pump import cut
from tests.leases.sdk_writes import claim_as_sdk
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run

# -- other readers and outages --------------------------------------------------------------------


def test_the_owner_raises_its_epoch_above_a_reader_that_refuses_it() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            intruder = await fleet.client.reader(ReaderOptions("0", epoch=50))
            await fleet.send()
            await fleet.add("a")
            await fleet.until_handled()
            assert (await fleet.rows())["0"].epoch == 51
            (mark,) = await fleet.store.list_checkpoints(fleet.group)
            assert mark.epoch == 51
            with pytest.raises(ReaderEvicted):
                await drain(intruder)
            fleet.check_clean()

    run(scenario())


async def drain(reader: object) -> None:
    async with asyncio.timeout(60):
        while True:
            await reader.receive(100, 1.0)  # type: ignore[attr-defined]


def test_an_evicted_owner_reads_again_without_a_duplicate() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.add("a", checkpoint=False)
            await fleet.send()
            await fleet.until_handled()
            await fleet.client.reader(ReaderOptions("0", epoch=99))
            await fleet.send()
            await fleet.until_handled()
            assert (await fleet.rows())["0"].epoch == 100
            assert any(type(failed) is ReaderEvicted for _, _, failed in fleet.errors)
            fleet.check_clean()

    run(scenario())


def test_reading_continues_after_the_hub_was_unavailable() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            await fleet.add("a", checkpoint=False)
            for _ in range(5):
                await fleet.send()
                fleet.hub.drop_connections()
                await asyncio.sleep(3)
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


# -- rows and checkpoints written by others -------------------------------------------------------


def test_after_an_official_sdk_rewrote_the_row_the_epoch_is_raised() -> None:
    """I1 in a mixed fleet: the checkpoint has the epoch that the row has lost."""

    async def scenario() -> None:
        store = MemoryStore(LoopClock())
        async with Fleet(1, store=store) as fleet:
            await fleet.add("a")
            await fleet.send()
            await fleet.until_handled()
            row = (await fleet.rows())["0"]
            claim_as_sdk(store, fleet.group, replace(row, owner="sdk"))
            await fleet.until(lambda: not fleet.hosts["a"].owned, "a to lose it")
            await fleet.until(lambda: fleet.hosts["a"].owned, "a to take it back")
            assert (await fleet.rows())["0"].epoch == 2
            await fleet.send()
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_a_checkpoint_reset_by_an_operator_is_followed() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.add("a")
            await fleet.send(20)
            await fleet.until_handled()
            (mark,) = await fleet.store.list_checkpoints(fleet.group)
            back = Checkpoint(fleet.group, "0", 4, None, mark.epoch, mark.etag)
            await fleet.store.update_checkpoint(back, rewind=True)
            await fleet.send(1)
            await fleet.until(lambda: fleet.sequences("0").count(5) == 2, "it to start again")
            await fleet.until_handled()
            assert fleet.hosts["a"].owned == ("0",)

    run(scenario())


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [([], 0), ([200], 1), ([200, 1], 1), ([50, 50, 1], 2), ([50, 51], 1), ([1, 1, 1], 3)],
)
def test_a_batch_is_cut_at_its_byte_limit(sizes: list[int], taken: int) -> None:
    events = [Event(b"x" * size, sequence=number) for number, size in enumerate(sizes)]
    batch, rest = cut(events, 100)
    assert len(batch) == taken
    assert batch + rest == events
