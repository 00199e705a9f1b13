"""Reports failures to the log and to `on_error`, and changes of ownership to `on_ownership`.

    lease table, cycle, pumps, handlers -> Reporter -> log lines
                                           ^^^^^^^^ -> on_error, on_ownership
                                                    -> recorder, for metrics

Every failure reaches `on_error`. The log has the first, the 10th, the 100th ... repetition of a
failure, and one line when it is over. In the log, an outage that affects many partitions is one
failure.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import (
    EventsExpired,
    EventTooLarge,
    OwnershipLost,
    PumphouseError,
    ReaderEvicted,
)
from pumphouse.logs import RepeatedFailures, has_text, line, shown_value
from pumphouse.processor.recording.recorder import NO_RECORDER, Recorder

log = logging.getLogger("pumphouse.processor")

OnError = Callable[[str | None, Exception], Awaitable[None] | None]
OnOwnership = Callable[[str, str], None]

# What `on_ownership` is called with. `pumphouse process --output json` prints these values.
CLAIMED, RENEWED, REQUESTED, LOST, RELEASED = "claimed", "renewed", "asked", "lost", "released"

ON_ERROR, ON_OWNERSHIP = "on_error", "on_ownership"  # the callbacks

# A lost event is reported before the next one is handled, unless `on_error` takes longer than this.
ON_ERROR_S = 5.0

# Failures of code of the user, or of this package: they are logged with a traceback.
USER_CODE = {"handler_failed", "pump_failed", "close_failed", "host_failed"}

# Failures that the hub or the store can cause on many partitions at once.
OUTAGES = {
    "receive_failed",
    "checkpoint_failed",
    "handler_waiting",
    "pump_failed",
    "dead_letter_failed",
}
# Partitions, ids and durations in the text of an error. Texts that differ only in these have the
# same cause.
NUMBERS = re.compile(r"[0-9a-fA-F]{8}-[-0-9a-fA-F]{27}|[0-9]+")

# The action for an operator, by event; logged as `todo`.
TODO = {
    "cycle_failed": "check the checkpoint store and its credentials",
    "ownership_write_failed": "check the checkpoint store; leases expire unless it recovers",
    "membership_write_failed": "check the checkpoint store",
    "changes_failed": "check the checkpoint store; until it recovers hand-overs take longer",
    "hub_properties_failed": "check the hub and the connection string",
    "release_failed": "check the checkpoint store; another host takes over when the lease expires",
    "handler_failed": "fix the handler; the batch is retried, then its events one by one",
    "batch_handler_missing": "register a handler with on_batch; until then no events are read",
    "handler_abandoned": "find out what the plain handlers wait for; they end with the process",
    "handler_waiting": "check the store and the hubs that the handler uses; its batch is retried",
    "handler_stuck": "find out what the handler waits for; its partition makes no progress",
    "event_poisoned": "inspect the event; resume the partition if it was stopped",
    "dead_letter_failed": "check the dead-letter file or hub; the partition waits for it",
    "events_expired": "retain events longer or handle them sooner; resume a stopped partition",
    "checkpoint_failed": "check the checkpoint store; a restart repeats events until it recovers",
    "receive_failed": "check the hub; reading is retried after a pause",
    "pump_failed": "see the error: fix the code that serves the partition, or the store. The "
    "partition is served again after a pause, from its checkpoint",
    "close_failed": "see the error in the close method of the event processor",
    "host_name_shared": "give every host a name of its own",
    "host_gave_up": "correct the cause, then start the host again",
    "host_failed": "restart the host and report the error",
    "host_stop_timed_out": "check handlers and store; other hosts take over as the leases expire",
    "host_close_failed": "no action if the host ends; otherwise check the hub and the store",
}


@dataclass(eq=False, slots=True)
class FailureSeries:
    """Failures of one event name and partition, without a success in between."""

    error: Exception  # the last one


class Reporter:
    """Writes the log of one host and calls its callbacks. A callback must not block."""

    def __init__(
        self,
        host: str,
        on_error: OnError | None = None,
        on_ownership: OnOwnership | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.recorder: Recorder = NO_RECORDER  # until the host starts
        self._clock = clock or SystemClock()
        self._on_error, self._on_ownership = on_error, on_ownership
        # Failures by event name, and `expired_events`: events that were gone before they were read.
        self.counts: Counter[str] = Counter()
        self.failures: dict[tuple[str, str | None], FailureSeries] = {}  # that are not over
        self.handler = "the loop over batches"  # the name of the user's code, for the log
        self._repeated = RepeatedFailures()
        self._running: set[asyncio.Future[Any]] = set()  # callbacks that are coroutines

    def name_handler(self, handler: object) -> None:
        """Use the name of this function or class of the user in the log."""
        self.handler = getattr(handler, "__qualname__", type(handler).__qualname__)

    def debug(self, event: str, **fields: object) -> None:
        log.debug("%s", line(event, host=self.host, **fields))

    def info(self, event: str, **fields: object) -> None:
        log.info("%s", line(event, host=self.host, **fields))

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem, with the action for an operator as `todo`."""
        todo = fields.pop("todo", None) or TODO.get(event)
        error = fields.get("error")
        text = line(event, host=self.host, **fields, todo=todo)
        if isinstance(error, Exception) and needs_traceback(event, error):
            log_with_traceback(logging.WARNING, text, error)
        else:
            log.warning("%s", text)

    def abandoned(self, calls: int) -> None:
        """Log how many plain handlers still run in their threads when the host closes."""
        if calls:
            self.warning("handler_abandoned", handlers=calls)

    def failed(
        self, event: str, partition: str | None, error: Exception
    ) -> asyncio.Future[Any] | None:
        """Log a failure under this event name, unless it repeats; always call `on_error`.

        Returns the call of an `on_error` that is a coroutine function.
        """
        self.counts[event] += 1
        self.failures.setdefault((event, partition), FailureSeries(error)).error = error
        self._log_failure(event, partition, error)
        if self._on_error is not None:
            return self._call(ON_ERROR, self._on_error, partition, error)
        return None

    def _log_failure(self, event: str, partition: str | None, error: Exception) -> None:
        """An outage is logged once for all its partitions; `partitions` is their number."""
        folds = is_outage(event, error)
        key = (event, type(error) is ReaderEvicted) if folds else (event, partition)
        text = NUMBERS.sub("#", shown_value(error)) if folds else error
        count = self._repeated.failed(key, text, self._clock.monotonic(), partition)
        if count is not None:
            members = self._repeated.members(key)
            times, partitions = (n if n > 1 else None for n in (count, members))
            fields = {"error": error, "count": times, "partitions": partitions}
            self.warning(event, partition=partition, **fields)

    def occurred(
        self, event: str, partition: str | None, error: Exception | None, **fields: object
    ) -> None:
        """Log and count a problem that does not repeat; call `on_error` if there is an error."""
        self.counts[event] += 1
        self.warning(event, partition=partition, **fields, error=error)
        if self._on_error is not None and error is not None:
            self._call(ON_ERROR, self._on_error, partition, error)

    @property
    def host_failures(self) -> dict[str, Exception]:
        """The last errors, by event, of failures that are not over and concern no partition."""
        failures = self.failures.items()
        return {event: series.error for (event, partition), series in failures if not partition}

    async def expired(self, partition: str, error: EventsExpired) -> None:
        """Log and count events that are gone. Returns after `on_error`, or after a while."""
        self.counts["expired_events"] += error.count or 0
        self.recorder.expired(error.count or 0)
        if (running := self.failed("events_expired", partition, error)) is not None:
            await asyncio.wait([running], timeout=ON_ERROR_S)

    def poisoned(self, partition: str, error: Exception, end: str) -> None:
        """Report an event that failed in every attempt, and count it by what happened to it."""
        self.recorder.poisoned(end)
        self.failed("event_poisoned", partition, error)

    def recovered(self, event: str, partition: str | None = None) -> None:
        """The failures of this event are over: the next one is logged again."""
        self.failures.pop((event, partition), None)
        if not self._repeated.is_any:
            return
        for part in (partition, False, True):  # see _log_failure
            if (run := self._repeated.recovered((event, part), partition)) is not None:
                only = partition if len(run.members) == 1 else None
                fields = run.log_fields(self._clock.monotonic())
                self.info(recovery_of(event), partition=only, **fields)

    def forget(self, event: str, partition: str | None = None) -> None:
        """The next failure of this event is logged, though the last one did not end."""
        self.failures.pop((event, partition), None)
        self._repeated.succeeded((event, partition))

    def changed(self, change: str, partition: str) -> None:
        """Call `on_ownership` with one of CLAIMED, RENEWED, REQUESTED, LOST and RELEASED."""
        if change in (LOST, RELEASED):
            self._repeated.forget(partition)
        if self._on_ownership is not None:
            self._call(ON_OWNERSHIP, self._on_ownership, change, partition)

    # -- callbacks --------------------------------------------------------------------------------

    def _call(
        self, name: str, callback: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any] | None:
        try:
            result = callback(*args)
        except Exception as error:
            self.callback_failed(name, error)
            return None
        if not inspect.isawaitable(result):
            return None
        running = asyncio.ensure_future(result)
        self.track(name, running)
        return running

    def track(self, name: str, running: asyncio.Future[Any]) -> None:
        """Wait for this call of a callback when the host closes, and log what it raises."""
        self._running.add(running)
        running.add_done_callback(lambda ended: self._ended(name, ended))

    def _ended(self, name: str, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()) is not None:
            self.callback_failed(name, error)

    def callback_failed(self, name: str, error: BaseException) -> None:
        """Log the exception of a callback with its traceback, unless it repeats."""
        self.counts["callback_failed"] += 1
        key = ("callback_failed", name)
        count = self._repeated.failed(key, error, self._clock.monotonic())
        if count is not None:
            times = count if count > 1 else None
            fields = {"callback": name, "error": error, "count": times}
            text = line("callback_failed", host=self.host, **fields)
            log_with_traceback(logging.ERROR, text, error)

    def ignore(self, task: asyncio.Future[Any] | None) -> None:
        """Do not wait for this callback when the host closes: the callback waits for the close."""
        if task is not None:
            self._running.discard(task)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all callbacks have returned, or the timeout has passed."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)


def is_outage(event: str, error: Exception) -> bool:
    """Whether the hub or the store caused a failure, which then affects other partitions too."""
    own = isinstance(error, OwnershipLost | EventTooLarge)
    return event in OUTAGES and isinstance(error, PumphouseError) and not own


def needs_traceback(event: str, error: Exception) -> bool:
    """Whether an exception is from user code or is a bug, so that its traceback is needed."""
    return event in USER_CODE and not isinstance(error, PumphouseError)


def log_with_traceback(level: int, text: line, error: BaseException) -> None:
    """Log an error of user code.

    Formatters may use the text of the error, for example that of PySpark. If it has no text, or one
    that cannot be written as UTF-8, the formatter would fail, and the line would be lost: then the
    traceback is part of the message.
    """
    trace = "".join(traceback.format_exception(error))
    shown = trace.encode("utf-8", "backslashreplace").decode()
    if shown == trace and has_text(error):
        log.log(level, "%s", text, exc_info=error)
    else:
        log.log(level, "%s\n%s", text, shown)


def recovery_of(event: str) -> str:
    """The event that ends a series of failures: cycle_failed ends with cycle_recovered."""
    return f"{event.removesuffix('_failed')}_recovered"
