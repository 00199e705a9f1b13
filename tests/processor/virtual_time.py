"""Real sockets in virtual time: a minute of leases and back-offs passes while nothing happens.

Time stands still while there is anything to do, so a busy machine lets no lease run out; and it
jumps to the next timer as soon as every socket is quiet, so nobody waits for one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# What is written to a socket of this machine can be read at once, or very nearly so. A thread
# needs a moment longer.
QUIET_S, THREADS_QUIET_S = 0.0002, 0.002


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait for a timer, but moves the clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.threads_busy = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        quiet_s = THREADS_QUIET_S if self.threads_busy else QUIET_S
        ready = super().select(0) or (super().select(quiet_s) if timeout != 0 else [])
        if ready or timeout == 0:
            return ready
        if timeout is None:  # no timer at all: whatever comes, comes from outside
            return super().select(None)
        self.now += timeout
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.jumping.threads_busy += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: object) -> None:
        self.jumping.threads_busy -= 1


class LoopClock:
    """The virtual loop's time, for everybody who takes a clock. A host may have its own drift."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
