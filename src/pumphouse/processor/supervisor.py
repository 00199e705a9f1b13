"""Keeping a pump running for as long as its partition is ours, and leaving in good order.

    engine -> PartitionSupervisor -> Pump -> serve
              ^^^^^^^ this module

A pump that dies is reported and started again after a back-off that doubles. When the partition is
asked for, or we shut down, it is given up only after the pump has ended: that is what keeps two
handlers from meeting on a clean move.
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
from pumphouse.processor.pump import House, Pump, Serve
from pumphouse.processor.term import OwnershipTerm, Stopped, StopReason, to_end

CANCELLED = "something that the code of a partition awaited was cancelled"
CLEAN = (StopReason.SHUTDOWN, StopReason.HAND_OFF)


class PartitionSupervisor:
    """One term of one partition, and the pump that serves it."""

    task: asyncio.Task[None]

    def __init__(
        self, house: House, lease: Lease, serve: Serve, is_paused: Callable[[str], bool]
    ) -> None:
        self.house, self.partition = house, lease.partition
        self.term = OwnershipTerm(lease.partition, lease.row.epoch, house.leases)
        self._serve, self._is_paused = serve, is_paused
        self._pump: Pump | None = None
        self._unparked = asyncio.Event()
        self._told_of: object = None  # the batch that was reported as stuck

    def __repr__(self) -> str:
        return f"<PartitionSupervisor {self.partition} | {self.term.reason or 'goes on'}>"

    async def run(self) -> bool:
        """Serve until the term ends; whether the partition was given up in good order."""
        failures = 0
        while self.term.goes_on:
            started_s = self.house.clock.monotonic()
            await self._serve_once()
            if self.term.goes_on:
                lasted_s = self.house.clock.monotonic() - started_s
                failures = 1 if lasted_s > self.house.options.backoff_most_s else failures + 1
                await self._wait(backoff(failures, self.house.options, self.house.rng))
        return self.term.reason in CLEAN and await self._give_up()

    async def _serve_once(self) -> None:
        self._pump = Pump(self.house, self.term)
        try:
            await self._pump.run(self._serve, lambda: self._is_paused(self.partition))
        except asyncio.CancelledError:
            if to_end():
                raise
            self.house.report(self.partition, RuntimeError(CANCELLED))
        except OwnershipLost as fenced:
            await self.term.confirm()
            if self.term.goes_on:  # the row is ours, and yet somebody else speaks for it
                self.house.report(self.partition, fenced)
        except PoisonEvent as poison:
            self._unparked.clear()  # whoever hears of it may resume it at once
            self.house.report(self.partition, poison)
            await self._park()
        except Exception as died:
            self.house.report(self.partition, died)
        finally:
            self._pump = None

    async def _wait(self, seconds: float) -> None:
        with suppress(Stopped):
            await self.term.unless_stopped(self.house.clock.sleep(seconds))

    async def _park(self) -> None:
        """Keep the partition without serving it, until somebody resumes it."""
        with suppress(Stopped):
            await self.term.unless_stopped(self._unparked.wait())

    def unpark(self) -> None:
        self._unparked.set()

    async def _give_up(self) -> bool:
        lease = self.house.leases.held.get(self.partition)
        if lease is None or lease.row.epoch != self.term.epoch:
            return False
        return await self.house.leases.give_up(self.partition)

    # -- seen from outside ------------------------------------------------------------------------

    @property
    def client(self) -> PartitionClient | None:
        return self._pump.client if self._pump is not None else None

    def apply_pause(self) -> None:
        if self.client is not None:
            (self.client.pause if self._is_paused(self.partition) else self.client.resume)()

    def stuck(self) -> HandlerStuck | None:
        """What to report if the present batch has been in hand for too long; once per batch."""
        client, limit_s = self.client, self.house.options.handler_timeout_s
        if client is None or limit_s is None or client.in_hand_for_s() < limit_s:
            return None
        batch = (client, client.batches_handed_out)
        if batch == self._told_of:
            return None
        self._told_of = batch
        return stuck(client)

    def why_late(self) -> PumphouseError:
        """Why it did not end in time: its handler, or the store."""
        if self.client is not None and self.client.in_hand_for_s() > 0:
            return stuck(self.client)
        return StoreError(f"partition {self.partition} could not be given up in time")


def stuck(client: PartitionClient) -> HandlerStuck:
    sequence = client.last.sequence if client.last is not None else None
    return HandlerStuck(client.id, client.in_hand_for_s(), sequence)
