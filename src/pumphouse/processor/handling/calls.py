"""HandlerCall: one handler of a partition at a time, from the call until it returns.

    PartitionClient -> HandlerCall -> how long, with which events, can it be interrupted
                       ^^^^^^^^^^^ this module

A partition client has one of them, which its loop and its handler share. With concurrency, each
task that calls handlers has one of its own, and `HandlerCalls.current` finds it: in the task, and
in the thread in which the task runs a plain function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from pumphouse.clock import Clock
from pumphouse.errors import HandlerStuck
from pumphouse.processor.checkpointing import Progress
from pumphouse.processor.handling.cancellation import OwnedTasks
from pumphouse.processor.handling.key_order import KeyOrder
from pumphouse.processor.handling.timer import HandlingTimer

current_call: ContextVar[HandlerCall | None] = ContextVar("pumphouse handler call", default=None)


class HandlerCall:
    """What a handler is handling, and for how long."""

    def __init__(self, partition: str, clock: Clock, progress: Progress) -> None:
        self.partition = partition
        self.progress = progress
        self.timer = HandlingTimer(clock)
        self.attempts = 0  # calls of the handler, with retries
        self.batches = 0  # that it has got
        self.reported: object = None  # the attempt that was reported as stuck
        self.task: asyncio.Task[object] | None = None  # of its own, with concurrency
        self._limit: asyncio.Timeout | None = None  # around the handler
        self._in_thread = False  # the handler is a plain function

    @property
    def attempt(self) -> object:
        """Identifies the current call of the handler."""
        return (self, self.batches, self.attempts)

    def waits(self) -> None:
        """The handler waits for a free thread: this is not counted as handling."""
        self.timer.stop()
        self._in_thread = True

    def starts(self) -> None:
        """The handler runs from now on. Called in its thread."""
        self.timer.start(in_thread=True)
        self.progress.enter_thread()

    def ends(self) -> None:
        """The handler has returned. Called in its thread."""
        self.timer.stop()
        self.progress.leave_thread()
        self._in_thread = False

    @asynccontextmanager
    async def interruptible(self) -> AsyncGenerator[None, None]:
        """Run a handler; HandlerStuck if `interrupt` is called meanwhile."""
        self._limit = asyncio.timeout(None)
        self.timer.start()
        self.attempts += 1
        try:
            async with self._limit:
                yield
            if self._limit.expired():  # it has ended, but it did not raise the cancellation
                raise self.stuck()
        except TimeoutError:
            if not self._limit.expired():
                raise
            raise self.stuck() from None
        finally:
            self._limit = None
            self.timer.stop()

    def interrupt(self) -> bool:
        """Cancel the handler; False if there is none, or if it runs in a thread."""
        if self._limit is None or self._in_thread:
            return False
        self._limit.reschedule(asyncio.get_running_loop().time())
        return True

    def stuck(self) -> HandlerStuck:
        last = self.progress.last if self.task is None else self.progress.last_in_hand
        sequence = last.sequence if last is not None else None
        return HandlerStuck(self.partition, self.timer.elapsed_s, sequence)


class HandlerCalls:
    """The calls of one partition client: one, or with concurrency one for each task."""

    def __init__(
        self, partition: str, clock: Clock, order: KeyOrder | None, owner: OwnedTasks
    ) -> None:
        self._partition, self._clock, self._order = partition, clock, order
        self.owner = owner  # of the tasks that call handlers
        self._only = HandlerCall(partition, clock, Progress(order))
        self._running: dict[HandlerCall, None] = {}
        self.drain = False  # the current events are handled also when the partition ends
        self.left_early = False  # events below started ones were left out when it ended
        # Called when the low-water mark has passed events, and when a pause ends.
        self.passed: Callable[[], None] = nothing

    @property
    def current(self) -> HandlerCall:
        """That of the task that runs now, or of the task that has started this thread."""
        if self._order is None:
            return self._only
        call = current_call.get()
        return self._only if call is None or call not in self._running else call

    @property
    def all(self) -> list[HandlerCall]:
        """Also read in other threads."""
        return list(self._running) or [self._only]

    @property
    def has_parked(self) -> bool:
        """Whether a key waits until the partition is resumed."""
        return self._order is not None and self._order.has_parked

    def unpark(self) -> None:
        """Let the keys that an event held up continue."""
        if self._order is not None:
            self._order.unpark()
            self.passed()

    @contextmanager
    def task(self) -> Iterator[HandlerCall]:
        """The task that runs now calls handlers, beside others."""
        call = HandlerCall(self._partition, self._clock, Progress(self._order))
        call.task = asyncio.current_task()
        current_call.set(call)  # for this task only, and the threads that it starts
        self._running[call] = None
        try:
            yield call
        finally:
            del self._running[call]


def nothing() -> None:
    """Called if nothing else is to be called."""
