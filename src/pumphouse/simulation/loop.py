"""An asyncio loop in virtual time, on which a whole host can be frozen or killed.

Nothing is waited for: when nothing is left to do, the clock jumps to the next timer. There are no
sockets, no threads and no wall clock, so the same start gives the same history. Whatever a host
does runs in its *process*. A frozen process keeps what has come due until it is thawed, while the
network and the store go on.

    simulate -> SimLoop -> hosts in processes; the network and the store outside of all of them
                ^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any

STARTED_S = 1_000.0
WALL_S = 1_700_000_000.0  # what the clocks on the wall show when the loop starts
TURNS_MAX = 100_000  # without time going on: somebody goes round in circles
CANCELLED_MAX = 200  # timers that nobody waits for any more; then they are cleared away


class HostProcess:
    """One life of one host: a restart takes a new process under the same name."""

    __slots__ = ("dead", "frozen", "life", "name", "parked", "tasks")

    def __init__(self, name: str, life: int = 1) -> None:
        self.name, self.life = name, life
        self.frozen = False
        self.dead = False
        self.parked: list[ScheduledCall] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def __str__(self) -> str:
        return self.name if self.life == 1 else f"{self.name}#{self.life}"


CURRENT_PROCESS: ContextVar[HostProcess | None] = ContextVar(
    "pumphouse_simulation_seat", default=None
)


class SimulationStalled(RuntimeError):
    """Nothing is left to do and nothing is waited for: a bug of the simulation itself."""


class ScheduledCall:
    """Something that is to be called: what asyncio calls a handle, with nothing but the needful."""

    __slots__ = ("args", "call", "context", "gone", "loop", "when_s")

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
        self.gone = False  # nobody waits for it any more

    def cancel(self) -> None:
        if not self.gone:
            self.gone = True
            self.args = ()
            self.loop.cancelled += self.when_s >= 0

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.when_s


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they came due; ties keep the order of their making."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = STARTED_S
        self.nowhere: Context = copy_context()  # of whatever happens on no host
        self.turns = 0  # since time last went on
        self.failures: list[str] = []  # what no task and no caller has taken
        self.cancelled = 0  # timers that nobody waits for any more
        self._made = 0
        self._timers: list[tuple[float, int, ScheduledCall]] = []
        self._due: deque[ScheduledCall] = deque()
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self.now_s

    def _failed(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        process = CURRENT_PROCESS.get()
        if process is None or not process.dead:
            self.failures.append(f"{told.get('message')}: {told.get('exception')!r}")

    # -- what BaseEventLoop asks of its kind -------------------------------------------------------

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        step = ScheduledCall(
            callback, args, context if context is not None else copy_context(), self
        )
        self._due.append(step)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        step = ScheduledCall(
            callback, args, context if context is not None else copy_context(), self, when
        )
        self._made += 1
        heappush(self._timers, (when, self._made, step))
        return step

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """At once: a thread would bring its own time."""
        answer = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as failed:
            answer.set_exception(failed)
        return answer

    def create_task(self, coro: Any, **how: Any) -> Any:
        task = super().create_task(coro, **how)
        context = how.get("context")
        process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    # -- running -----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Turns until somebody stops the loop: asyncio's own loop around it would cost more."""
        while not self._stopping:  # type: ignore[attr-defined]
            if not self._due:
                self._go_on()
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise SimulationStalled(
                    f"time stands still at {self.now_s:.3f}: somebody never waits"
                )
            self._turn()

    def _go_on(self) -> None:
        """Jump to the next timer."""
        self._clear_away()
        if not self._timers:
            raise SimulationStalled("nobody waits for anything")
        self.now_s = max(self.now_s, self._timers[0][0])
        self.turns = 0

    def _turn(self) -> None:
        """Everything that is due now; what comes of it is for the next turn."""
        timers, due, now_s = self._timers, self._due, self.now_s
        while timers and timers[0][0] <= now_s:
            due.append(heappop(timers)[2])
        for _ in range(len(due)):
            step = due.popleft()
            if step.gone:
                self.cancelled -= step.when_s >= 0
                continue
            process = step.context.get(CURRENT_PROCESS)
            if process is not None and process.frozen:
                process.parked.append(step)
                continue
            step.when_s = -1.0  # it is no timer any more: cancelling it leaves nothing behind
            try:
                step.context.run(step.call, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as failed:
                told = {"message": f"{step.call!r} failed", "exception": failed}
                step.context.run(self.call_exception_handler, told)

    def _clear_away(self) -> None:
        """Forget timers that were cancelled: all of them if there are many, else the next ones."""
        timers = self._timers
        if self.cancelled > CANCELLED_MAX and self.cancelled * 2 > len(timers):
            timers[:] = [timer for timer in timers if not timer[2].gone]
            heapify(timers)
            self.cancelled = 0
        while timers and timers[0][2].gone:
            heappop(timers)
            self.cancelled -= 1

    # -- processes ---------------------------------------------------------------------------------

    def context_of(self, process: HostProcess) -> Context:
        """A context in which everything belongs to this process."""
        context = self.nowhere.copy()
        context.run(CURRENT_PROCESS.set, process)
        return context

    def thaw(self, process: HostProcess) -> None:
        """Let a frozen host go on; what came due meanwhile comes all at once."""
        process.frozen = False
        parked, process.parked = process.parked, []
        self._due.extend(parked)

    def kill(self, process: HostProcess) -> None:
        """End a host as kill -9 does. Its code unwinds, but reaches nobody any more."""
        process.dead = True
        for task in list(process.tasks):
            task.cancel()
        self.thaw(process)


class HostClock:
    """The clock of one host: it may be wrong by hours, and run a little fast or slow."""

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
