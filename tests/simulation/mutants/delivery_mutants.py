"""Mutants of events and checkpoints, and of whole fleets."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from pumphouse.events import EARLIEST, Event, Position
from pumphouse.leases import checkpoints, fencing
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint, Listing
from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor import engine, handlers, pump
from pumphouse.processor.checkpointing import PartitionCheckpoint
from pumphouse.processor.checks import continuity
from pumphouse.processor.checks.continuity import Continuity
from pumphouse.processor.checks.gaps import LastRead
from pumphouse.processor.cycle import Cycle
from pumphouse.processor.handling import batches
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.processor.pump import Pump
from pumphouse.processor.reporting import Reporter
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.processor.term import Stopped
from tests.simulation.mutants.mutant import Patch, mutant

# -- events and checkpoints -----------------------------------------------------------------------


@mutant("I3 I5", face="handler")
def a_handler_gets_the_list_of_the_engine(patch: Patch) -> None:
    """What the handler takes off its list counts as handled, or is missing in the next attempt."""
    for module in (batches, handlers):
        patch.setattr(module, "list", lambda events: events, raising=False)


@mutant("I15")
def position_ignores_the_checkpoint(patch: Patch) -> None:
    """The reader opens at the beginning."""

    def start_position(checkpoint: Checkpoint, otherwise: Position) -> Position:
        return EARLIEST

    patch.setattr(pump, "start_position", start_position)
    patch.setattr(continuity, "last_of", lambda position: None)


@mutant("I6 I15")
def a_stale_listing_is_trusted(patch: Patch) -> None:
    """A restarted pump takes its position from a listing, which may be stale."""
    original = CheckpointWriter.stamp

    async def stamp(self: CheckpointWriter, current: Checkpoint | None = None) -> Checkpoint:
        stored = await self._read()
        if stored is not None and stored.epoch == self.epoch:
            return self._keep(stored)
        return await original(self, stored)

    patch.setattr(CheckpointWriter, "stamp", stamp)


LATE_WRITES: dict[str, Any] = {
    "hosts": 2,
    "partitions": 4,
    "face": "push",
    "store": "blob",
    "burst_s": 10.0,
    "faults": "harsh,stale=0.5,after=0.3,slow=0.2,crash=0,pause=0",
}


@mutant("I6", **LATE_WRITES)
def a_stale_listing_after_a_refusal_is_trusted(patch: Patch) -> None:
    """A writer mistakes its own older checkpoint for one that an administrator has moved."""
    patch.setattr(checkpoints, "FORMER_MAX", 0)


@mutant("I5")
def checkpoint_of_undelivered_events(patch: Patch) -> None:
    """Received events count as handled."""
    original = PartitionClient.next_batch

    async def following(self: PartitionClient) -> list[Event] | None:
        batch = await original(self)
        if batch:
            self._checkpoint.add(batch)
        return batch

    patch.setattr(PartitionClient, "next_batch", following)


@mutant("I5", face="push")
def a_part_of_a_batch_is_checkpointed_as_all(patch: Patch) -> None:
    """A failed batch is retried event by event, and a checkpoint of one event covers it all."""

    def set_in_hand(self: PartitionClient, events: list[Event]) -> None:
        self._progress.begin(events if self.last is None else [self.last])

    patch.setattr(PartitionClient, "set_in_hand", set_in_hand)


@mutant("I3 I15")
def an_event_skipped_after_a_break(patch: Patch) -> None:
    def continue_after(self: Continuity, event: Event) -> None:
        self._last = LastRead((event.sequence or 0) + 1)

    patch.setattr(Continuity, "continue_after", continue_after)


@mutant("I18")
def expired_events_are_not_reported(patch: Patch) -> None:
    async def expired(self: Reporter, partition: str, error: Exception) -> None: ...

    patch.setattr(Reporter, "expired", expired)


@mutant("I18", burst_s=5.0)
def expired_events_are_reported_only_when_a_reader_opens(patch: Patch) -> None:
    """Retention that passes a slow handler is not noticed."""

    async def check(self: Continuity, event: Event) -> None:
        return None

    patch.setattr(Continuity, "check", check)


@mutant("I4")
def events_out_of_order(patch: Patch) -> None:
    original = Pump.receive

    async def receive(self: Pump, deadline_s: float) -> list[Event]:
        return (await original(self, deadline_s))[::-1]

    patch.setattr(Pump, "receive", receive)


@mutant("I1 I5", hours=1.2, partitions=12)
def a_later_owner_is_overwritten(patch: Patch) -> None:
    """A refused checkpoint overwrites the stored one."""

    def next_step(
        known: Any, requested: Checkpoint, stored: Checkpoint | None, **more: Any
    ) -> fencing.RetryWrite:
        etag = "" if stored is None else stored.etag
        epoch = requested.epoch if stored is None else max(requested.epoch, stored.epoch)
        return fencing.RetryWrite(replace(requested, etag=etag, epoch=epoch))

    patch.setattr(checkpoints, "next_step", next_step)
    patch.setattr(CheckpointWriter, "_require_lease", lambda self: None)


@mutant("I10", burst_s=1.0)
def a_checkpoint_for_every_batch(patch: Patch) -> None:
    """The checkpoint policy is ignored."""
    due_in_s = property(lambda self: math.inf if self._pending is None else 0.0)
    patch.setattr(PartitionCheckpoint, "due_in_s", due_in_s)


@mutant("I6")
def no_checkpoint_by_the_policy(patch: Patch) -> None:
    """Checkpoints are written only by hand and on release: a crash repeats any number of events."""
    patch.setattr(PartitionCheckpoint, "due_in_s", property(lambda self: math.inf))


@mutant("I3", face="partitions")
def partitions_are_yielded_once(patch: Patch) -> None:
    """A partition whose loop was left by an exception is not offered again."""

    async def partitions(self: Processor) -> Any:
        self._consumed.set()
        stopped, seen = asyncio.ensure_future(self.engine.wait()), set()
        while (partition := await self._next(stopped)) is not None:
            if (partition.id, partition.epoch) not in seen:
                seen.add((partition.id, partition.epoch))
                yield partition

    patch.setattr(Processor, "partitions", partitions)


# -- fleets ---------------------------------------------------------------------------------------


@mutant("I3 I7")
def a_failed_pump_is_not_restarted(patch: Patch) -> None:
    async def wait(self: PartitionSupervisor, seconds: float) -> None:
        with suppress(Stopped):
            await self.term.unless_stopped(asyncio.sleep(1e9))

    patch.setattr(PartitionSupervisor, "_wait", wait)


@mutant("I9")
def a_host_without_partitions_requests_none(patch: Patch) -> None:
    """A new host claims free partitions only."""
    original = Cycle._act

    async def act(self: Cycle, census: Any, listing: Listing, busy: Any) -> Any:
        if not census.mine:
            modest = replace(self.strategy, rule=lambda each, rng: list(each.free))
            self.strategy, kept = modest, self.strategy
            try:
                return await original(self, census, listing, busy)
            finally:
                self.strategy = kept
        return await original(self, census, listing, busy)

    patch.setattr(Cycle, "_act", act)


@mutant("I9", strategy="eph")
def no_share_is_requested(patch: Patch) -> None:
    """A host below its share claims free partitions only."""
    for name in ("eph", "steady"):
        original = STRATEGIES[name]
        patch.setitem(STRATEGIES, name, replace(original, rule=lambda each, rng: list(each.free)))


@mutant("I7 I10", strategy="balanced", hours=0.1)
def requests_at_random(patch: Patch) -> None:
    """Every host requests a random partition of another host."""
    original = Cycle._act

    async def act(self: Cycle, census: Any, listing: Listing, busy: Any) -> Any:
        choices = Random(len(census.mine))
        held = [p for owner, ps in census.held.items() if owner != self.host.name for p in ps]
        rule = replace(
            self.strategy, rule=lambda census, rng: [choices.choice(held)] if held else []
        )
        self.strategy = rule
        return await original(self, census, listing, busy)

    patch.setattr(Cycle, "_act", act)


@mutant("I10")
def cycles_without_an_interval(patch: Patch) -> None:
    patch.setattr(engine, "next_delay", lambda outcome, options, rng: 1.0)


@mutant("I11")
def a_stuck_handler_is_not_reported(patch: Patch) -> None:
    patch.setattr(PartitionSupervisor, "stuck", lambda self: None)


@mutant("I8", face="pull")
def new_partitions_are_not_listed(patch: Patch) -> None:
    async def ask(self: Cycle) -> None: ...

    patch.setattr(Cycle, "_read_partitions", ask)
