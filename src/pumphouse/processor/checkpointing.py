"""When a checkpoint is written, and that only one is under way per partition.

The events that a policy counts are those that were handled. Many marks become one write: only the
newest is written. Whatever is pending when a partition is left cleanly is written then.

    handled events -> is_due -> Checkpoints -> CheckpointWriter -> store
                      ^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pumphouse.clock import Clock
from pumphouse.errors import OptionError, StoreError
from pumphouse.events import Event
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions

RETRY_S = 1.0  # after a checkpoint that the policy wanted could not be written


@dataclass(frozen=True, slots=True)
class Pending:
    """What was handled and is not in the checkpoint yet."""

    last: Event
    events: int
    since_s: float


def add(pending: Pending | None, batch: list[Event], now_s: float) -> Pending:
    if pending is None:
        return Pending(batch[-1], len(batch), now_s)
    return replace(pending, last=batch[-1], events=pending.events + len(batch))


def due_in(policy: CheckpointPolicy, pending: Pending | None, now_s: float) -> float:
    """How long until a checkpoint is due; 0 if it is, infinity if none ever will be."""
    if pending is None:
        return math.inf
    if policy.every_events is not None and pending.events >= policy.every_events:
        return 0.0
    if policy.every_s is None:
        return math.inf
    return max(0.0, pending.since_s + policy.every_s - now_s)


def sequence_of(event: Event) -> int:
    """The place of an event that was read."""
    if event.sequence is None:
        raise OptionError("an event that was not read from a hub has no place in a partition")
    return event.sequence


class Checkpoints:
    """The checkpoint of one partition, written by its owner only, and only while it binds."""

    def __init__(
        self,
        writer: CheckpointWriter,
        options: ProcessorOptions,
        clock: Clock,
        report: Callable[[Exception], None],
    ) -> None:
        self._writer, self._policy, self._clock = writer, options.checkpoints, clock
        self._deadline_s = options.store_s
        self._report = report
        self._pending: Pending | None = None
        self._said: Event | None = None  # the furthest that anybody asked for
        self._rests_until_s = -math.inf  # after a failure
        self._one = asyncio.Lock()  # one write under way

    def handled(self, batch: list[Event]) -> None:
        """These events were handled, all of them."""
        if batch and self._policy.on:
            self._pending = add(self._pending, batch, self._clock.monotonic())

    @property
    def due_in_s(self) -> float:
        now_s = self._clock.monotonic()
        return max(due_in(self._policy, self._pending, now_s), self._rests_until_s - now_s)

    async def keep(self) -> None:
        """Write what is pending if it is due. A store that is away for a while holds up nothing."""
        if self.due_in_s > 0:
            return
        try:
            await self.flush()
        except StoreError as failed:
            self._rests_until_s = self._clock.monotonic() + RETRY_S
            self._report(failed)

    async def flush(self) -> None:
        """Write what is pending."""
        if self._pending is not None:
            await self.write(self._pending.last)

    async def write(self, event: Event) -> None:
        """Write the checkpoint at this event. OwnershipLost if we may not.

        Whoever goes through a batch again says again what was said: the furthest of it counts.
        """
        async with self._one:
            if self._said is not None and sequence_of(event) < sequence_of(self._said):
                event = self._said
            self._said = event
            await self._advance(event)
        if self._pending is not None and sequence_of(self._pending.last) <= sequence_of(event):
            self._pending = None

    async def _advance(self, event: Event) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._writer.advance(sequence_of(event), event.offset, event.enqueued_ms)
        except TimeoutError:
            raise StoreError(
                f"the checkpoint of partition {self._writer.partition} was not written within "
                f"{self._deadline_s:g} s"
            ) from None
