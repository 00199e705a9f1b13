"""A tenant host: one run of a query, as a host of its consumer group that reads nothing itself.

The engine is that of the processors. It runs in a thread of its own beside the planner, so leases
are renewed however long a batch takes. The planner asks which partitions are ours, and reports what
was planned and what Spark has committed; an evicted task asks what to do.

    TenantDriver -> TenantHost -> TenantBatches -> TenantPartition
                    ^^^^^^^^^^ -> Engine -> store

All state belongs to the thread of the event loop: `async` methods are called through `wait`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import ConnectionFailed, PumphouseError
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store, parse_store_url
from pumphouse.logs import line
from pumphouse.processor.engine import Engine
from pumphouse.processor.partition import PartitionClient
from pumphouse.spark.driver.loop_thread import LoopThread
from pumphouse.spark.identity import open_hub
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.lag.lookup import find_known_position
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.tenancy.batches import PlannablePartition, TenantBatches
from pumphouse.spark.tenancy.evictions import serve_evictions
from pumphouse.spark.tenancy.journal import Journal
from pumphouse.spark.tenancy.options import TenancyOptions, processor_options
from pumphouse.spark.tenancy.spark_commits import is_committed, local_folder

log = logging.getLogger("pumphouse.spark")

T = TypeVar("T")
CLOSE_S = 20.0
REPORTS_S = 0.25  # tasks report their last event a moment after they end
REPORTS_TICK_S = 0.001  # Spark waits meanwhile: every batch may be delayed by this time
TICK_S = 0.02  # between two checks of a condition that is only polled
COMMITS_S = 0.2  # between two reads of Spark's folder, while another host waits for a partition
OWNERS_S = 0.5  # between two look-ups of new owners; Spark asks for a report at every poll

NO_ACTION_NEEDED = "nothing: the checkpoint of the next batch covers it"

ReadPositions = Callable[[], Mapping[str, KnownPosition]]


@dataclass(slots=True)
class RenewalTimes:
    """When each partition was last renewed, and the longest gap between two renewals."""

    clock: Clock
    longest_gap_s: float = 0.0
    renewed_s: dict[str, float] = field(default_factory=dict)

    def record(self, change: str, partition: str) -> None:
        now_s = self.clock.monotonic()
        if change in ("lost", "released"):
            self.renewed_s.pop(partition, None)
        elif change == "renewed":
            gap_s = now_s - self.renewed_s.get(partition, now_s)
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
        if change in ("claimed", "renewed"):
            self.renewed_s[partition] = now_s


class TenantHost:
    """A host that owns partitions for Spark's tasks to read."""

    def __init__(
        self,
        options: SourceOptions,
        tenancy: TenancyOptions,
        name: str,
        journal: Journal,
        *,
        read_positions: ReadPositions,
        address: str,
        clock: Clock | None = None,
    ) -> None:
        self.options, self.tenancy, self.name = options, tenancy, name
        self.clock: Clock = clock or SystemClock()
        self._client: HubClient = open_hub(options.identity)
        self.batches = TenantBatches(
            name,
            tenancy,
            open_store(parse_store_url(tenancy.store)),
            Group(self._client.namespace, options.identity.hub, options.group),
            self.clock,
            journal=journal,
            find_positions=self._find_positions,
            check_running=self._check_running,
        )
        self._read_positions, self._listen_on = read_positions, address
        self._folder = local_folder(tenancy.folder)
        self._renewals = RenewalTimes(self.clock)
        self._owners_read_s = self.clock.monotonic() - OWNERS_S
        self.thread = LoopThread("tenant host", CLOSE_S)

    def __repr__(self) -> str:
        owned = " ".join(partition.name for partition in self.batches.owned())
        return f"<TenantHost {self.name} | {owned or 'owns nothing'}>"

    # -- called from other threads ----------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T], limit_s: float | None = None) -> T:
        """Run `work` in the event loop; by default no longer than `operationTimeout`."""
        limit_s = limit_s or self.options.identity.operation_timeout_s
        try:
            return self.thread.run(work, limit_s)
        except TimeoutError:
            raise ConnectionFailed(
                f"host {self.name} did not complete a call within {limit_s:g} s; check the hub and "
                "the store"
            ) from None

    def close(self) -> None:
        """Write the known checkpoints, release the partitions, leave the group, within CLOSE_S."""
        self.thread.close(self._leave())

    # -- start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        async with open_store(parse_store_url(self.tenancy.store)) as store:
            await self.batches.load_journal(store)
        self._engine = Engine(
            lambda: self._client,
            self._serve,
            store=self.batches.store,
            group=self.options.group,
            strategy=self.tenancy.assignment,
            host=self.name,
            options=processor_options(self.tenancy),
            on_ownership=self._on_ownership,
            clock=self.clock,
        )
        await self._engine.start()
        self._server, self.evictions = await serve_evictions(self._listen_on, self.batches.decide)
        self._running = asyncio.ensure_future(self._engine.wait())
        self._watching = asyncio.ensure_future(self._watch_commits())
        log.info("%s", line("tenant_started", host=self.name, assignment=self.tenancy.assignment))

    async def _leave(self) -> None:
        """Stop. With assignment=fixed nothing is released: the leases expire later."""
        self._server.close()
        await self.batches.commit_if(self._is_committed)
        for partition in self.batches.owned():
            partition.end_batch()  # Spark reports no more commits
        if self.tenancy.keeps_partitions:
            await self._write_checkpoints()
        await self.stop_engine(abandon=self.tenancy.keeps_partitions)

    async def stop_engine(self, *, abandon: bool) -> None:
        """Stop; with `abandon` release no partition, as after a crash."""
        self._server.close()
        self._watching.cancel()
        if abandon:
            self._engine.abandon()
        await self._engine.stop()

    async def _write_checkpoints(self) -> None:
        """Wait until all checkpoints are written, or a third of the lease has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.tenancy.lease_s / 3):
                while any(partition.has_unwritten for partition in self.batches):
                    await self.clock.sleep(TICK_S)

    # -- what the engine calls --------------------------------------------------------------------

    async def _serve(self, term: PartitionClient) -> None:
        await self.batches.partition(term.id).serve(term)

    def _on_ownership(self, change: str, partition: str) -> None:
        self._renewals.record(change, partition)
        self.batches.partition(partition).wake()
        if change == "lost":
            self.batches.record_loss(partition)

    def _check_running(self) -> None:
        """Raise the error that ended the engine, if it has ended."""
        if self._running.done():
            self._running.result()

    # -- planning ---------------------------------------------------------------------------------

    async def settle(self, limit_s: float, *, fully: bool) -> None:
        """Wait for the first partitions: for our share (`fully`), or for any."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self._is_settled(fully):
                    self._check_running()
                    await self.clock.sleep(TICK_S)

    def _is_settled(self, fully: bool) -> bool:
        """Whether we own enough. A partition counts when its term begins, soon after its claim."""
        owned = self._engine.owned
        enough = self._engine.settled or (bool(owned) and not fully)
        return enough and all(self.batches.partition(name).is_owned for name in owned)

    async def plannable(self) -> list[PlannablePartition]:
        self._check_running()
        return self.batches.plannable()

    async def start_partition(self, name: str, position: int, before: KnownPosition | None) -> None:
        partition = self.batches.partition(name)
        if partition.is_owned:
            partition.start_at(position, before)

    async def begin_batch(self, end: Mapping[str, Any], journal: Journal) -> None:
        self.batches.begin(end, journal)

    async def end_planning(self) -> None:
        """End a planning that gives no batch: it failed, or there is nothing to read."""
        self.batches.end_idle()

    # -- positions and commits --------------------------------------------------------------------

    async def _find_positions(self, sequences: Mapping[str, int]) -> dict[str, KnownPosition]:
        """The positions of these events, as tasks reported them or else read from the hub."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORTS_S if self.options.feedback else TICK_S):
                while len(known := self._reported(sequences)) < len(sequences):
                    await self.clock.sleep(REPORTS_TICK_S)
        known = self._reported(sequences)
        missing = [name for name in sequences if name not in known]
        looked_up = await asyncio.gather(*(self.look_up(name, sequences[name]) for name in missing))
        return known | {
            name: position
            for name, position in zip(missing, looked_up, strict=True)
            if position is not None
        }

    def _reported(self, sequences: Mapping[str, int]) -> dict[str, KnownPosition]:
        return {
            name: position
            for name, position in self._read_positions().items()
            if sequences.get(name) == position.sequence and position.offset is not None
        }

    async def look_up(self, name: str, sequence: int) -> KnownPosition | None:
        """One event, read from the hub. No task reads while Spark plans, so none is evicted."""
        partition = self.batches.partition(name)
        if not partition.is_live:
            return None
        options = ReaderOptions(
            name, self.options.group, epoch=partition.term.epoch, name=self.name
        )
        try:
            return await find_known_position(self._client, options, sequence)
        except PumphouseError as failed:
            log.warning(
                "%s",
                line(
                    "position_unknown", partition=name, sequence=sequence, error=failed,
                    todo=NO_ACTION_NEEDED,
                ),
            )  # fmt: skip
            return None

    def _is_committed(self, end: Mapping[str, Any]) -> bool:
        """Whether Spark's own files show that the batch with this end is committed."""
        return self._folder is not None and is_committed(self._folder, end)

    async def _watch_commits(self) -> None:
        """While another host waits for a partition, find commits before Spark's next trigger."""
        while self._folder is not None:
            await self.clock.sleep(COMMITS_S)
            if self.batches.delays_hand_over:
                await self.batches.commit_if(self._is_committed)

    # -- reports ----------------------------------------------------------------------------------

    async def report(self) -> dict[str, Any]:
        """The state of the tenant, for the progress of the query."""
        await self._name_new_owners()
        owned = self.batches.owned()
        return {
            "host": self.name,
            "assignment": self.tenancy.assignment,
            "owns": {each.name: each.term.epoch for each in owned if each.is_live},
            "leaving": [each.name for each in owned if each.is_leaving],
            "lost": [each.loss.to_json() for each in self.batches if each.loss is not None],
            "renewalGapSeconds": round(self._renewals.longest_gap_s, 3),
        }

    async def _name_new_owners(self) -> None:
        now_s = self.clock.monotonic()
        if not self.batches.losses_without_owner() or now_s < self._owners_read_s + OWNERS_S:
            return
        self._owners_read_s = now_s
        with suppress(PumphouseError):
            await self.batches.name_new_owners()
