"""Writes the progress of a query to a checkpoint store, for other tools.

Spark keeps its own offsets and does not read these. They serve dashboards, lag alarms, and a
processor that takes over. They have the form of the official SDKs, so a position is written only if
its offset is known; and a checkpoint never moves back.

    commit(end), progress -> CheckpointMirror.write -> CheckpointStore
                             ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Mapping

from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Checkpoint, Granted, Group, Refused, advance, goes_back
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import StoreUrl, open_store, parse_store_url
from pumphouse.logs import RepeatedFailures, line
from pumphouse.spark.lag.known_positions import KnownPosition

log = logging.getLogger("pumphouse.spark")

ATTEMPTS = 3  # another process may write at the same time
WRITE_S = 60.0
CLOSE_S = 10.0


class CheckpointMirror:
    """Writes the last positions read by one consumer group."""

    def __init__(self, store: str | StoreUrl, group: Group) -> None:
        self.store_url = parse_store_url(store) if isinstance(store, str) else store
        self.group = group
        self._written: dict[str, int] = {}
        self._failures = RepeatedFailures()

    def __repr__(self) -> str:
        return f"<CheckpointMirror of {self.group} in {self.store_url.kind}>"

    def write(
        self, positions: Mapping[str, KnownPosition], epochs: Mapping[str, int] | None = None
    ) -> None:
        """Write the new positions; a failure is logged, since it must not fail the query.

        With the `epochs` of a tenant, a checkpoint that a later owner has fenced is not written.
        """
        new_positions = {
            partition: position
            for partition, position in positions.items()
            if self.is_new(partition, position)
        }
        if not new_positions:
            return
        try:
            asyncio.run(asyncio.wait_for(self.write_all(new_positions, epochs or {}), WRITE_S))
        except (PumphouseError, OSError, TimeoutError) as failed:
            count = self._failures.failed("write", failed)
            if count is not None:
                log.warning("%s", mirror_failed(self.group, failed, count=count))
        else:
            self._failures.succeeded("write")

    def is_new(self, partition: str, position: KnownPosition) -> bool:
        return position.offset is not None and position.sequence > self._written.get(partition, -1)

    async def write_all(
        self, positions: Mapping[str, KnownPosition], epochs: Mapping[str, int]
    ) -> None:
        async with open_store(self.store_url) as store:
            stored = {row.partition: row for row in await store.list_checkpoints(self.group)}
            for partition, position in positions.items():
                current = stored.get(partition) or Checkpoint(self.group, partition)
                if await write_position(store, current, position, epochs.get(partition)):
                    self._written[partition] = position.sequence


async def write_position(
    store: CheckpointStore, current: Checkpoint, position: KnownPosition, epoch: int | None = None
) -> bool:
    """Write one position. True if the store now has it, or a later one."""
    for _ in range(ATTEMPTS):
        if epoch is not None and current.epoch != epoch:
            log.info("%s", line("checkpoint_fenced", partition=current.partition, epoch=epoch))
            return False
        new = advance(current, position.sequence, position.offset, position.enqueued_ms)
        if goes_back(current, new):
            return True
        match await store.update_checkpoint(new):
            case Granted():
                return True
            case Refused(current=Checkpoint() as stored):
                current = stored
            case _:
                return False
    return False


class BackgroundMirror:
    """Writes in a thread, so that Spark does not wait. Only the newest positions are kept."""

    def __init__(self, mirror: CheckpointMirror) -> None:
        self._mirror = mirror
        self._queue: queue.Queue[Mapping[str, KnownPosition] | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def write(self, positions: Mapping[str, KnownPosition]) -> None:
        """Queue the positions; they replace those that are not written yet."""
        while True:
            try:
                return self._queue.put_nowait(positions)
            except queue.Full:
                try:
                    self._queue.get_nowait()
                except queue.Empty:
                    continue

    def close(self) -> None:
        """Write what is queued, and wait for it no longer than a deadline."""
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (positions := self._queue.get()) is not None:
            self._mirror.write(positions)


def mirror_failed(group: Group, failed: object, **fields: object) -> line:
    todo = "check that the store is reachable; the query itself is not affected"
    return line("mirror_failed", group=group, error=failed, **fields, todo=todo)
