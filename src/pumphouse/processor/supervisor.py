"""PartitionSupervisor: runs the pump of one partition for one ownership term.

    engine -> PartitionSupervisor -> Pump -> serve
              ^^^^^^^^^^^^^^^^^^^ this module

A pump that fails is reported and started again after a back-off that doubles. When another host
requests the partition, or this host shuts down, the partition is given up only after its pump has
ended. So the handlers of two hosts never overlap in a clean hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pumphouse.errors import (
    EventsExpired,
    OwnershipLost,
    PoisonEvent,
    PumphouseError,
    StoreError,
)
from pumphouse.leases.model import BEHIND, PAUSED, STOPPED, STUCK
from pumphouse.processor.handling.calls import HandlerCall
from pumphouse.processor.handling.cancellation import (
    raise_pending_cancellation,
    withdraw_cancellations,
)
from pumphouse.processor.handling.raised import as_failure
from pumphouse.processor.health.states import DelayTrend
from pumphouse.processor.options import STOP
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import Lease, backoff
from pumphouse.processor.pump import Pump, Serve
from pumphouse.processor.term import Host, OwnershipTerm, Stopped, StopReason

FAILURES_MAX = 3  # a pump that ended early this often in a row makes no progress
CANCELLED = (
    "the code that serves the partition cancelled its own task, or awaited a task or future that "
    "was cancelled"
)


class PartitionSupervisor:
    """One ownership term of one partition, and the pump that serves it."""

    task: asyncio.Task[None]

    def __init__(
        self, host: Host, lease: Lease, serve: Serve, is_paused: Callable[[str], bool]
    ) -> None:
        self.host, self.partition = host, lease.partition
        self.term = OwnershipTerm(lease.partition, lease.row.epoch, host.leases)
        self._serve, self._is_paused = serve, is_paused
        self._pump: Pump | None = None
        self._resumed = asyncio.Event()
        self._stopped = False  # True after poison or a loss, until the partition is resumed
        self._failures = 0  # pumps that ended early, in a row
        self._started_s = 0.0  # when the current pump was started
        self._delays = DelayTrend()
        self._accepted: EventsExpired | None = None  # a loss after which it was resumed

    def __repr__(self) -> str:
        return f"<PartitionSupervisor {self.partition} | {self.term.reason or 'active'}>"

    async def run(self) -> bool:
        """Serve until the term ends; True if the partition was then released or handed over."""
        while self.term.is_active:
            self._started_s = self.host.clock.monotonic()
            await self._serve_once()
            if self.term.is_active:
                is_first = self._has_lasted or self.term.moved_from is not None
                self._failures = 1 if is_first else self._failures + 1
                await self._wait(backoff(self._failures, self.host.options, self.host.rng))
        return self.term.is_clean and await self._give_up()

    @property
    def _has_lasted(self) -> bool:
        """Whether the pump has run for so long that its earlier failures are over."""
        lasted_s = self.host.clock.monotonic() - self._started_s
        return lasted_s > self.host.options.backoff_most_s

    async def _serve_once(self) -> None:
        self._resumed.clear()
        self._stopped = False
        self._pump = Pump(self.host, self.term, self._accepted)
        try:
            await self._pump.run(self._serve, lambda: self._is_paused(self.partition))
            await raise_pending_cancellation(self.host.tasks)
        except asyncio.CancelledError:
            await withdraw_cancellations(self.host.tasks)
            self._failed("pump_failed", RuntimeError(CANCELLED))
        except OwnershipLost as fenced:
            await self.term.confirm()
            if self.term.is_active:  # the row is ours, but the checkpoint has another writer
                self._failed("pump_failed", fenced)
        except PoisonEvent as poison:
            # Raised by the user's own loop; a poison policy has already reported its event.
            if self.client is None or self.client.poison is not poison:
                self._stopped = True  # first: the error callback may resume the partition at once
                self.host.reporter.poisoned(self.partition, poison, STOP)
            await self._wait_for_resume()
        except EventsExpired as expired:
            self._stopped = True
            if self._pump.stopped_by is not expired:  # raised by the user's own loop
                await self.host.reporter.expired(self.partition, expired)
            await self._wait_for_resume()
            self._accepted = expired
        except BaseException as raised:
            self._failed("pump_failed", as_failure(raised))
        finally:
            self._pump = None

    def _failed(self, event: str, error: Exception) -> None:
        self.host.reporter.failed(event, self.partition, error)

    async def _wait(self, seconds: float) -> None:
        with suppress(Stopped):
            await self.term.unless_stopped(self.host.clock.sleep(seconds))

    async def _wait_for_resume(self) -> None:
        """Keep the partition without serving it, until it is resumed."""
        with suppress(Stopped):
            await self.term.unless_stopped(self._resumed.wait())
        self._failures = 0

    def resume(self) -> None:
        """Start again after poison, or a gap, has stopped the partition.

        An error callback may call this before the pump has ended. It has no effect on a partition
        that is being served.
        """
        if self.client is not None:
            self.client.handlers.unpark()
        if self._is_stopped or self.client is None:
            for event in ("event_poisoned", "handler_failed"):  # the next one is logged again
                self.host.reporter.forget(event, self.partition)
            self._resumed.set()

    @property
    def _is_stopped(self) -> bool:
        """Whether poison or a loss has stopped the partition. Its pump may not have ended yet."""
        pump, client = self._pump, self.client
        by_loss = pump is not None and pump.stopped_by is not None
        return self._stopped or by_loss or (client is not None and client.poison is not None)

    async def _give_up(self) -> bool:
        lease = self.host.leases.held.get(self.partition)
        if lease is None or lease.row.epoch != self.term.epoch:
            return False
        requested = self.term.reason is StopReason.HAND_OFF
        return await self.host.leases.give_up(
            self.partition, "requested" if requested else "shutdown"
        )

    # -- for the engine ---------------------------------------------------------------------------

    def is_served_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task calls handlers of the partition."""
        calls = [] if self.client is None else self.client.handlers.all
        return task is not None and task in (self.task, *(call.task for call in calls))

    @property
    def client(self) -> PartitionClient | None:
        return None if (pump := self._pump) is None else pump.client

    @property
    def queued_events(self) -> int:
        """Events that were received and not yet delivered."""
        return 0 if (pump := self._pump) is None else pump.queued_events

    def apply_pause(self) -> None:
        if self.client is not None:
            (self.client.pause if self._is_paused(self.partition) else self.client.resume)()

    def observe(self) -> None:
        """Sample the delay of the partition, for its state."""
        if (client := self.client) is None:
            return
        now_s, busy = self.host.clock.monotonic(), client.in_hand_for_s() > 0
        self._delays.add(now_s, client.batches_handed_out, self._delay_s(client), busy)

    def _delay_s(self, client: PartitionClient) -> float | None:
        """From the arrival of the last event in the hub until it was handed out."""
        if client.last is None or client.last.enqueued_ms is None:
            return None
        return self.host.clock.now() - client.in_hand_for_s() - client.last.enqueued_ms / 1000

    def state(self) -> str:
        """The state that the row reports: stopped, stuck, paused or behind; "" if it is served."""
        if self._is_stopped or self._is_held_up:
            return STOPPED
        if self.is_stuck or (self._failures >= FAILURES_MAX and not self._has_lasted):
            return STUCK
        if self._is_paused(self.partition):
            return PAUSED
        return BEHIND if self._delays.grows else ""

    @property
    def _is_held_up(self) -> bool:
        """Whether the partition, or a key of it, waits because of an event until it is resumed."""
        client = self.client
        return client is not None and (client.poison is not None or client.handlers.has_parked)

    @property
    def is_stuck(self) -> bool:
        """Whether the handler has not returned for too long."""
        client, limit_s = self.client, self.host.options.handler_timeout_s
        return client is not None and limit_s is not None and client.in_hand_for_s() >= limit_s

    def stuck(self) -> HandlerCall | None:
        """A handler that has not returned for too long; only once per call."""
        client, limit_s = self.client, self.host.options.handler_timeout_s
        if client is None or limit_s is None:
            return None
        for call in client.handlers.all:
            if call.timer.elapsed_s >= limit_s and call.attempt != call.reported:
                call.reported = call.attempt
                return call
        return None

    async def give_up_stuck(self) -> None:
        """Release the partition though a handler has not returned. Coroutines are cancelled."""
        if (client := self.client) is None:
            return
        if self.term.has_lease:  # not given up already, for another handler
            await client.finish(clean=True)
            await self.host.leases.give_up(self.partition, "stuck")
            self.term.stop(StopReason.LOST)
        for call in client.handlers.all:
            call.interrupt()

    def why_late(self) -> PumphouseError | None:
        """Why the pump did not end in time: its handler, or the store. None: it was reported."""
        if self.client is not None and self.client.in_hand_for_s() > 0:
            late = max(self.client.handlers.all, key=lambda call: call.timer.elapsed_s)
            return None if late.reported == late.attempt else late.stuck()
        return StoreError(
            f"partition {self.partition} was not given up within the time that stop() allows"
        )
