"""Progress of a query, written into a checkpoint store where other tools look for it.

Spark keeps its own offsets and never reads these. They are for dashboards, for lag alarms, and for
a processor that takes over. They are written in the form that the official SDKs share, so a place
is written only if its offset is known; and never backwards.

    commit(end), progress -> Mirror.write -> CheckpointStore
                             ^^^^^^ this module
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
from pumphouse.spark.lag.known_positions import KnownPosition

log = logging.getLogger("pumphouse.spark")

TRIES = 3  # somebody else may write at the same time
WRITE_S = 60.0
LAST_S = 10.0


class CheckpointMirror:
    """Writes the last events read of one consumer group."""

    def __init__(self, store: str | StoreUrl, group: Group) -> None:
        self.place = parse_store_url(store) if isinstance(store, str) else store
        self.group = group
        self._written: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Mirror of {self.group} in {self.place.kind}>"

    def write(
        self, marks: Mapping[str, KnownPosition], epochs: Mapping[str, int] | None = None
    ) -> None:
        """Write what is new; what goes wrong is logged, since a query must not fail for it.

        With `epochs`, those of a tenant, nothing is written that a later owner has fenced off.
        """
        new = {one: mark for one, mark in marks.items() if self.is_new(one, mark)}
        if not new:
            return
        try:
            asyncio.run(asyncio.wait_for(self.write_all(new, epochs or {}), WRITE_S))
        except (PumphouseError, OSError, TimeoutError) as failed:
            log.warning("mirror group=%s not written: %s", self.group, failed)

    def is_new(self, partition: str, mark: KnownPosition) -> bool:
        return mark.offset is not None and mark.sequence > self._written.get(partition, -1)

    async def write_all(
        self, marks: Mapping[str, KnownPosition], epochs: Mapping[str, int]
    ) -> None:
        async with open_store(self.place) as store:
            known = {one.partition: one for one in await store.list_checkpoints(self.group)}
            for partition, mark in marks.items():
                current = known.get(partition) or Checkpoint(self.group, partition)
                if await write_one(store, current, mark, epochs.get(partition)):
                    self._written[partition] = mark.sequence


async def write_one(
    store: CheckpointStore, current: Checkpoint, mark: KnownPosition, epoch: int | None = None
) -> bool:
    """Whether the place is written, or one behind it already was."""
    for _ in range(TRIES):
        if epoch is not None and current.epoch != epoch:
            log.info("checkpoint partition=%s of epoch %s is fenced off", current.partition, epoch)
            return False
        wanted = advance(current, mark.sequence, mark.offset, mark.enqueued_ms)
        if goes_back(current, wanted):
            return True
        match await store.update_checkpoint(wanted):
            case Granted():
                return True
            case Refused(current=Checkpoint() as theirs):
                current = theirs
            case _:
                return False
    return False


class BackgroundMirror:
    """A mirror that nobody waits for: what has not been written when more comes is left out."""

    def __init__(self, mirror: CheckpointMirror) -> None:
        self._mirror = mirror
        self._waiting: queue.Queue[Mapping[str, KnownPosition] | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def write(self, marks: Mapping[str, KnownPosition]) -> None:
        self._put(marks)

    def close(self) -> None:
        """Let what waits be written, if that does not take too long."""
        try:
            self._waiting.put(None, timeout=LAST_S)
        except queue.Full:
            return
        self._thread.join(LAST_S)

    def _put(self, item: Mapping[str, KnownPosition]) -> None:
        while True:
            try:
                return self._waiting.put_nowait(item)
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue

    def _run(self) -> None:
        while (marks := self._waiting.get()) is not None:
            self._mirror.write(marks)
