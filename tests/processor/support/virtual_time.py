"""VirtualLoop: real sockets in virtual time. Waits for leases and back-offs take no time.

Time stands still while there is work to do, so no lease expires on a busy machine. It jumps to the
next timer as soon as every socket is quiet.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Data written to a loopback socket can be read almost at once. A thread takes longer to respond.
QUIET_S, THREADS_QUIET_S = 0.0002, 0.002


class JumpingSelector(selectors.DefaultSelector):
    """Moves the clock to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.threads_busy = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        quiet_s = THREADS_QUIET_S if self.threads_busy else QUIET_S
        ready = super().select(0) or (super().select(quiet_s) if timeout != 0 else [])
        if ready or timeout == 0:
            return ready
        if timeout is None:  # without a timer only a socket or a thread can continue
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

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of the base class
    ) -> None:
        """Wait for the threads in real time.

        From Python 3.12 on the wait has a time limit. The virtual clock would jump past it at once.
        """
        await super().shutdown_default_executor()


class LoopClock:
    """A clock with the time of the virtual loop. A host may be ahead of it."""

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
