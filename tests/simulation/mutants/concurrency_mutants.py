"""Mutants of concurrency: the order of keys, the number of handlers, and the low-water mark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pumphouse.events import Event
from pumphouse.processor import handlers
from pumphouse.processor.handling import concurrent
from pumphouse.processor.handling.concurrent import ConcurrentServing
from pumphouse.processor.handling.key_order import Concurrency, KeyedCall, KeyOrder, number
from pumphouse.simulation.run import OPTIONS
from tests.simulation.mutants.mutant import Patch, mutant

KEYED: dict[str, Any] = {
    "face": "handler",
    "concurrency": Concurrency(4, ahead_events_max=40),
    "burst_s": 10.0,
}
SMALL_BATCHES: dict[str, Any] = {**KEYED, "options": replace(OPTIONS, batch_events_max=5)}


@mutant("I22", text="comes next", **KEYED)
def keys_are_ignored(patch: Patch) -> None:
    """All events are handled in any order."""
    original = KeyOrder.add

    def add(self: KeyOrder, events: Sequence[Event]) -> None:
        waiting, self._unordered = self._unordered, type(self._unordered)()
        original(self, [replace(event, partition_key=None) for event in events])
        keys = {number(event): event for event in events}
        waiting.extend(keys[number(event)] for event in self._unordered)
        self._unordered = waiting

    patch.setattr(KeyOrder, "add", add)


@mutant("I22", text="comes next", **KEYED)
def a_key_continues_after_a_failed_event(patch: Patch) -> None:
    """While the partition drains, events start that follow an unhandled event of their key."""

    def end(self: KeyOrder, call: KeyedCall) -> None:
        self.running -= 1
        if call.is_ordered:
            self._release(call.key)

    patch.setattr(KeyOrder, "end", end)


@mutant("I22", text="two handlers of key", **SMALL_BATCHES)
def a_key_is_released_when_it_starts(patch: Patch) -> None:
    """The next events of a key do not wait for the call that has the first."""

    def start(self: KeyOrder, call: KeyedCall) -> KeyedCall:
        started = original(self, call)
        if call.is_ordered:
            self._release(call.key)
        return started

    original = KeyOrder._start
    patch.setattr(KeyOrder, "_start", start)
    patch.setattr(KeyOrder, "end", lambda self, call: setattr(self, "running", self.running - 1))


@mutant("I22", text="two handlers of key", **KEYED)
def a_partition_is_given_up_while_its_handlers_run(patch: Patch) -> None:
    """On a hand-over or stop, the handlers of this host and of the next one overlap."""

    async def run(self: ConcurrentServing) -> None:
        self._partition.handlers.passed = self._passed
        tasks: Any = asyncio
        self._tasks = tasks  # which does not wait for them
        writing = asyncio.create_task(self._write_checkpoints())
        await self._take_in()
        self._stopping = True
        writing.cancel()

    patch.setattr(ConcurrentServing, "run", run)


@mutant("I22", text="handlers at once", **KEYED)
def one_handler_too_many(patch: Patch) -> None:
    original = KeyOrder.__init__

    def init(self: KeyOrder, concurrency: Concurrency, *more: Any) -> None:
        original(self, replace(concurrency, handlers=concurrency.handlers + 1), *more)

    patch.setattr(KeyOrder, "__init__", init)


@mutant("I22", text="is not handled", **{**SMALL_BATCHES, "burst_s": 2.0})
def the_buffer_has_no_limit(patch: Patch) -> None:
    patch.setattr(KeyOrder, "has_room", property(lambda self: True))


@mutant("I5", **KEYED)
def the_low_water_mark_ignores_gaps(patch: Patch) -> None:
    """The checkpoint covers the last event that was handled, and all before it."""

    def mark_handled(self: KeyOrder, events: Sequence[Event]) -> list[Event]:
        reached = -1 if self.handled is None else number(self.handled)
        passed = [event for event in events if number(event) > reached]
        self._done.update(map(number, events))
        self._open = type(self._open)(e for e in self._open if number(e) not in self._done)
        if passed:
            self.handled = passed[-1]
        return passed

    patch.setattr(KeyOrder, "mark_handled", mark_handled)


@mutant("I6", text="without handling", **SMALL_BATCHES)
def nothing_is_drained(patch: Patch) -> None:
    """On a hand-over, events below the last started one are left out, and others repeated."""
    original = ConcurrentServing._take

    def take(self: ConcurrentServing) -> KeyedCall | None:
        ends = self._stopping or not self._partition.is_active
        return None if ends else original(self)

    patch.setattr(ConcurrentServing, "_take", take)


@mutant("I3", **KEYED)
def a_batch_is_lost_when_the_buffer_is_full(patch: Patch) -> None:
    """Events that come while handlers are busy are dropped."""
    original = KeyOrder.add

    def add(self: KeyOrder, events: Sequence[Event]) -> None:
        if self.running < self.handlers:
            original(self, events)

    patch.setattr(KeyOrder, "add", add)


@mutant("I3", **{**KEYED, "faults": "handler_cancels=0.05"})
def a_handler_that_cancels_its_task_ends_it(patch: Patch) -> None:
    """Its key is not released, its events do not start again, and nothing is reported."""

    async def withdraw(owner: object) -> bool:
        raise asyncio.CancelledError

    patch.setattr(handlers, "withdraw_cancellations", withdraw)
    patch.setattr(concurrent, "withdraw_cancellations", withdraw)
