"""Continuity: makes sure that a pump skips no event without a report.

    pump -> Continuity -> hub: first and last event of the partition
            ^^^^^^^^^^ -> on_expired: report, fail or your function -> log, on_error, counter

* Before a reader opens after a checkpoint or after the last event, the first event of the partition
  is read from the hub. Events between the two are gone.
* If the hub still has the last event, the reader returns it again. If another event has its
  number, the hub was re-created, even if it has grown past the checkpoint since.
* Each event must follow the one before: retention may also pass a slow or paused partition.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

from pumphouse.client.base import HubClient, PartitionProperties, ReaderOptions
from pumphouse.errors import AmqpError, EventsExpired, PumphouseError
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint
from pumphouse.logs import text_of
from pumphouse.processor.checks.gaps import (
    LastRead,
    is_accepted,
    is_retained,
    is_same_event,
    last_of,
    missing_before,
    start_after,
)
from pumphouse.processor.options import FAIL, REPORT, OnExpired
from pumphouse.processor.reporting import Reporter


class ContinuityHost(Protocol):
    """What this module uses of a host."""

    client: HubClient
    reporter: Reporter


class Continuity:
    """The last event that a pump has read, and the next one that it must hand out."""

    def __init__(
        self,
        host: ContinuityHost,
        partition: str,
        policy: OnExpired,
        checkpoint: Checkpoint,
        accepted: EventsExpired | None = None,
    ) -> None:
        self.partition = partition
        self._host, self._policy, self._accepted = host, policy, accepted
        self._last = last_of(checkpoint)  # a reader opens after this event
        self._next = None if self._last is None else self._last.sequence + 1  # to hand out
        self._compared: LastRead | None = None  # the next reader returns this event first
        self._has_holes = False  # the hub compacts its log: holes are not losses

    # -- opening a reader -------------------------------------------------------------------------

    async def before_open(self, options: ReaderOptions) -> ReaderOptions:
        """The options of the next reader. EventsExpired if the policy stops the partition here."""
        if self._last is None:
            return options
        partition = await self._host.client.partition_properties(self.partition)
        if (missing := missing_before(self._last, partition)) is not None:
            await self._report(missing)
            self._pass(missing)
        compare = is_retained(self._last, partition)
        self._compared = self._last if compare else None
        return replace(options, position=start_after(self._last, compare=compare))

    @property
    def is_comparing(self) -> bool:
        """Whether the reader returns one event first that was read before."""
        return self._compared is not None

    def compared(self, events: list[Event]) -> list[Event] | None:
        """New events among those that a reader returned first; None if the hub was re-created."""
        if not events:
            return events
        last, self._compared = self._compared, None
        if last is None or events[0].sequence != last.sequence:
            return events
        return events[1:] if is_same_event(last, events[0]) else None

    def continue_after(self, event: Event) -> None:
        """The next reader opens after this event."""
        self._last = last_of(event)

    async def recreated(self) -> PartitionProperties:
        """Report that the hub was re-created; the partition as it is now."""
        assert self._last is not None
        await self._report(
            EventsExpired(self.partition, self._last.sequence + 1, None, recreated=True)
        )
        return await self._host.client.partition_properties(self.partition)

    def restart(self) -> None:
        """Start at the beginning of a re-created hub."""
        self._last = self._next = self._compared = None

    # -- handing out ------------------------------------------------------------------------------

    async def check(self, event: Event) -> None:
        """Report what is missing before this event. EventsExpired if the policy stops here."""
        sequence = event.sequence or 0
        if self._next is None or sequence <= self._next or self._has_holes:
            return
        missing = EventsExpired(self.partition, self._next, sequence - 1)
        if await self._is_retained(self._next):
            self._has_holes = True
            return
        await self._report(missing)
        self._next = sequence

    def handed_out(self, event: Event) -> None:
        self._next = (event.sequence or 0) + 1

    async def _is_retained(self, sequence: int) -> bool:
        """Whether retention has not reached this missing event. Then the hub compacts its log."""
        try:
            partition = await self._host.client.partition_properties(self.partition)
        except PumphouseError:
            return False
        return partition.first_sequence <= sequence

    # -- the policy -------------------------------------------------------------------------------

    def _pass(self, missing: EventsExpired) -> None:
        assert missing.last is not None
        self._last, self._next = LastRead(missing.last), missing.last + 1

    async def _report(self, error: EventsExpired) -> None:
        if is_accepted(error, self._accepted):
            return
        if await decide(self._policy, error) == FAIL:
            raise error
        await self._host.reporter.expired(self.partition, error)


async def decide(policy: OnExpired, error: EventsExpired) -> str:
    """REPORT or FAIL, as the policy decides. Raises `error` if a policy function fails."""
    if isinstance(policy, str):
        return policy
    try:
        # A plain function may take its time: it must not block the event loop.
        coroutine = inspect.iscoroutinefunction(policy)
        answer = policy(error) if coroutine else await asyncio.to_thread(policy, error)
        if isinstance(answer, Awaitable):
            answer = await answer
    except Exception as raised:
        error.add_note(f"on_expired raised {type(raised).__name__}: {text_of(raised)}")
        raise error from raised
    if answer not in (None, REPORT, FAIL):
        error.add_note(f"on_expired must return None, {REPORT!r} or {FAIL!r} (got {answer!r})")
        raise error
    return answer or REPORT


def is_unknown_position(error: PumphouseError) -> bool:
    """Whether the hub does not know the position: it was re-created, and we are ahead of it."""
    return isinstance(error, AmqpError) and error.condition == "com.microsoft:argument-error"
