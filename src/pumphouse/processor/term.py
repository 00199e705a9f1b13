"""OwnershipTerm: one term of ownership of a partition, from its claim until its pump has ended.

A term knows whether this host may still act as the owner, and why it stops. Stopping ends waits
for events, for a back-off or for a resume. It does not interrupt a handler.

    lease table, engine -> OwnershipTerm -> supervisor, pump, partition client
                           ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from random import Random
from typing import Any, Protocol, TypeVar

from pumphouse.client.base import HubClient
from pumphouse.clock import Clock
from pumphouse.errors import ConnectionFailed, PumphouseError, StoreError, StoreUnavailable
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.handling.cancellation import OwnedTasks
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.reporting import Reporter

T = TypeVar("T")


class Host(Protocol):
    """What cycle, supervisor, pump and partition client use of the engine that runs them."""

    name: str
    client: HubClient
    store: CheckpointStore
    group: Group
    options: ProcessorOptions
    clock: Clock
    rng: Random
    leases: LeaseTable
    reporter: Reporter
    tasks: OwnedTasks


class StopReason(StrEnum):
    """Why a partition is no longer served by this host."""

    SHUTDOWN = "shutdown"
    LOST = "lost"  # another host owns it, or our lease expired
    HAND_OFF = "hand-off"  # another host requested it and gets it in good order
    ERROR = "error"  # the pump failed; it is started again


class Stopped(Exception):
    """The term stops: the awaited result is no longer needed."""


class PartitionEnded(Exception):
    """This host stops serving the partition; the current batch was not handled."""


@asynccontextmanager
async def hub_within(seconds: float, what: str, where: str) -> AsyncGenerator[None, None]:
    """ConnectionFailed with the name of the call if the hub does not respond in time."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        raise ConnectionFailed(f"{what}: {where} {no_response(limit, seconds, error)}") from None


@asynccontextmanager
async def store_within(seconds: float, what: str) -> AsyncGenerator[None, None]:
    """Raise StoreUnavailable with the name of the call if the store does not respond.

    An exception of a store of the user's own becomes a StoreError: of a driver or a bug, it must
    not end the host before `give_up_s`.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        raise StoreUnavailable(
            f"{what}: the checkpoint store {no_response(limit, seconds, error)}"
        ) from None
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error!r}") from error
    except PumphouseError:
        raise
    except Exception as error:
        raise StoreError(f"{what}: {error!r}") from error


def no_response(limit: asyncio.Timeout, seconds: float, error: TimeoutError) -> str:
    """The end of the error text of a call that timed out."""
    if limit.expired() or not str(error):
        return f"did not respond within {seconds:g} s"
    return f"did not respond: {error}"


class OwnershipTerm:
    """A partition, the epoch it is held with, and the reason to stop once there is one."""

    def __init__(self, partition: str, epoch: int, leases: LeaseTable) -> None:
        self.partition, self.epoch = partition, epoch
        self.reason: StopReason | None = None
        # The last handled event before the checkpoint was moved by hand; None: it was not moved.
        self.moved_from: int | None = None
        self._leases = leases
        self._waits: list[asyncio.Timeout] = []

    def __repr__(self) -> str:
        return f"<OwnershipTerm {self.partition} epoch {self.epoch} {self.reason or 'active'}>"

    @property
    def has_lease(self) -> bool:
        """Whether this host may deliver and checkpoint at this moment."""
        return self.reason is not StopReason.LOST and self._leases.is_valid(
            self.partition, self.epoch
        )

    @property
    def is_clean(self) -> bool:
        """Whether the partition is handed over or released in good order."""
        return self.reason in (StopReason.SHUTDOWN, StopReason.HAND_OFF)

    @property
    def is_active(self) -> bool:
        """Whether another batch may be delivered. An expired lease ends the term."""
        if self.reason is None and not self.has_lease:
            self.stop(StopReason.LOST)
        return self.reason is None

    async def confirm(self) -> None:
        """Renew the lease, to learn from the store whether the partition is still ours."""
        await self._leases.renew([self.partition])

    async def settle_epoch(self) -> None:
        """Make sure which epoch the stored row has, before it is used."""
        self.epoch = await self._leases.settle_epoch(self.partition)

    async def raise_epoch(self, above: int) -> int:
        """Continue with an epoch above this one. OwnershipLost if the partition is not ours."""
        self.epoch = await self._leases.raise_epoch(self.partition, above)
        return self.epoch

    def follow(self, epoch: int) -> None:
        """Use the epoch that our row has now. Ignored once ownership is lost."""
        if self.reason is not StopReason.LOST:
            self.epoch = epoch

    def count(self, events: int) -> None:
        self._leases.count(self.partition, events)

    def stop(self, reason: StopReason) -> None:
        """Stop after the current batch. LOST replaces every other reason."""
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
        self.wake()

    def wake(self) -> None:
        """End every `unless_stopped` with Stopped."""
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
        self._waits.clear()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this coroutine; raises Stopped as soon as the term stops."""
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
