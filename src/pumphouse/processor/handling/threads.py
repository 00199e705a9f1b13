"""Calls user code: awaits coroutine functions, and runs plain functions in daemon threads.

    handlers, host, fixed, processor -> call_user_code, CallbackThreads -> your functions
                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

The threads are daemon threads: a function that hangs does not keep the process alive. A pool starts
a thread only when all others are busy. There is one call at a time per partition, so the number of
threads follows the number of owned partitions, up to the limit of the pool.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol

from pumphouse.processor.handling.raised import as_failure
from pumphouse.processor.reporting import Reporter


class Submitted(NamedTuple):
    """A call that waits for a thread."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def run(self, finished: Callable[[], None]) -> None:
        """Call the function; `finished` is called before the future has its result."""
        if not self.future.set_running_or_notify_cancel():
            finished()
            return
        try:
            result = self.function(*self.args, **self.keywords)
        except BaseException as error:
            finished()
            self.future.set_exception(error)
        else:
            finished()
            self.future.set_result(result)


class DaemonThreads(Executor):
    """A pool of at most `threads_max` daemon threads. The interpreter does not wait for them."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max, self._name = threads_max, name
        self._queue: SimpleQueue[Submitted | None] = SimpleQueue()
        self._lock = Lock()
        self._threads = 0
        self._unfinished = 0  # calls that wait or run
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = Submitted(Future(), fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads of {self._name!r} are closed")
            self._unfinished += 1
            self._queue.put(call)
            if self._threads < min(self._unfinished, self._threads_max):
                self._start_thread()
        return call.future

    def _start_thread(self) -> None:
        self._threads += 1
        Thread(target=self._work, name=f"{self._name} {self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call.run(self._finished)
            del call  # its arguments may be large

    def _finished(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def close(self) -> int:
        """Cancel the calls that wait for a thread; return how many calls still run."""
        with self._lock:
            self._closed = True
            self._cancel_waiting()
            for _ in range(self._threads):
                self._queue.put(None)
            return self._unfinished

    def _cancel_waiting(self) -> None:
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is not None:
                call.future.cancel()
                self._unfinished -= 1


# -- handlers -------------------------------------------------------------------------------------


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: a function, a method, or an object with __call__."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


class HandlerTimer(Protocol):
    """Measures how long a handler runs. The time in which it waits for a thread is not counted."""

    def handler_waits(self) -> None: ...

    def handler_starts(self) -> None: ...

    def handler_ends(self) -> None: ...


class ThreadCall:
    """One call in a thread. It may still run after the caller has stopped waiting."""

    def __init__(
        self, function: Callable[..., Any], *args: object, timer: HandlerTimer | None = None
    ) -> None:
        self._function, self._args, self._timer = function, args, timer
        self.runs = False
        if timer is not None:
            timer.handler_waits()

    def __call__(self) -> Any:
        """StopIteration becomes RuntimeError: a future cannot hold it and would never complete."""
        self.runs = True
        if self._timer is not None:
            self._timer.handler_starts()
        try:
            return self._function(*self._args)
        except StopIteration as stop:
            raise RuntimeError("the handler raised StopIteration") from stop
        finally:
            self.runs = False
            if self._timer is not None:
                self._timer.handler_ends()


async def in_thread(threads: Executor, call: ThreadCall) -> Any:
    """The result of a call in one of these threads, with the caller's context variables."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    return await loop.run_in_executor(threads, context.run, call)


async def call_user_code(
    threads: Executor,
    function: Callable[..., Any],
    *args: object,
    timer: HandlerTimer | None = None,
) -> None:
    """Await a coroutine function; run a plain one in a thread, and await what it returns."""
    if is_async(function):
        await finish(await function(*args))
        return
    await finish(await in_thread(threads, ThreadCall(function, *args, timer=timer)))


async def finish(result: object) -> None:
    """Wait for what user code has returned: an awaitable, or a future of another thread.

    A coroutine function returns an awaitable if it lacks an `await`.

    A generator is an error: its body has not run, so its events would count as handled.
    """
    if inspect.isawaitable(result):
        await result
    elif isinstance(result, Future):
        await asyncio.wrap_future(result)
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"the handler returned the generator {result.__name__}, whose body has not run: "
            "remove `yield` from it"
        )


# -- callbacks ------------------------------------------------------------------------------------


class CallbackThreads:
    """Calls the callbacks of the user. Each lane has one thread of its own.

    A lane is a kind of callback. One thread per lane keeps the order of its calls: with several
    threads, two errors in quick succession could reach `on_exception` and `on_error` in different
    orders. A callback that hangs delays only its own lane, and neither handlers nor renewals.
    """

    def __init__(self, reporter: Reporter, *lanes: str) -> None:
        self._reporter = reporter
        self._threads = {name: DaemonThreads(1, f"pumphouse {name}") for name in lanes}

    async def call(self, lane: str, callback: Callable[..., Any], *args: object) -> None:
        """Call one callback; its exceptions are logged and do not prevent other calls."""
        try:
            await call_user_code(self._threads[lane], callback, *args)
        except BaseException as raised:
            self._reporter.callback_failed(lane, as_failure(raised))

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
