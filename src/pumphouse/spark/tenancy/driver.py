"""The driver's side of a query that shares its consumer group: it plans only what it owns.

Spark asks the same questions as of any source. Each is an occasion: asked for the batch after an
offset, we know that the one before it is committed; asked for its parts, that it is about to run,
perhaps for a second time.

    Spark -> StreamReader -> TenantDriver -> Planner  (how much of what waits)
                             ^^^^^^^^^^^^ -> Tenant   (what is ours, what is done)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any

from pumphouse.events import Position
from pumphouse.spark.lag.known_positions import POSITIONS_KEY, TENANCY_KEY, KnownPosition
from pumphouse.spark.lag.task_reports import reachable_host
from pumphouse.spark.offsets import assign_to_tasks
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import HubSnapshot, is_unstable, place
from pumphouse.spark.source import (
    AllPartitionsDriver,
    ColumnSelection,
    TaskPartition,
    make_task,
    newest_positions,
)
from pumphouse.spark.tenancy.journal import (
    Journal,
    Stretch,
    Tenancy,
    between,
    from_offset,
    kept_in_place,
    to_offset,
)
from pumphouse.spark.tenancy.tenant import Room, Tenant


class TenantDriver(AllPartitionsDriver):
    """The memory of one run of a query that is a tenant of its group."""

    def __init__(self, options: SourceOptions, tenancy: Tenancy) -> None:
        # New partitions become ours as soon as a cycle sees them: the planner must know them too.
        brief_s = min(options.discovery_s, tenancy.interval_s)
        super().__init__(replace(options, discovery_s=brief_s))
        self.hub_state.epoch = None  # what is looked up, is so with the epoch of its row
        self.tenancy = tenancy
        self._tenant: Tenant | None = None
        self._name = tenancy.host or f"spark-{token_hex(4)}"
        self._ends = False  # the run ends when everything that is there now was read
        self._settled = False

    # -- what Spark asks --------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Nothing is ours yet: each partition starts when it becomes so."""
        self.planner.check_starts(self.hub_state.view())
        return to_offset(self.hub, Journal(self._name))

    def latest(
        self, start: dict[str, Any], rows: int | None, everything: bool = False
    ) -> dict[str, Any]:
        journal = from_offset(self.hub, start)
        tenant = self.tenant(journal)
        tenant.wait(tenant.heard(start))
        self.settle(tenant)
        rooms = tenant.wait(tenant.rooms())
        try:
            end = self.plan(tenant, rooms, rows, everything)
        except BaseException:
            tenant.wait(tenant.unplanned())
            raise
        if end is None:
            tenant.wait(tenant.unplanned())
            return start
        offset = to_offset(self.hub, end)
        tenant.wait(tenant.planned(offset, end))
        return offset

    def parts(
        self, start: dict[str, Any], end: dict[str, Any], columns: ColumnSelection
    ) -> list[TaskPartition]:
        before, planned = from_offset(self.hub, start), from_offset(self.hub, end)
        planned = between(before, planned)
        tenant = self.tenant(quiet(planned))
        mine = tenant.wait(tenant.rights.entitle(end, planned), self.patience_s)
        view = self.hub_state.view()
        tasks = kept_in_place(
            assign_to_tasks(planned.spans(), self.options.partitions_per_task), mine
        )
        return [self.work(tenant, columns, spans, epochs, view) for spans, epochs in tasks]

    def work(
        self,
        tenant: Tenant,
        columns: ColumnSelection,
        spans: Sequence[Any],
        epochs: dict[str, int],
        view: HubSnapshot,
    ) -> TaskPartition:
        there = tuple(one for span in spans if (one := self.planner.checked(span, view)).count)
        task = make_task(self.options, columns, there, None, self.feedback, tenant.host)
        return TaskPartition(replace(task, epochs=epochs, appeals=tenant.appeals.address))

    def report(self) -> dict[str, Any]:
        if self._tenant is None:
            return super().report()
        told = self._tenant.wait(self._tenant.report())
        found = super().report()
        return {
            **found,
            self.hub: {one: last for one, last in found[self.hub].items() if one in told["owns"]},
            POSITIONS_KEY: {
                one: mark for one, mark in found[POSITIONS_KEY].items() if one in told["owns"]
            },
            TENANCY_KEY: told,
        }

    def committed(self, end: dict[str, Any]) -> None:
        """Said too late to matter: that the next batch was planned has told it already."""

    def freeze(self) -> None:
        self._ends = True
        super().freeze()

    def close(self) -> None:
        if self._tenant is not None:
            self._tenant.close()
        super().close()

    # -- the tenant -------------------------------------------------------------------------------

    @property
    def patience_s(self) -> float:
        """How long it may take until it is known whose everything is."""
        return 2 * (self.tenancy.lease_s + 2 * self.tenancy.interval_s)

    def tenant(self, journal: Journal) -> Tenant:
        """The host that we are, by the name that we had before if none was given."""
        if self._tenant is None:
            place = self.options.identity.connection
            tenant = Tenant(
                self.options,
                self.tenancy,
                self.tenancy.host or journal.host or self._name,
                journal,
                marks=self.marks,
                address=reachable_host(place.host, place.port),
                clock=self.clock,
            )
            tenant.wait(tenant.start())
            self._tenant = tenant
        return self._tenant

    def settle(self, tenant: Tenant) -> None:
        """The first batch waits until we own something; a run that ends, until we own our share."""
        if not self._settled:
            limit_s = self.patience_s / 2
            tenant.wait(tenant.settle(limit_s, fully=self._ends), self.patience_s)
            self._settled = True

    # -- planning ---------------------------------------------------------------------------------

    def plan(
        self, tenant: Tenant, rooms: Sequence[Room], rows: int | None, everything: bool
    ) -> Journal | None:
        """What the next batch reads of what is ours; None if there is nothing."""
        view = self.hub_state.fresh()
        there = {room.partition: room for room in rooms if room.partition in view.partitions}
        owned = HubSnapshot({one: view.partitions[one] for one in there})
        begin = {one: self.begins(tenant, room, owned) for one, room in there.items()}
        seen = self.statistics(len(begin))
        now_s = self.clock.monotonic()
        end = self.planner.latest(begin, rows, owned, now_s, seen, everything=everything)
        begin = self.planner.beginning(begin, owned)
        if all(end[one] <= begin[one] for one in begin):
            return None
        return Journal(
            tenant.host,
            {one: Stretch(begin[one], end[one], room.epoch) for one, room in there.items()},
        )

    def begins(self, tenant: Tenant, room: Room, view: HubSnapshot) -> int:
        """The next event of a partition; for one that is new to the group, as the options say."""
        if room.position is not None:
            return room.position
        found = view.partitions[room.partition]

        def resolve(partition: str, position: Position) -> int:
            return self.hub_state.wait(self.hub_state.find(partition, position, room.epoch))

        if room.found.offset is not None and self.tenancy.checkpoints:
            number = resolve(room.partition, Position("offset", room.found.offset))
            tenant.wait(tenant.starts_at(room.partition, number, None))
            return number
        wanted = self.planner.position(room.partition)
        first = place(wanted, found, resolve)
        before = (
            self.event_before(tenant, room, view, first) if is_unstable(wanted, found) else None
        )
        tenant.wait(tenant.starts_at(room.partition, first, before))
        return first

    def event_before(
        self, tenant: Tenant, room: Room, view: HubSnapshot, first: int
    ) -> KnownPosition | None:
        """The event before a start that could mean another one later: it is written down."""
        newest = newest_positions(view).get(room.partition)
        if newest is not None and newest.sequence == first - 1:
            return newest
        found = view.partitions[room.partition]
        if first <= found.first_sequence:
            return None
        return tenant.wait(tenant.look(room.partition, first - 1))


def quiet(planned: Journal) -> Journal:
    """What of a batch that must be replayed is known to be handled: where it reads nothing."""
    still = {one: each for one, each in planned.stretches.items() if not each.count}
    return replace(planned, stretches=still)
