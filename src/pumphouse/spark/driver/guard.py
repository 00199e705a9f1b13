"""Notices another query in the consumer group, also while no task of this one reads.

The hub compares only readers that are attached, and tasks attach for milliseconds: two queries in
one group could both read without an end. So from its first batch on the driver keeps a reader of
its own attached to the first partition, the guard. Its epoch is above those of every older query
and below those of this one. Tasks of this query evict it, and it attaches again after them. An
older query is refused, and a newer one evicts or refuses the guard, which ends this query.

The driver learns from the hub which query it works for: until then the guard is a probe, which
reads a partition of the next batch and is evicted by a task, whose reader has the id of the query
in its name.

    AllPartitionsDriver -> GroupGuard.begin_batch -> reader of one partition -> GroupGuard.check
                           ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import LATEST
from pumphouse.logs import line
from pumphouse.spark.driver.hub_state import HubState
from pumphouse.spark.read.siblings import (
    BATCH_EPOCH,
    guard_name,
    other_reader,
    query_of,
    taken_error,
)

log = logging.getLogger("pumphouse.spark")

RETRY_S = 2.0  # after an eviction: tasks of this query may still read
PROBE_S = 5.0  # the longest wait until the probe is attached
RECEIVE_S = 60.0
PAUSE_S = 0.5  # between two events that the guard receives and drops


@dataclass(frozen=True, slots=True)
class GuardedBatch:
    """A batch of which the tasks are planned."""

    partition: str  # one that it reads
    guarded: str  # the partition that the guard reads
    epoch: int  # of its tasks: this one, and those up to the next batch

    def has_epoch(self, epoch: int | None) -> bool:
        return epoch is not None and self.epoch <= epoch < self.epoch + BATCH_EPOCH


class GroupGuard:
    """The guard of one run of a query, with the epoch below those of the run."""

    def __init__(self, hub_state: HubState, group: str) -> None:
        self._hub_state, self._group = hub_state, group
        self._name = ""  # of the guard; it has the id of the query
        self._running: Future[None] | None = None
        self._attempted = threading.Event()  # to attach
        self._taken: PumphouseError | None = None

    def check(self) -> None:
        """Raise if another query has taken the group."""
        if self._taken is not None:
            raise self._taken

    def begin_batch(self, batch: GuardedBatch) -> None:
        """Keep the guard attached from now on. Until the query is known, attach the probe."""
        if self._name:
            return  # it is attached for the rest of the run
        self.close()
        self._attempted.clear()
        self._running = self._hub_state.start(self._guard(batch))
        self._attempted.wait(PROBE_S)  # the probe must be there before the tasks

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _guard(self, batch: GuardedBatch) -> None:
        while self._taken is None:
            if self._name:
                partition, name = batch.guarded, self._name
            else:
                partition, name = batch.partition, self._hub_state.reader_name
            evicted = await self._read(partition, name)
            if evicted is not None:
                self._notice(evicted, batch)
            await asyncio.sleep(RETRY_S)

    async def _read(self, partition: str, name: str) -> ReaderEvicted | None:
        """Read until another reader evicts this one, or the hub fails."""
        epoch = (self._hub_state.epoch or 1) - 1
        options = ReaderOptions(partition, self._group, LATEST, epoch=epoch, prefetch=1, name=name)
        try:
            reader = await self._hub_state.open_reader(options)
            self._attempted.set()
            try:
                while True:
                    await reader.receive(1, RECEIVE_S)
                    await asyncio.sleep(PAUSE_S)
            finally:
                await reader.close()
        except ReaderEvicted as evicted:
            return evicted
        except (PumphouseError, TimeoutError) as failed:
            log.debug("%s", line("guard_ended", partition=partition, error=failed))
            return None
        finally:
            self._attempted.set()

    def _notice(self, evicted: ReaderEvicted, batch: GuardedBatch) -> None:
        """Learn the query of the own tasks, or that another query has taken the group."""
        other = other_reader(evicted)
        query = query_of(other)
        if query and not self._name and batch.has_epoch(evicted.epoch):
            self._name = guard_name(other)
        elif query and self._name and query != query_of(self._name):
            self._taken = taken_error(self._group, batch.guarded, evicted)
