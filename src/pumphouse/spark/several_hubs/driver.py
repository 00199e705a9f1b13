"""The driver of a query that reads several hubs: one driver for each hub, and one limit for all.

Spark's offset has the offsets of all hubs side by side, so each hub is planned, checked and, for a
tenant, shared as if it were the only one.

    Spark -> StreamReader -> SeveralHubsDriver -> AllPartitionsDriver or TenantDriver of each hub
                             ^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import ConnectionFailed
from pumphouse.logs import line
from pumphouse.spark.driver.base import ColumnSelection, Offset, SourceDriver, TaskPartition
from pumphouse.spark.driver.batch_size import NO_LIMIT
from pumphouse.spark.offsets import DataLoss, hubs_in, join_hubs, part_of_hub, prorate
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import TriggerDelay
from pumphouse.spark.several_hubs.calls import call_each
from pumphouse.spark.several_hubs.listing import find_hubs
from pumphouse.spark.several_hubs.selection import HubSelection
from pumphouse.spark.several_hubs.sources import Sources

log = logging.getLogger("pumphouse.spark")

OpenDriver = Callable[[SourceOptions], SourceDriver]
Parts = Mapping[str, Offset]  # the offset of each hub


class SeveralHubsDriver:
    """A `SourceDriver` over those of single hubs."""

    def __init__(self, sources: Sources, selection: HubSelection, open_driver: OpenDriver) -> None:
        self.sources, self.selection = sources, selection
        self.clock: Clock = SystemClock()
        self._open_driver = open_driver
        self._drivers: dict[str, SourceDriver] = {}
        self._found_s = float("-inf")
        self._ends = False  # AvailableNow
        self._delay = TriggerDelay(sources.common.limits)
        self._left_out: set[str] = set()  # hubs of the checkpoint, logged already

    # -- what Spark asks --------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        self._find_hubs()
        return join_hubs(call_each(self._drivers, lambda hub: self._drivers[hub].initial_offset()))

    def default_limit(self) -> int:
        return self.sources.common.limits.events or NO_LIMIT

    def latest_offset(self, start: Offset, rows: int | None, everything: bool = False) -> Offset:
        self._find_hubs(start)
        parts = {hub: part_of_hub(start, hub) for hub in self._drivers}
        limit = None if everything else self._limit(rows)
        if limit is None and (everything or self._delay.limits.events_min is None):
            ends = self._plan(parts, dict.fromkeys(parts, rows), everything)
        else:
            waiting = call_each(parts, lambda hub: self._drivers[hub].waiting(parts[hub]))
            if not self._ends and self._delay.waits(sum(waiting.values()), self.clock.monotonic()):
                return start
            ends = self._plan_within(parts, limit, waiting)
        return start if ends == parts else join_hubs(ends)

    def waiting(self, start: Offset) -> int:
        parts = {hub: part_of_hub(start, hub) for hub in self._drivers}
        return sum(call_each(parts, lambda hub: self._drivers[hub].waiting(parts[hub])).values())

    def report(self) -> Offset:
        return join_hubs(call_each(self._drivers, lambda hub: self._drivers[hub].report()))

    def end_at_newest(self) -> None:
        self._find_hubs()
        self._ends = True
        call_each(self._drivers, lambda hub: self._drivers[hub].end_at_newest())

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        self._find_hubs(end)
        parts = {hub: (part_of_hub(start, hub), part_of_hub(end, hub)) for hub in self._drivers}
        # A hub of which the batch reads nothing: its end is that of an earlier batch.
        moved = [hub for hub, (first, last) in parts.items() if first != last]
        tasks = call_each(moved, lambda hub: self._drivers[hub].tasks(*parts[hub], columns))
        return [task for of_hub in tasks.values() for task in of_hub]

    def committed(self, end: Offset) -> None:
        for hub in hubs_in(end):
            if hub in self._drivers:
                self._drivers[hub].committed(part_of_hub(end, hub))

    def close(self) -> None:
        call_each(self._drivers, lambda hub: self._drivers[hub].close())

    # -- limits -----------------------------------------------------------------------------------

    def _limit(self, rows: int | None) -> int | None:
        """The most events of a batch of all hubs; None if each hub has its own limit only."""
        limits = [limit for limit in (rows, self.default_limit()) if limit is not None]
        return None if min(limits) >= NO_LIMIT else min(limits)

    def _plan(self, parts: Parts, rows: Mapping[str, int | None], everything: bool) -> Parts:
        return call_each(
            parts, lambda hub: self._drivers[hub].latest_offset(parts[hub], rows[hub], everything)
        )

    def _plan_within(self, parts: Parts, limit: int | None, waiting: dict[str, int]) -> Parts:
        """The ends of a batch with at most `limit` events, in proportion to what waits.

        A hub may take nothing of its share, if its partitions do not respond. If no hub takes
        anything, the next ones get the shares: an empty batch would end an AvailableNow query.
        """
        while True:
            shares: dict[str, int | None] = (
                {**prorate(dict.fromkeys(waiting, 0), waiting, limit)}
                if limit is not None
                else dict.fromkeys(parts)
            )
            ends = self._plan(parts, {hub: shares.get(hub, 0) for hub in parts}, False)
            waiting = {hub: count for hub, count in waiting.items() if not shares[hub]}
            if ends != parts or not any(waiting.values()):
                return ends

    # -- the hubs ---------------------------------------------------------------------------------

    def _find_hubs(self, offset: Offset | None = None) -> None:
        """Open the drivers of new hubs. A pattern is listed again after a while."""
        if self._is_time_to_look():
            names = self._list()
            for hub in (hub for hub in names if hub not in self._drivers):
                self._drivers[hub] = self._open_driver(self.sources.of_hub(hub, len(names)))
            self._close_all_but(names)
            self._drivers = {hub: self._drivers[hub] for hub in names}
        for hub in hubs_in(offset or {}):
            if hub.lower() not in [name.lower() for name in self._drivers]:
                self._report_missing(hub)

    def _is_time_to_look(self) -> bool:
        common = self.sources.common
        if not self._drivers:
            return True
        if self._ends or not (self.selection.pattern and common.discovery):
            return False
        return self.clock.monotonic() - self._found_s >= common.discovery_s

    def _list(self) -> tuple[str, ...]:
        """The hubs to read; the known ones if the namespace cannot be reached now."""
        self._found_s = self.clock.monotonic()
        try:
            return find_hubs(self.selection, self.sources.common.identity)
        except ConnectionFailed as failed:
            if not self._drivers:
                raise
            log.warning("%s", line("hubs_not_listed", error=failed, todo="nothing: tried again"))
            return tuple(self._drivers)

    def _close_all_but(self, names: tuple[str, ...]) -> None:
        gone = [hub for hub in self._drivers if hub not in names]
        call_each(gone, lambda hub: self._drivers[hub].close())

    def _report_missing(self, hub: str) -> None:
        """A hub of the checkpoint that the query does not read; DataLoss if events may be lost."""
        if self.sources.common.fail_on_data_loss:
            raise DataLoss(
                f"hub {hub} is in the checkpoint, and the query does not read it ({self.selection} "
                f"selects {', '.join(self._drivers)}): it was deleted, or the option was changed. "
                "Start with a new checkpointLocation, or set failOnDataLoss=false to continue "
                "without it"
            )
        if hub not in self._left_out:
            self._left_out.add(hub)
            reason = "the checkpoint has it, failOnDataLoss=false"
            log.warning(
                "%s", line("hub_left_out", hub=hub, reason=reason, todo=str(self.selection))
            )
