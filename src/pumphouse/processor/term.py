"""One stay of ours at a partition: from the claim until the pump has left.

A term says whether we may still act as the owner, and why we stop. Stopping ends waiting, never
working: whoever waits for events, for a back-off or for a resume is woken; a handler finishes.

    leases, engine -> OwnershipTerm -> feed, checkpoints, partition client
                        ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from pumphouse.processor.lease_table import LeaseTable

T = TypeVar("T")


class StopReason(StrEnum):
    """Why a partition is no longer served here."""

    SHUTDOWN = "shutdown"
    LOST = "lost"  # somebody else has it, or our lease ran out
    HAND_OFF = "hand-off"  # another host has asked for it and gets it, in order
    ERROR = "error"  # the pump died; it is started again


class Stopped(Exception):
    """What was waited for does not matter any more."""


def to_end() -> bool:
    """Whether our own task was cancelled, rather than something else that its code waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class OwnershipTerm:
    """The partition, the epoch we hold it with, and the reason to leave once there is one."""

    def __init__(self, partition: str, epoch: int, leases: LeaseTable) -> None:
        self.partition, self.epoch = partition, epoch
        self.reason: StopReason | None = None
        self._holdings = leases
        self._waits: list[asyncio.Timeout] = []

    def __repr__(self) -> str:
        return f"<OwnershipTerm {self.partition} epoch {self.epoch} {self.reason or 'goes on'}>"

    @property
    def binds(self) -> bool:
        """Whether we may deliver and checkpoint at this moment."""
        return self.reason is not StopReason.LOST and self._holdings.binds(
            self.partition, self.epoch
        )

    @property
    def goes_on(self) -> bool:
        """Whether another batch may be delivered; a lease that has run out ends the term."""
        if self.reason is None and not self.binds:
            self.stop(StopReason.LOST)
        return self.reason is None

    async def confirm(self) -> None:
        """Ask the store whether it is still ours."""
        await self._holdings.renew([self.partition])

    async def settle_epoch(self) -> None:
        """Make sure with which epoch it is ours, before anything is done in its name."""
        self.epoch = await self._holdings.settle_epoch(self.partition)

    async def raise_epoch(self, above: int) -> int:
        """Hold on with an epoch above this one. OwnershipLost if it is not ours to raise."""
        self.epoch = await self._holdings.raise_epoch(self.partition, above)
        return self.epoch

    def follow(self, epoch: int) -> None:
        """Our row has this epoch now; who has lost it before has nothing to follow."""
        if self.reason is not StopReason.LOST:
            self.epoch = epoch

    def count(self, events: int) -> None:
        self._holdings.count(self.partition, events)

    def stop(self, reason: StopReason) -> None:
        """Leave as soon as the batch in hand is done. Being lost overrides every other reason."""
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
        self.wake()

    def wake(self) -> None:
        """End every wait: what was waited for does not matter any more."""
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
        self._waits.clear()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for this, or raise Stopped as soon as we are to leave."""
        if self.reason is not None:
            work.close()
            raise Stopped
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.append(wait)
                return await work
        except TimeoutError:
            if wait.expired():
                raise Stopped from None
            raise
        finally:
            if wait in self._waits:
                self._waits.remove(wait)
