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

from pumphouse.errors import (
    HandlerStuck,
    OwnershipLost,
    PoisonEvent,
    PumphouseError,
    StoreError,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import Lease, backoff
from pumphouse.processor.pump import Pump, Serve
from pumphouse.processor.term import Host, OwnershipTerm, Stopped, StopReason, is_cancelled

CANCELLED = "the code that serves the partition awaited a task or future that was cancelled"
CLEAN = (StopReason.SHUTDOWN, StopReason.HAND_OFF)


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
        self._reported: object = None  # the batch that was reported as stuck

    def __repr__(self) -> str:
        return f"<PartitionSupervisor {self.partition} | {self.term.reason or 'active'}>"

    async def run(self) -> bool:
        """Serve until the term ends; True if the partition was then released or handed over."""
        failures = 0
        while self.term.is_active:
            started_s = self.host.clock.monotonic()
            await self._serve_once()
            if self.term.is_active:
                lasted_s = self.host.clock.monotonic() - started_s
                failures = 1 if lasted_s > self.host.options.backoff_most_s else failures + 1
                await self._wait(backoff(failures, self.host.options, self.host.rng))
        return self.term.reason in CLEAN and await self._give_up()

    async def _serve_once(self) -> None:
        self._pump = Pump(self.host, self.term)
        try:
            await self._pump.run(self._serve, lambda: self._is_paused(self.partition))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._failed("pump_failed", RuntimeError(CANCELLED))
        except OwnershipLost as fenced:
            await self.term.confirm()
            if self.term.is_active:  # the row is ours, but the checkpoint has another writer
                self._failed("pump_failed", fenced)
        except PoisonEvent as poison:
            self._resumed.clear()  # first: the error callback may resume the partition at once
            self._failed("event_poisoned", poison)
            await self._wait_for_resume()
        except Exception as error:
            self._failed("pump_failed", error)
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

    def resume(self) -> None:
        """Start again after poison has stopped the partition."""
        self._resumed.set()

    async def _give_up(self) -> bool:
        lease = self.host.leases.held.get(self.partition)
        if lease is None or lease.row.epoch != self.term.epoch:
            return False
        requested = self.term.reason is StopReason.HAND_OFF
        return await self.host.leases.give_up(
            self.partition, "requested" if requested else "shutdown"
        )

    # -- for the engine ---------------------------------------------------------------------------

    @property
    def client(self) -> PartitionClient | None:
        return self._pump.client if self._pump is not None else None

    def apply_pause(self) -> None:
        if self.client is not None:
            (self.client.pause if self._is_paused(self.partition) else self.client.resume)()

    def stuck(self) -> HandlerStuck | None:
        """An error if the current batch has been in hand for too long; only once per batch."""
        client, limit_s = self.client, self.host.options.handler_timeout_s
        if client is None or limit_s is None or client.in_hand_for_s() < limit_s:
            return None
        batch = (client, client.batches_handed_out)
        if batch == self._reported:
            return None
        self._reported = batch
        return handler_stuck(client)

    def why_late(self) -> PumphouseError:
        """Why the pump did not end in time: its handler, or the store."""
        if self.client is not None and self.client.in_hand_for_s() > 0:
            return handler_stuck(self.client)
        return StoreError(
            f"partition {self.partition} was not given up within the time that stop() allows"
        )


def handler_stuck(client: PartitionClient) -> HandlerStuck:
    sequence = client.last.sequence if client.last is not None else None
    return HandlerStuck(client.id, client.in_hand_for_s(), sequence)
