"""A disk that cannot sync: the partition stops and the hub logs it, in every sync mode."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pumphouse.amqp.performatives import Accepted
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ALWAYS, INTERVAL, NEVER
from pumphouse.hub.storage.base import DiskStorage
from pumphouse.hub.storage.writer import FileTask
from tests.hub.peer import HUB, Peer, event, eventually, rejection


def fail(fd: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


async def outcome(peer: Peer, link: Any) -> str:
    """The condition with which an event is rejected; "" if it is accepted."""
    state = await peer.send(link, event(b"x"))
    return "" if state == Accepted() else rejection(state).condition


async def sync_now(hub: EmbeddedHub) -> None:
    """Run a task of the writer, such as the end of a segment: it syncs before, in every mode."""
    storage = hub.namespace.storage
    assert isinstance(storage, DiskStorage)
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    storage.writer.put(FileTask(lambda: None, done.set_result))
    assert await asyncio.wait_for(done, 10) is None


@pytest.mark.parametrize("sync", [ALWAYS, INTERVAL, NEVER])
async def test_a_failed_sync_stops_the_partition_and_no_other(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedHub({HUB: 2}, data=tmp_path, sync=sync) as hub:
        peer = await Peer.connect(hub)
        stopped, working = [await peer.sender(f"{HUB}/Partitions/{n}", f"{n}") for n in (0, 1)]
        assert await outcome(peer, working) == ""
        await sync_now(hub)  # the disk is in order up to here
        monkeypatch.setattr(os, "fdatasync", fail)
        acknowledged = await outcome(peer, stopped) == ""
        assert acknowledged == (sync != ALWAYS), "acknowledged before the sync"
        if sync == NEVER:
            await sync_now(hub)
        await eventually(lambda: "log_sync_failed" in caplog.text, "the sync to fail")
        monkeypatch.undo()
        for _ in range(3):
            assert await outcome(peer, stopped) == "amqp:internal-error"
        assert await outcome(peer, working) == ""
        # What was acknowledged can still be read.
        into = await peer.receiver(f"{HUB}/ConsumerGroups/$Default/Partitions/0", credit=10)
        assert hub.namespace.hub(HUB).partitions[0].log.next_sequence == acknowledged
        await peer.until(lambda: len(peer.bodies(into)) == acknowledged)
        await peer.drop()
    [report] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert f"{os.sep}0{os.sep}" in report
    assert "this partition accepts no events until then" in report
