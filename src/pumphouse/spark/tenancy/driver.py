"""The driver of a query that shares its consumer group: it plans only the partitions it owns.

Spark calls a tenant as it calls any source, and the calls show what Spark has done. When it plans
the batch after an offset, it has committed the batch that ends there. When it asks for the tasks of
a batch, the batch is about to run, perhaps for a second time.

    Spark -> StreamReader -> TenantDriver -> Planner     (how much to read)
                             ^^^^^^^^^^^^ -> TenantHost  (what is owned, what is committed)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex

from pumphouse.events import Position
from pumphouse.spark.driver.base import (
    ColumnSelection,
    Offset,
    QueryRun,
    TaskPartition,
    make_task,
    newest_positions,
    planned_hub,
)
from pumphouse.spark.generation import created_in, old_checkpoint_error
from pumphouse.spark.lag.known_positions import POSITIONS_KEY, TENANCY_KEY, KnownPosition
from pumphouse.spark.offsets import Span, assign_to_tasks, earliest
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import HubSnapshot, is_unstable, sequence_at
from pumphouse.spark.tenancy.batches import PlannablePartition
from pumphouse.spark.tenancy.host import TenantHost
from pumphouse.spark.tenancy.journal import (
    Journal,
    JournalRange,
    complete_ranges,
    from_offset,
    keep_task_numbers,
    to_offset,
)
from pumphouse.spark.tenancy.options import TenancyOptions


class TenantDriver:
    """A `SourceDriver` for a query that is a host of its consumer group."""

    def __init__(self, options: SourceOptions, tenancy: TenancyOptions) -> None:
        # A cycle claims new partitions as soon as it sees them: the planner must know them too.
        discovery_s = min(options.discovery_s, tenancy.interval_s)
        self.options = replace(options, discovery_s=discovery_s)
        self.tenancy = tenancy
        # Without an epoch: look-ups use the epoch of the partition's lease.
        self.run = QueryRun(self.options, epoch=None)
        self.host: TenantHost | None = None  # started by the first batch
        self._name = tenancy.host or f"spark-{token_hex(4)}"
        self._ends = False  # AvailableNow: the run ends after the events that the hub holds now
        self._settled = False
        # Partitions of which the checkpoint is of an earlier hub, and that were started again.
        self._restarted: set[str] = set()

    # -- what Spark asks --------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """No partition is ours yet: each starts when it is claimed."""
        self.run.planner.check_position_options(self.run.hub_state.snapshot())
        return to_offset(self.run.hub, Journal(self._name))

    def default_limit(self) -> int:
        return self.run.default_limit()

    def latest_offset(self, start: Offset, rows: int | None, everything: bool = False) -> Offset:
        host = self.host_for(from_offset(self.run.hub, start))
        host.wait(host.batches.planned_after(start))
        self._settle(host)
        plannable = host.wait(host.plannable())
        if not everything:
            rows = self.run.limit(start, rows, len(plannable))
        try:
            created_ms = created_in(start)
            journal = self._plan(host, plannable, rows, everything, created_ms)
        except BaseException:
            host.wait(host.end_planning())
            raise
        if journal is None:
            host.wait(host.end_planning())
            return start
        end = to_offset(self.run.hub, journal)
        events = sum(planned.count for planned in journal.ranges.values())
        self.run.size.planned(end, events, self.run.clock.monotonic())
        host.wait(host.begin_batch(end, journal))
        return end

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        hub = self.run.hub
        journal = complete_ranges(from_offset(hub, start), from_offset(hub, end))
        host = self.host_for(journal.without_reads())
        epochs = host.wait(host.batches.authorise(end, journal), self._ownership_s)
        snapshot = self.run.hub_state.snapshot()
        spans = assign_to_tasks(journal.spans(), self.options.partitions_per_task or 1)
        if self.run.planner.is_recreated(journal.created_ms, snapshot):
            epochs = {}  # all events of the batch are gone
        return [
            self._task(host, columns, task_spans, task_epochs, snapshot)
            for task_spans, task_epochs in keep_task_numbers(spans, epochs)
        ]

    def _task(
        self,
        host: TenantHost,
        columns: ColumnSelection,
        spans: Sequence[Span],
        epochs: dict[str, int],
        snapshot: HubSnapshot,
    ) -> TaskPartition:
        available = [self.run.planner.check_span(span, snapshot) for span in spans]
        present = tuple(span for span in available if span.count)
        task = make_task(
            self.options, columns, present, None, self.run.reports, host.name, planned_hub(snapshot)
        )
        return TaskPartition(replace(task, epochs=epochs, evictions=host.evictions))

    def waiting(self, start: Offset) -> int:
        """Of the partitions in the journal. One more, for a partition that was claimed since."""
        snapshot = self.run.refresh(blocks=self._ends)
        if snapshot is None:
            return 0
        ends = from_offset(self.run.hub, start).ends
        owned = {name: state for name, state in snapshot.partitions.items() if name in ends}
        return 1 + self.run.planner.waiting(ends, replace(snapshot, partitions=owned))

    def report(self) -> Offset:
        report = self.run.report()
        if self.host is None:
            return report
        tenancy = self.host.wait(self.host.report())
        owned = tenancy["owns"]
        for key in (self.run.hub, POSITIONS_KEY):
            report[key] = {
                name: value
                for name, value in report[key].items()
                if name.partition("/")[0] in owned
            }
        return {**report, TENANCY_KEY: tenancy}

    def committed(self, end: Offset) -> None:
        """Nothing to do: `latest_offset` has already recorded the commit."""

    def end_at_newest(self) -> None:
        self._ends = True
        self.run.end_at_newest()

    def close(self) -> None:
        if self.host is not None:
            self.host.close()
        self.run.close()

    # -- the host ---------------------------------------------------------------------------------

    @property
    def _ownership_s(self) -> float:
        """How long it may take until every partition has a known owner."""
        return 2 * (self.tenancy.lease_s + 2 * self.tenancy.interval_s)

    def host_for(self, journal: Journal) -> TenantHost:
        """The host of this run, started at the first call; it keeps the journal's host name."""
        if self.host is None:
            host = TenantHost(
                self.options,
                self.tenancy,
                self.tenancy.host or journal.host or self._name,
                journal,
                read_positions=self.run.read_positions,
                address=self.run.host,
                clock=self.run.clock,
            )
            host.wait(host.start())
            self.host = host
        return self.host

    def _settle(self, host: TenantHost) -> None:
        """Before the first batch wait for a partition, or with AvailableNow for our whole share."""
        if not self._settled:
            limit_s = self._ownership_s / 2
            host.wait(host.settle(limit_s, fully=self._ends), self._ownership_s)
            self._settled = True

    # -- planning ---------------------------------------------------------------------------------

    def _plan(
        self,
        host: TenantHost,
        plannable: Sequence[PlannablePartition],
        rows: int | None,
        everything: bool,
        created_ms: int | None,
    ) -> Journal | None:
        """What the next batch reads of the partitions we own; None if nothing is new."""
        snapshot = self.run.refresh(blocks=everything or self._ends)
        if snapshot is None:
            return None
        known = {each.name: each for each in plannable if each.name in snapshot.partitions}
        owned = replace(
            snapshot, partitions={name: snapshot.partitions[name] for name in known}, unavailable=()
        )
        recreated = self.run.planner.is_recreated(created_ms, snapshot)
        for name, each in known.items():
            if recreated or self._has_old_checkpoint(each, snapshot):
                first = earliest(snapshot.partitions[name])
                known[name] = replace(each, position=first)
                host.wait(host.start_partition(name, first, None))
        start = {name: self._start(host, each, owned) for name, each in known.items()}
        epochs = {name: each.epoch for name, each in known.items()}
        statistics, now_s = self.run.statistics(start, owned, epochs), self.run.clock.monotonic()
        planner = self.run.planner
        end = planner.plan_end(start, rows, owned, now_s, statistics, everything=everything)
        start = planner.complete_start(start, owned)
        if all(end[name] <= start[name] for name in start):
            return None
        ranges = {
            name: JournalRange(start[name], end[name], each.epoch) for name, each in known.items()
        }
        return Journal(host.name, ranges, snapshot.created_ms)

    def _has_old_checkpoint(self, partition: PlannablePartition, snapshot: HubSnapshot) -> bool:
        """Whether a new term would continue at a checkpoint that is older than the hub.

        DataLoss if failOnDataLoss=true.
        """
        checkpoint_ms = partition.checkpoint.enqueued_ms if self.tenancy.checkpoints else None
        created_ms = snapshot.created_ms
        if None in (checkpoint_ms, created_ms) or checkpoint_ms >= created_ms:  # type: ignore[operator]
            return False
        if partition.name in self._restarted:
            return False
        if self.options.fail_on_data_loss:
            raise old_checkpoint_error(
                self.run.hub, partition.name, partition.checkpoint.sequence, created_ms
            )
        self._restarted.add(partition.name)
        return True

    def _start(self, host: TenantHost, partition: PlannablePartition, snapshot: HubSnapshot) -> int:
        """The next event to read. For a partition that is new to the group, the options set it."""
        if partition.position is not None:
            return partition.position
        name, state = partition.name, snapshot.partitions[partition.name]

        def resolve(name: str, position: Position) -> int:
            hub_state = self.run.hub_state
            return hub_state.wait(hub_state.find_sequence(name, position, partition.epoch))

        if partition.checkpoint.offset is not None and self.tenancy.checkpoints:
            first = resolve(name, Position("offset", partition.checkpoint.offset))
            host.wait(host.start_partition(name, first, None))
            return first
        position = self.run.planner.start_position(name)
        first = sequence_at(position, state, resolve)
        unstable = is_unstable(position, state)
        before = self._event_before(host, name, first, snapshot) if unstable else None
        host.wait(host.start_partition(name, first, before))
        return first

    def _event_before(
        self, host: TenantHost, name: str, first: int, snapshot: HubSnapshot
    ) -> KnownPosition | None:
        """The event before `first`, for a checkpoint.

        Without a checkpoint, the option might resolve to another start after a restart.
        """
        newest = newest_positions(snapshot).get(name)
        if newest is not None and newest.sequence == first - 1:
            return newest
        if first <= snapshot.partitions[name].first_sequence:
            return None
        return host.wait(host.look_up(name, first - 1))
