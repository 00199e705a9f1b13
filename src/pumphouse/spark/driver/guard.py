"""Notices another query in the consumer group, also while no task of this one reads.

The hub compares only readers that are attached, and tasks attach for milliseconds: two queries in
one group would both read for a while. So after each batch the driver attaches a reader of its own,
the guard, for a short time. Its epoch is above those of the batch and below those of the next one:
the tasks of this query evict it, those of an older query are refused, and those of a newer one
evict it too, which ends this query.

    AllPartitionsDriver -> GroupGuard.hold -> reader of one partition -> GroupGuard.check -> error
                           ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import LATEST
from pumphouse.logs import line
from pumphouse.spark.driver.hub_state import HubState
from pumphouse.spark.read.siblings import other_reader, query_of, taken_error

log = logging.getLogger("pumphouse.spark")

GUARD_S = 10.0  # after this time without a batch other readers may use the group
PAUSE_S = 0.2  # between two events that the guard receives and drops


class GroupGuard:
    """The guard of one query."""

    def __init__(self, hub_state: HubState, group: str) -> None:
        self._hub_state, self._group = hub_state, group
        self._holding: Future[None] | None = None
        self._taken: PumphouseError | None = None

    def check(self) -> None:
        """Raise if another query has taken the group."""
        if self._taken is not None:
            raise self._taken

    def hold(self, partition: str, epoch: int, name: str) -> None:
        """Attach the guard, without waiting; `name` is that of the readers of the last batch."""
        if self._holding is not None:
            self._holding.cancel()
        own = name.rpartition("-")[0] + "-"
        self._holding = self._hub_state.start(self._hold(partition, epoch, own))

    async def _hold(self, partition: str, epoch: int, name: str) -> None:
        options = ReaderOptions(partition, self._group, LATEST, epoch=epoch, prefetch=1, name=name)
        try:
            reader = await self._hub_state.open_reader(options)
            try:
                async with asyncio.timeout(GUARD_S):
                    while True:
                        await reader.receive(1, GUARD_S)
                        await asyncio.sleep(PAUSE_S)
            finally:
                await reader.close()
        except ReaderEvicted as evicted:
            other = query_of(other_reader(evicted))
            if other and other != query_of(name):
                self._taken = taken_error(self._group, partition, evicted)
        except (PumphouseError, TimeoutError) as failed:
            log.debug("%s", line("guard_ended", partition=partition, error=failed))
