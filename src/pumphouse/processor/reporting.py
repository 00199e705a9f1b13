"""Reports failures to the log and to `on_error`, and changes of ownership to `on_ownership`.

    lease table, cycle, pumps, handlers -> Reporter -> log lines
                                           ^^^^^^^^ -> on_error, on_ownership

Every failure reaches `on_error`. The log has the first, the 10th, the 100th ... repetition of a
failure, and one line when it is over.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pumphouse.logs import RepeatedFailures, line

log = logging.getLogger("pumphouse.processor")

OnError = Callable[[str | None, Exception], Awaitable[None] | None]
OnOwnership = Callable[[str, str], None]

# What `on_ownership` is called with. `pumphouse process --output json` prints these values.
CLAIMED, RENEWED, REQUESTED, LOST, RELEASED = "claimed", "renewed", "asked", "lost", "released"

# The action for an operator, by event; logged as `todo`.
TODO = {
    "cycle_failed": "check the checkpoint store and its credentials",
    "ownership_write_failed": "check the checkpoint store; leases expire unless it recovers",
    "membership_write_failed": "check the checkpoint store",
    "hub_properties_failed": "check the hub and the connection string",
    "release_failed": "check the checkpoint store; another host takes over when the lease expires",
    "handler_failed": "fix the handler; the batch is retried, then its events one by one",
    "handler_stuck": "find out what the handler waits for; its partition makes no progress",
    "event_poisoned": "inspect the event; resume the partition if it was stopped",
    "dead_letter_failed": "check the dead-letter file or hub; the partition waits for it",
    "checkpoint_failed": "check the checkpoint store; a restart repeats events until it recovers",
    "receive_failed": "check the hub; the reader is opened again after a back-off",
    "pump_failed": "see the error; the pump is started again after a back-off",
    "close_failed": "see the error in the close method of the event processor",
    "host_name_shared": "give every host a name of its own",
    "host_failed": "restart the host and report the error",
    "host_stop_timed_out": "check handlers and store; other hosts take over as the leases expire",
    "host_close_failed": "no action if the host ends; otherwise check the hub and the store",
}


class Reporter:
    """Writes the log of one host and calls its callbacks. A callback must not block."""

    def __init__(
        self, host: str, on_error: OnError | None = None, on_ownership: OnOwnership | None = None
    ) -> None:
        self.host = host
        self._on_error, self._on_ownership = on_error, on_ownership
        self._repeated = RepeatedFailures()
        self._running: set[asyncio.Future[Any]] = set()  # callbacks that are coroutines

    def debug(self, event: str, **fields: object) -> None:
        log.debug("%s", line(event, host=self.host, **fields))

    def info(self, event: str, **fields: object) -> None:
        log.info("%s", line(event, host=self.host, **fields))

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem, with the action for an operator as `todo`."""
        todo = TODO.get(event)
        log.warning("%s", line(event, host=self.host, **fields, todo=todo))

    def failed(self, event: str, partition: str | None, error: Exception) -> None:
        """Log a failure under this event name, unless it repeats; always call `on_error`."""
        count = self._repeated.failed((event, partition), error)
        if count is not None:
            times = count if count > 1 else None
            self.warning(event, partition=partition, error=error, count=times)
        if self._on_error is not None:
            self._call(self._on_error, partition, error)

    def recovered(self, event: str, partition: str | None = None) -> None:
        """The failures of this event are over: the next one is logged again."""
        if count := self._repeated.succeeded((event, partition)):
            self.info(recovery_of(event), partition=partition, failures=count)

    def changed(self, change: str, partition: str) -> None:
        """Call `on_ownership` with one of CLAIMED, RENEWED, REQUESTED, LOST and RELEASED."""
        if self._on_ownership is not None:
            self._call(self._on_ownership, change, partition)

    # -- callbacks --------------------------------------------------------------------------------

    def _call(self, callback: Callable[..., Any], *args: object) -> None:
        try:
            result = callback(*args)
        except Exception as error:
            log_callback_failure(self.host, error)
            return
        if inspect.isawaitable(result):
            self.track(asyncio.ensure_future(result))

    def track(self, running: asyncio.Future[Any]) -> None:
        """Wait for this when the host closes, and log what it raises."""
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()) is not None:
            log_callback_failure(self.host, error)

    def ignore(self, task: asyncio.Future[Any] | None) -> None:
        """Do not wait for this callback when the host closes: it waits for that itself."""
        if task is not None:
            self._running.discard(task)

    async def wait(self, timeout_s: float) -> None:
        """Until all callbacks have returned, or the timeout has passed."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)


def recovery_of(event: str) -> str:
    """The event that ends a series of failures: cycle_failed ends with cycle_recovered."""
    return f"{event.removesuffix('_failed')}_recovered"


def log_callback_failure(host: str, error: BaseException) -> None:
    """Log the exception of a callback with its traceback. The host continues."""
    log.error("%s", line("callback_failed", host=host, error=error), exc_info=error)
