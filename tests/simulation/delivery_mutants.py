"""Sabotages of what becomes of events and checkpoints, and of fleets as a whole."""

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
from pumphouse.processor import engine, pump
from pumphouse.processor.cycle import Cycle
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.pump import Pump
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.processor.term import Stopped
from tests.simulation.mutant import Patch, mutant

# -- events and checkpoints -----------------------------------------------------------------------


@mutant("I15")
def position_set_after_the_first_fetch(patch: Patch) -> None:
    """The reader opens at the beginning, and somebody is to move it later."""

    def start_position(checkpoint: Checkpoint, otherwise: Position) -> Position:
        return EARLIEST

    patch.setattr(pump, "start_position", start_position)


@mutant("I6 I15")
def old_listing_believed(patch: Patch) -> None:
    """A pump that starts again takes the position from a listing, which may be old."""
    original = CheckpointWriter.stamp

    async def stamp(self: CheckpointWriter, current: Checkpoint | None = None) -> Checkpoint:
        found = await self._read()
        if found is not None and found.epoch == self.epoch:
            return self._keep(found)
        return await original(self, found)

    patch.setattr(CheckpointWriter, "stamp", stamp)


@mutant("I5")
def checkpoint_of_undelivered_events(patch: Patch) -> None:
    """What was received counts as handled."""
    original = PartitionClient._next

    async def following(self: PartitionClient) -> list[Event] | None:
        batch = await original(self)
        if batch:
            self._add_pending(batch)
        return batch

    patch.setattr(PartitionClient, "_next", following)


@mutant("I5", face="push")
def a_part_of_a_batch_counts_as_all_of_it(patch: Patch) -> None:
    patch.setattr(PartitionClient, "set_in_hand", lambda self, batch: None)


@mutant("I3 I15")
def an_event_skipped_after_a_break(patch: Patch) -> None:
    def continue_behind(self: Pump, event: Event) -> None:
        position = Position("sequence", str((event.sequence or 0) + 1))
        self._reader_options = replace(self._reader_options, position=position)

    patch.setattr(Pump, "_continue_behind", continue_behind)


@mutant("I4")
def events_out_of_order(patch: Patch) -> None:
    original = Pump.receive

    async def receive(self: Pump, deadline_s: float) -> list[Event]:
        return (await original(self, deadline_s))[::-1]

    patch.setattr(Pump, "receive", receive)


@mutant("I1 I5", hours=1.2, partitions=12)
def a_later_owner_is_overwritten(patch: Patch) -> None:
    """A checkpoint that was refused is written over the one that is there."""

    def next_step(
        known: Any, wanted: Checkpoint, found: Checkpoint | None, **more: Any
    ) -> fencing.RetryWrite:
        etag = "" if found is None else found.etag
        epoch = wanted.epoch if found is None else max(wanted.epoch, found.epoch)
        return fencing.RetryWrite(replace(wanted, etag=etag, epoch=epoch))

    patch.setattr(checkpoints, "next_step", next_step)
    patch.setattr(CheckpointWriter, "_require_lease", lambda self: None)


@mutant("I10", burst_s=1.0)
def a_checkpoint_for_every_batch(patch: Patch) -> None:
    """Whatever the policy says."""
    due_in_s = property(lambda self: math.inf if self._pending is None else 0.0)
    patch.setattr(PartitionClient, "_checkpoint_due_in_s", due_in_s)


@mutant("I6")
def no_checkpoint_by_the_policy(patch: Patch) -> None:
    """Only by hand, and when a partition is left: a crash repeats without a bound."""
    patch.setattr(PartitionClient, "_checkpoint_due_in_s", property(lambda self: math.inf))


# -- fleets ---------------------------------------------------------------------------------------


@mutant("I3 I7")
def a_pump_that_died_is_not_started_again(patch: Patch) -> None:
    async def wait(self: PartitionSupervisor, seconds: float) -> None:
        with suppress(Stopped):
            await self.term.unless_stopped(asyncio.sleep(1e9))

    patch.setattr(PartitionSupervisor, "_wait", wait)


@mutant("I9")
def who_has_nothing_asks_for_nothing(patch: Patch) -> None:
    """A newcomer takes what is free and waits to be given the rest."""
    original = Cycle._act

    async def act(self: Cycle, found: Any, listing: Listing, busy: Any) -> Any:
        if not found.mine:
            modest = replace(self.strategy, rule=lambda one, rng: list(one.free))
            self.strategy, kept = modest, self.strategy
            try:
                return await original(self, found, listing, busy)
            finally:
                self.strategy = kept
        return await original(self, found, listing, busy)

    patch.setattr(Cycle, "_act", act)


@mutant("I9", strategy="eph")
def nobody_is_asked_for_what_is_fair(patch: Patch) -> None:
    """Who has less than its share takes what is free, and nothing from those that have more."""
    for name in ("eph", "steady"):
        original = STRATEGIES[name]
        patch.setitem(STRATEGIES, name, replace(original, rule=lambda one, rng: list(one.free)))


@mutant("I7 I10", strategy="balanced")
def restless(patch: Patch) -> None:
    """There is always a partition somewhere else that one would like."""
    original = Cycle._act

    async def act(self: Cycle, found: Any, listing: Listing, busy: Any) -> Any:
        whims = Random(len(found.mine))
        held = [p for owner, ps in found.held.items() if owner != self.host.name for p in ps]
        rule = replace(self.strategy, rule=lambda one, rng: [whims.choice(held)] if held else [])
        self.strategy = rule
        return await original(self, found, listing, busy)

    patch.setattr(Cycle, "_act", act)


@mutant("I10")
def cycles_without_a_rest(patch: Patch) -> None:
    patch.setattr(engine, "next_delay", lambda outcome, options, rng: 1.0)


@mutant("I11")
def a_stuck_handler_is_nobodys_business(patch: Patch) -> None:
    patch.setattr(PartitionSupervisor, "stuck", lambda self: None)


@mutant("I8", face="pull")
def new_partitions_go_unnoticed(patch: Patch) -> None:
    async def ask(self: Cycle) -> None: ...

    patch.setattr(Cycle, "_read_partitions", ask)
