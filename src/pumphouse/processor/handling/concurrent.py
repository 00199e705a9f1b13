"""Serves one partition with several handlers at once, in the order of each key.

    PartitionClient -> intake -> KeyOrder -> workers -> your handler
                                          -> checkpoints at the low-water mark

* The intake reads ahead of the handlers, as far as the KeyOrder has room.
* A worker is a task that calls the handler with the events of one key, then with the next. Workers
  are started when they are needed, up to the concurrency of the partition.
* When the partition moves or stops, or is paused, no event starts that is above the last one that
  has started. Those below are still handled, so that the low-water mark reaches it and the next
  owner repeats nothing. This takes at most half of the time that the host has to stop.
* An event that the poison policy does not get over ends the partition as with one handler: events
  below it are handled, nothing above it starts. With `stop-key`, only its key waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf, isinf

from pumphouse.errors import PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.handling.calls import nothing
from pumphouse.processor.handling.cancellation import OwnedTasks, withdraw_cancellations
from pumphouse.processor.handling.key_order import KeyedCall, KeyOrder, number
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import PartitionEnded, StopReason

WAIT_S_MIN = 0.001  # an asyncio loop measures its timers in milliseconds
DRAIN_SHARE = 0.5  # of `stop_s`; the rest is for calls under way, the checkpoint and the release

CANCELLED = "the handler cancelled its own task, or awaited a task or future that was cancelled"

Handle = Callable[[PartitionClient, list[Event]], Awaitable[None]]


class ConcurrentServing:
    """Intake, workers and checkpoints of one partition client."""

    def __init__(
        self,
        partition: PartitionClient,
        order: KeyOrder,
        handle: Handle,
        options: ProcessorOptions,
    ) -> None:
        self._partition, self._order, self._handle = partition, order, handle
        self._options = options
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []  # workers that wait for a call
        self._is_waking = False  # a worker was woken or started, and has not run yet
        self._room, self._due = asyncio.Event(), asyncio.Event()
        self._reports_first = False  # whether the first event after a checkpoint sets `_due`
        self._is_empty_call_due = False  # no event has come for a while
        self._stopping = False  # nothing new starts
        self._up_to = inf  # no event above this starts: the one before a poisoned event
        self._error: Exception | None = None
        self._has_handled = False

    def __repr__(self) -> str:
        return f"<ConcurrentServing {self._partition.id} | {self._order!r}>"

    async def run(self) -> None:
        """Serve until the partition ends; raises what stopped it."""
        handlers = self._partition.handlers
        handlers.drain, handlers.passed = True, self._passed
        try:
            async with OwnedTasks() as self._tasks:
                handlers.owner = self._tasks
                writing = self._tasks.create_task(self._write_checkpoints())
                await self._take_in()
                await self._drain()
                writing.cancel()
        finally:
            handlers.drain, handlers.passed = False, nothing
        if self._error is not None:
            raise self._error

    async def _take_in(self) -> None:
        """Receive events until the partition ends."""
        partition, order = self._partition, self._order
        while await self._has_room() and (batch := await partition.next_batch()) is not None:
            order.add(batch)
            self._is_empty_call_due = not batch and not order.ahead and not order.running
            self._wake()

    async def _has_room(self) -> bool:
        """Wait until more events may be taken in; False if the partition ends first."""
        while not self._order.has_room:
            self._room.clear()
            if not await self._partition.wait_for(self._room):
                return False
        return True

    async def _drain(self) -> None:
        """Handle what is below the last event that has started, within a time limit."""
        self._stopping = True
        for waiting in self._idle:
            wake(waiting)
        if self._workers:
            drain_s = DRAIN_SHARE * self._options.stop_s
            _, late = await asyncio.wait(self._workers, timeout=drain_s)
            self._partition.handlers.left_early |= bool(late)
        self._partition.handlers.drain = False
        if self._workers:
            await asyncio.wait(self._workers)

    # -- workers ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Let one more worker run if a call could start.

        This worker wakes the next one when it has taken its call. If the handler never waits, one
        worker makes all calls, and waking the others would have no effect.
        """
        if self._is_waking or not (self._order.startable or self._is_empty_call_due):
            return
        if self._idle:
            self._is_waking = True
            wake(self._idle.pop())
        elif len(self._workers) < self._order.handlers:
            self._is_waking = True
            worker = self._tasks.create_task(self._work(), name=f"handler {self._partition.id}")
            self._workers.add(worker)
            worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._is_waking = False  # it may have been cancelled before it ran

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_waking = False
        with self._partition.handlers.task() as call:
            while (keyed := await self._next_call()) is not None:
                self._wake()
                call.batches += 1
                started_s = loop.time()
                await self._run(keyed)
                self._order.measure(keyed, loop.time() - started_s)

    async def _next_call(self) -> KeyedCall | None:
        """The next call; None when the partition ends and nothing is left to do."""
        while (keyed := self._take()) is None:
            if self._stopping:
                return None
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting in self._idle:
                    self._idle.remove(waiting)
                await withdraw_cancellations(self._tasks)
            finally:
                self._is_waking = False
        return keyed

    def _take(self) -> KeyedCall | None:
        partition, order = self._partition, self._order
        ends = self._stopping or not partition.is_active
        if ends and not (partition.handlers.drain and partition.live):
            return None
        if ends or partition.paused:
            last = -1 if order.last is None else number(order.last)
            return order.take(int(min(last, self._up_to)))
        if self._is_empty_call_due:
            self._is_empty_call_due = False
            return order.take_empty()
        return order.take()

    async def _run(self, keyed: KeyedCall) -> None:
        partition, order = self._partition, self._order
        try:
            await self._handle(partition, keyed.events)
        except PoisonEvent as poison:
            if partition.poison is None:  # only its key waits
                order.park(keyed)
                return
            order.end(keyed)
            self._up_to = min(self._up_to, (poison.sequence or 0) - 1)
            self._fail(poison)
        except PartitionEnded as ended:
            order.end(keyed)
            if isinstance(ended.__cause__, Exception):  # fenced off: nothing more is handled
                self._leave(ended.__cause__)
        except asyncio.CancelledError:
            order.end(keyed)
            await withdraw_cancellations(self._tasks)
            self._leave(RuntimeError(CANCELLED))
        except Exception as error:
            order.end(keyed)
            self._leave(error)
        else:
            partition.mark_handled(keyed.events)
            order.end(keyed)
            if not self._has_handled:
                self._has_handled = True
                partition.report_progress()

    def _leave(self, error: Exception) -> None:
        """Nothing more starts, not even below events that have started."""
        self._partition.handlers.drain = False
        self._partition.handlers.left_early = True
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The partition ends: no more events are received."""
        self._error = error
        self._partition.end(StopReason.ERROR)

    # -- checkpoints ------------------------------------------------------------------------------

    def _passed(self) -> None:
        """The low-water mark has moved, or a pause or a hold of a key has ended."""
        self._room.set()
        if self._reports_first or self._partition.checkpoint_due_in_s <= 0:
            self._due.set()
        if self._order.startable:
            self._wake()

    async def _write_checkpoints(self) -> None:
        """Write the checkpoints that the policy requires, until the end of the partition."""
        partition = self._partition
        while partition.is_active:
            due_s = partition.checkpoint_due_in_s
            if due_s <= 0:
                await partition.write_due_checkpoint()
                continue
            self._due.clear()
            self._reports_first = isinf(due_s) and self._options.checkpoints.every_s is not None
            try:
                async with asyncio.timeout(None if isinf(due_s) else max(due_s, WAIT_S_MIN)):
                    await self._due.wait()
            except TimeoutError:
                pass


def wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
