"""The progress of a query, mirrored to a checkpoint store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pumphouse.client.base import ReaderOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.factory import open_client
from pumphouse.events import EARLIEST
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.lag.known_positions import (
    KnownPosition,
    PositionHistory,
    SourceProgress,
    progress_of_sources,
)
from pumphouse.spark.lag.listener import MirroredHub
from pumphouse.spark.lag.mirror import CheckpointMirror
from tests.spark.conftest import Hub
from tests.spark.support.readers import Run

GROUP = Group("name.servicebus.windows.net", "sensors")


async def written(store: str, hub: Hub) -> dict[str, int | None]:
    group = Group(parse_connection_string(hub.connection).authority, "sensors", "$Default")
    async with open_store(store) as opened:
        return {row.partition: row.sequence for row in await opened.list_checkpoints(group)}


async def test_a_partition_that_cannot_be_read_does_not_delay_others(
    hub: Hub, tmp_path: Path
) -> None:
    """It has a reader with an epoch: the hub refuses readers without one."""
    for partition in "01":
        await asyncio.to_thread(hub.send, *"abc", partition=partition)
    store = f"sqlite://{tmp_path}/leases.db"
    mirrored = MirroredHub(parse_connection_string(hub.connection), "$Default", store)
    ends = {"0": 2, "1": 3}
    mirrored.follow(
        SourceProgress("sensors", ends, ends, {}, (), reader=mirrored.reader), PositionHistory()
    )
    async with open_client(hub.connection) as client:
        exclusive = await client.reader(ReaderOptions("0", "$Default", EARLIEST, epoch=7))
        await asyncio.to_thread(mirrored.finish)
        await exclusive.close()
    assert await written(store, hub) == {"1": 2}


def reported(hub: Hub, **options: str) -> SourceProgress:
    """The progress of a query after its first batch."""
    with Run(hub, **options) as run:
        run.plan()
        progress = {"endOffset": run.offset, "latestOffset": run.report()}
    (source,) = progress_of_sources({"sources": [progress]})
    return source


async def test_the_progress_of_another_group_is_not_mirrored(hub: Hub, tmp_path: Path) -> None:
    """Two queries read the same hub: each has checkpoints of its own."""
    hub.embedded.create_group("sensors", "other")
    await asyncio.to_thread(hub.send, *"abc", partition="0")
    store = f"sqlite://{tmp_path}/leases.db"
    mirrored = MirroredHub(parse_connection_string(hub.connection), "$Default", store)
    for group, sequences in (("other", {}), ("$Default", {"0": 2})):
        source = await asyncio.to_thread(reported, hub, consumerGroup=group)
        history = PositionHistory()
        history.add(source.positions)
        await asyncio.to_thread(mirrored.follow, source, history)
        assert await written(store, hub) == sequences


async def test_a_mirror_is_fenced_by_the_epoch_of_a_tenant(tmp_path: Path) -> None:
    for epoch, expected in ((3, None), (5, None), (4, 9)):
        url = f"sqlite:///{tmp_path}/{epoch}.db"
        async with open_store(url) as store:
            await store.update_checkpoint(Checkpoint(GROUP, "0", epoch=4))
            await CheckpointMirror(url, GROUP).write_all(
                {"0": KnownPosition(9, "900")}, {"0": epoch}
            )
            (row,) = await store.list_checkpoints(GROUP)
        assert row.sequence == expected


async def test_the_end_of_an_earlier_batch_is_mirrored_when_it_becomes_known(
    hub: Hub, tmp_path: Path
) -> None:
    """A task may report its last event after the progress of its batch."""
    store = f"sqlite://{tmp_path}/leases.db"
    mirrored = MirroredHub(parse_connection_string(hub.connection), "$Default", store)
    history = PositionHistory()

    def progress(end: int) -> SourceProgress:
        return SourceProgress("sensors", {"0": end}, {"0": 9}, {}, (), reader=mirrored.reader)

    await asyncio.to_thread(mirrored.follow, progress(2), history)
    assert await written(store, hub) == {}
    history.add({"0": (KnownPosition(8, "800"), KnownPosition(1, "100"))})
    await asyncio.to_thread(mirrored.follow, progress(5), history)
    assert await written(store, hub) == {"0": 1}
