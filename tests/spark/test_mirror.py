"""Progress in a store of others: what is written when a query has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pumphouse.client.base import ReaderOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.factory import open_client
from pumphouse.events import EARLIEST
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.lag.known_positions import PositionHistory, SourceProgress, progress_of_sources
from pumphouse.spark.lag.listener import MirroredHub

from .conftest import Hub
from .runs import Run


async def written(store: str, hub: Hub) -> dict[str, int | None]:
    group = Group(parse_connection_string(hub.connection).authority, "sensors", "$Default")
    async with open_store(store) as opened:
        return {one.partition: one.sequence for one in await opened.list_checkpoints(group)}


async def test_a_partition_that_cannot_be_asked_holds_up_no_other(hub: Hub, tmp_path: Path) -> None:
    """Somebody reads it with an epoch: those without one are refused there."""
    for partition in "01":
        await asyncio.to_thread(hub.send, *"abc", partition=partition)
    store = f"sqlite://{tmp_path}/leases.db"
    mirrored = MirroredHub(parse_connection_string(hub.connection), "$Default", store)
    ends = {"0": 2, "1": 3}
    mirrored.follow(
        SourceProgress("sensors", ends, ends, {}, (), reader=mirrored.reader), PositionHistory()
    )
    async with open_client(hub.connection) as client:
        alone = await client.reader(ReaderOptions("0", "$Default", EARLIEST, epoch=7))
        await asyncio.to_thread(mirrored.finish)
        await alone.close()
    assert await written(store, hub) == {"1": 2}


def reported(hub: Hub, **options: str) -> SourceProgress:
    """What a query says of itself after its first batch."""
    with Run(hub, **options) as run:
        run.plan()
        progress = {"endOffset": run.offset, "latestOffset": run.reported()}
    (source,) = progress_of_sources({"sources": [progress]})
    return source


async def test_the_progress_of_another_group_is_not_ours(hub: Hub, tmp_path: Path) -> None:
    """Two queries read the same hub; who takes over from one must not go on behind the other."""
    hub.house.create_group("sensors", "other")
    await asyncio.to_thread(hub.send, *"abc", partition="0")
    store = f"sqlite://{tmp_path}/leases.db"
    mirrored = MirroredHub(parse_connection_string(hub.connection), "$Default", store)
    for group, sequences in (("other", {}), ("$Default", {"0": 2})):
        source = await asyncio.to_thread(reported, hub, consumerGroup=group)
        memory = PositionHistory()
        memory.learn(source.marks)
        await asyncio.to_thread(mirrored.follow, source, memory)
        assert await written(store, hub) == sequences
