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
)
from pumphouse.spark.lag.known_positions import POSITIONS_KEY, TENANCY_KEY, KnownPosition
from pumphouse.spark.offsets import Span, assign_to_tasks
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
        try:
            journal = self._plan(host, plannable, rows, everything)
        except BaseException:
            host.wait(host.begin_nothing())
            raise
        if journal is None:
            host.wait(host.begin_nothing())
            return start
        end = to_offset(self.run.hub, journal)
        host.wait(host.begin_batch(end, journal))
        return end

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        hub = self.run.hub
        journal = complete_ranges(from_offset(hub, start), from_offset(hub, end))
        host = self.host_for(journal.without_reads())
        epochs = host.wait(host.batches.authorise(end, journal), self._ownership_s)
        snapshot = self.run.hub_state.snapshot()
        spans = assign_to_tasks(journal.spans(), self.options.partitions_per_task)
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
        task = make_task(self.options, columns, present, None, self.run.reports, host.name)
        return TaskPartition(replace(task, epochs=epochs, evictions=host.evictions))

    def report(self) -> Offset:
        report = self.run.report()
        if self.host is None:
            return report
        tenancy = self.host.wait(self.host.report())
        owned = tenancy["owns"]
        for key in (self.run.hub, POSITIONS_KEY):
            report[key] = {name: value for name, value in report[key].items() if name in owned}
        return {**report, TENANCY_KEY: tenancy}

    def committed(self, end: Offset) -> None:
        """Nothing to do: `latest_offset` has already recorded the commit."""

    def end_at_newest(self) -> None:
        self._ends = True
        self.run.planner.end_at_newest(self.run.hub_state.refresh())

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
    ) -> Journal | None:
        """What the next batch reads of the partitions we own; None if nothing is new."""
        snapshot = self.run.hub_state.refresh()
        known = {each.name: each for each in plannable if each.name in snapshot.partitions}
        owned = HubSnapshot({name: snapshot.partitions[name] for name in known})
        start = {name: self._start(host, each, owned) for name, each in known.items()}
        statistics, now_s = self.run.statistics(len(start)), self.run.clock.monotonic()
        planner = self.run.planner
        end = planner.plan_end(start, rows, owned, now_s, statistics, everything=everything)
        start = planner.complete_start(start, owned)
        if all(end[name] <= start[name] for name in start):
            return None
        ranges = {
            name: JournalRange(start[name], end[name], each.epoch) for name, each in known.items()
        }
        return Journal(host.name, ranges)

    def _start(self, host: TenantHost, partition: PlannablePartition, snapshot: HubSnapshot) -> int:
        """The next event of a partition; if it is new to the group, as the options say."""
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
        """The event before `first`. Its checkpoint keeps a start that might resolve differently."""
        newest = newest_positions(snapshot).get(name)
        if newest is not None and newest.sequence == first - 1:
            return newest
        if first <= snapshot.partitions[name].first_sequence:
            return None
        return host.wait(host.look_up(name, first - 1))
