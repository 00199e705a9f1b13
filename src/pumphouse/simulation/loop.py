"""An asyncio loop in virtual time, on which a whole host can be frozen or killed.

The loop never waits: when no callback is due, the clock jumps to the next timer. There are no
sockets, no threads and no wall clock, so the same start gives the same history. All callbacks of a
host belong to its *process*. A frozen process keeps its due callbacks until it is thawed, while the
network and the store continue.

    simulate -> SimLoop -> hosts in processes; the network and the store outside of all of them
                ^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Self

STARTED_S = 1_000.0
WALL_S = 1_700_000_000.0  # the wall clock at time 0 of the loop; the loop starts at STARTED_S
TURNS_MAX = 100_000  # at one instant: more means an endless loop
CANCELLED_MAX = 200  # cancelled timers; more are removed


class HostProcess:
    """One process of one host. A restart is a new process of the same name with the next `life`."""

    __slots__ = ("dead", "deferred", "frozen", "life", "name", "tasks")

    def __init__(self, name: str, life: int = 1) -> None:
        self.name, self.life = name, life
        self.frozen = False
        self.dead = False
        self.deferred: list[ScheduledCall] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def __str__(self) -> str:
        return self.name if self.life == 1 else f"{self.name}#{self.life}"


CURRENT_PROCESS: ContextVar[HostProcess | None] = ContextVar(
    "pumphouse_simulation_process", default=None
)


class SimulationStalled(RuntimeError):
    """Nothing is scheduled, or a task loops without waiting: a bug of the simulation itself."""


class ScheduledCall:
    """A scheduled callback: a minimal asyncio handle."""

    __slots__ = ("args", "call", "context", "is_cancelled", "loop", "when_s")

    def __init__(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context,
        loop: SimLoop,
        when_s: float = -1.0,
    ) -> None:
        self.call, self.args, self.context, self.loop = call, args, context, loop
        self.when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.args = ()
            self.loop.cancelled += self.when_s >= 0

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set depends on its number, not on its memory address.

    Task groups cancel their tasks in the order of a set, and the digest contains that order.
    """

    __slots__ = ("number",)

    number: int

    def __new__(cls, coroutine: Any, *, loop: SimLoop, **more: Any) -> Self:
        """Number it: asyncio adds it to a set before `__init__` returns."""
        task = super().__new__(cls)
        loop.tasks_created += 1
        task.number = loop.tasks_created
        return task

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their times; ties keep the order of creation."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = STARTED_S
        self.no_process: Context = copy_context()  # for callbacks that belong to no host
        self.turns = 0  # since the clock last advanced
        self.failures: list[str] = []  # exceptions that were not handled
        self.cancelled = 0  # cancelled timers that are still in the heap
        self._created = 0
        self._timers: list[tuple[float, int, ScheduledCall]] = []
        self._due: deque[ScheduledCall] = deque()
        self.tasks_created = 0
        self.set_exception_handler(self._failed)
        self.set_task_factory(lambda loop, coro, **more: SimTask(coro, loop=self, **more))

    def time(self) -> float:
        return self.now_s

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = CURRENT_PROCESS.get()
        if process is None or not process.dead:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- what BaseEventLoop requires ---------------------------------------------------------------

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        scheduled = ScheduledCall(
            callback, args, context if context is not None else copy_context(), self
        )
        self._due.append(scheduled)
        return scheduled

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        scheduled = ScheduledCall(
            callback, args, context if context is not None else copy_context(), self, when
        )
        self._created += 1
        heappush(self._timers, (when, self._created, scheduled))
        return scheduled

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run the function at once: a thread would run in real time."""
        result = self.create_future()
        try:
            result.set_result(func(*args))
        except Exception as failed:
            result.set_exception(failed)
        return result

    def create_task(self, coro: Any, **options: Any) -> Any:
        task = super().create_task(coro, **options)
        context = options.get("context")
        process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    # -- running -----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run turns until the loop is stopped; faster than one turn per call."""
        while not self._stopping:  # type: ignore[attr-defined]
            if not self._due:
                self._advance_clock()
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise SimulationStalled(
                    f"the clock stays at {self.now_s:.3f} s: a task loops without waiting"
                )
            self._turn()

    def _advance_clock(self) -> None:
        """Jump to the next timer."""
        self._remove_cancelled()
        if not self._timers:
            raise SimulationStalled("no callback is due and no timer is set")
        self.now_s = max(self.now_s, self._timers[0][0])
        self.turns = 0

    def _turn(self) -> None:
        """Run every callback that is due now; new ones are for the next turn."""
        timers, due, now_s = self._timers, self._due, self.now_s
        while timers and timers[0][0] <= now_s:
            due.append(heappop(timers)[2])
        for _ in range(len(due)):
            scheduled = due.popleft()
            if scheduled.is_cancelled:
                self.cancelled -= scheduled.when_s >= 0
                continue
            process = scheduled.context.get(CURRENT_PROCESS)
            if process is not None and process.frozen:
                process.deferred.append(scheduled)
                continue
            scheduled.when_s = -1.0  # no longer a timer: cancelling it leaves nothing in the heap
            try:
                scheduled.context.run(scheduled.call, *scheduled.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as failed:
                report = {"message": f"{scheduled.call!r} failed", "exception": failed}
                scheduled.context.run(self.call_exception_handler, report)

    def _remove_cancelled(self) -> None:
        """Remove cancelled timers: all of them if there are many, else those next in the heap."""
        timers = self._timers
        if self.cancelled > CANCELLED_MAX and self.cancelled * 2 > len(timers):
            timers[:] = [timer for timer in timers if not timer[2].is_cancelled]
            heapify(timers)
            self.cancelled = 0
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
            self.cancelled -= 1

    # -- processes ---------------------------------------------------------------------------------

    def context_of(self, process: HostProcess) -> Context:
        """A context in which every task and callback belongs to this process."""
        context = self.no_process.copy()
        context.run(CURRENT_PROCESS.set, process)
        return context

    def thaw(self, process: HostProcess) -> None:
        """Resume a frozen host; its deferred callbacks run at once."""
        process.frozen = False
        deferred, process.deferred = process.deferred, []
        self._due.extend(deferred)

    def kill(self, process: HostProcess) -> None:
        """End a host as kill -9 does: its tasks are cancelled, and new calls have no effect."""
        process.dead = True
        for task in list(process.tasks):
            task.cancel()
        self.thaw(process)


class HostClock:
    """The clock of one host: it may be hours off, and run a little fast or slow."""

    def __init__(self, ahead_s: float = 0.0, rate: float = 1.0) -> None:
        self.ahead_s, self.rate = ahead_s, rate
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop

    def now(self) -> float:
        return WALL_S + self.monotonic()

    def monotonic(self) -> float:
        return self.loop.now_s * self.rate + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
