"""The batch in flight of a tenant, with ownership terms that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from pumphouse.clock import SystemClock
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.tenancy.batches import TenantBatches
from pumphouse.spark.tenancy.journal import Journal, JournalRange
from pumphouse.spark.tenancy.options import TenancyOptions
from pumphouse.spark.tenancy.states import State

GROUP = Group("name.servicebus.windows.net", "sensors")
OPTIONS = TenancyOptions(
    assignment="steady", store="memory:", host="one", lease_s=30, renew_s=10, interval_s=10,
    hand_off_s=None, checkpoints=True, folder="",
)  # fmt: skip


class FakeTerm:
    """An ownership term: the test requests its end, and sees its checkpoints."""

    def __init__(self, name: str, epoch: int = 1) -> None:
        self.id, self.epoch, self.live = name, epoch, True
        self.reason: StopReason | None = None
        self.start_checkpoint = Checkpoint(GROUP, name, None, None, epoch)
        self.checkpoints: list[int | None] = []
        self._stopping = asyncio.Event()

    def stop(self, reason: StopReason) -> None:
        self.reason = reason
        self._stopping.set()

    async def wait_until_stopping(self) -> None:
        await self._stopping.wait()

    async def write_checkpoint(self, last: Event, events: int = 0) -> None:
        self.checkpoints.append(last.sequence)


class Positions:
    """Known positions, which a test can delay."""

    def __init__(self) -> None:
        self.available = asyncio.Event()
        self.available.set()

    async def find(self, sequences: Mapping[str, int]) -> dict[str, KnownPosition]:
        await self.available.wait()
        return {name: KnownPosition(number, str(number)) for name, number in sequences.items()}


def make_batches(positions: Positions) -> TenantBatches:
    return TenantBatches(
        "one", OPTIONS, MemoryStore(), GROUP, SystemClock(), journal=Journal(),
        find_positions=positions.find, check_running=lambda: None,
    )  # fmt: skip


async def serve(batches: TenantBatches, term: FakeTerm) -> asyncio.Task[None]:
    partition = batches.partition(term.id)
    task = asyncio.create_task(partition.serve(cast("PartitionClient", term)))
    await asyncio.sleep(0)  # the task runs up to its first wait
    assert partition.is_owned
    partition.position = 0
    return task


def plan(batches: TenantBatches, last: int) -> dict[str, Any]:
    """Plan a batch that reads every plannable partition; its end."""
    ranges = {
        partition.name: JournalRange(partition.position or 0, last, partition.epoch)
        for partition in batches.plannable()
    }
    end = {"sensors": dict.fromkeys(ranges, last)}
    batches.begin(end, Journal("one", ranges))
    return end


async def test_a_partition_is_handed_over_after_the_commit_of_its_batch() -> None:
    batches = make_batches(Positions())
    term = FakeTerm("0")
    serving = await serve(batches, term)
    end = plan(batches, 10)
    term.stop(StopReason.HAND_OFF)
    await asyncio.sleep(0)
    assert batches.partition("0").state is State.DRAINING
    assert batches.delays_hand_over
    await batches.planned_after(end)
    await serving
    assert term.checkpoints == [9]
    assert batches.partition("0").state is State.RELEASED


async def test_a_batch_that_was_never_run_is_planned_again() -> None:
    batches = make_batches(Positions())
    await serve(batches, FakeTerm("0"))
    plan(batches, 10)
    await batches.planned_after({"sensors": {"0": 0}})
    (partition,) = batches.plannable()
    assert partition.position == 0


async def test_the_next_batch_waits_for_a_commit_under_way() -> None:
    """The commit was seen in Spark's folder; its positions are not known yet."""
    positions = Positions()
    batches = make_batches(positions)
    leaving, staying = FakeTerm("0"), FakeTerm("1")
    serving = await serve(batches, leaving)
    await serve(batches, staying)
    end = plan(batches, 10)
    leaving.stop(StopReason.HAND_OFF)
    positions.available.clear()
    committing = asyncio.create_task(batches.commit_if(lambda end: True))
    await asyncio.sleep(0)

    async def plan_next() -> None:
        await batches.planned_after(end)
        plan(batches, 20)

    planning = asyncio.create_task(plan_next())
    for _ in range(5):
        await asyncio.sleep(0)
    positions.available.set()
    await asyncio.gather(committing, planning, serving)
    assert leaving.checkpoints == [9]  # written before the hand-over
    assert batches.partition("1").state is State.READING  # in the next batch
