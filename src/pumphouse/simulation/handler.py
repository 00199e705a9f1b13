"""The handler of a simulated host: the user's own handler, and injected faults.

adapter -> SimulatedHandler -> (slow, stuck, raises) -> checks
           ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from pumphouse.errors import ConnectionFailed, OwnershipLost
from pumphouse.events import Event
from pumphouse.processor.handling.threads import finish
from pumphouse.processor.options import SKIP
from pumphouse.simulation.faults.profiles import NO_FAULTS, Faults
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostProcess

Handler = Callable[[Any, list[Event]], Awaitable[None] | None]
SLOW_S, STUCK_S = (1.0, 20.0), (70.0, 240.0)
POISON = b"poison"
MESSAGE_CHARS_MAX = 300  # of an exception
SPARED_EVENTS = 100  # as many as the largest batch has


OUTAGE = 0.3  # the share of injected exceptions that are an outage
OUTAGE_S = (1.0, 30.0)


class InjectedError(Exception):
    """An injected exception of a handler."""


class InjectedOutage(ConnectionFailed):
    """A hub to which the handler sends is away for a while."""


@dataclass(slots=True)
class FailedAttempts:
    """How often a handler failed on one batch, or on a part of it."""

    batch: int  # its number
    times: int = 0


class SimulatedHandler:
    """Handles the batches of one host. `faults_ended` ends a stuck handler."""

    def __init__(
        self,
        process: HostProcess,
        checks: Checks,
        rng: Random,
        injected: Counter[str],
        faults_ended: asyncio.Event,
        handler: Handler | None = None,
        repaired: Container[tuple[str, int]] = frozenset(),
    ) -> None:
        self.repaired = repaired  # poison events on which it no longer raises
        self.process, self.checks, self.rng, self.injected = process, checks, rng, injected
        self.handler, self.faults_ended = handler, faults_ended
        self.faults: Faults = NO_FAULTS
        self.has_poison_policy = True  # False for a loop of the user's own
        self._away_until_s = 0.0  # of the hub to which it sends
        self._spared: dict[str, int] = {}  # by partition: no injected exception up to this event
        # By the call of a partition client that has the batch.
        self._failed: WeakKeyDictionary[Any, FailedAttempts] = WeakKeyDictionary()

    async def handle(self, partition: Any, events: list[Event]) -> None:
        """Handle a batch as user code may: afterwards its list is empty, however it has ended."""
        batch = list(events)
        try:
            await self._handle(partition, batch)
        finally:
            events.clear()

    async def _handle(self, partition: Any, batch: list[Event]) -> None:
        """Handle a batch of a partition client, and report the call to the checks."""
        if not batch:
            return
        call = self.checks.handler_started(self.process, partition, partition.epoch, batch)
        try:
            await self._call(partition, batch)
        except BaseException as raised:
            by_user = is_from_user_handler(raised)
            error = describe(raised) if by_user else type(raised).__name__
            self.checks.handler_raised(call, error)
            skipped = self._is_skipped(partition, batch)
            if by_user:
                self._spare(partition.id, call.last)
                self.checks.user_handler_raised(call, error, skipped=skipped)
            raise
        self.checks.handler_returned(call)

    def _is_skipped(self, partition: Any, batch: Sequence[Event]) -> bool:
        """Count a failed attempt; returns whether the policy now skips this single event."""
        call, policy = partition.handlers.current, self.checks.options.poison
        attempts = self._failed.get(call)
        if attempts is None or attempts.batch != call.batches:
            attempts = self._failed[call] = FailedAttempts(call.batches)
        attempts.times += 1
        exhausted = attempts.times > policy.retries
        skips = self.has_poison_policy and policy.then == SKIP
        return skips and len(batch) == 1 and exhausted

    async def _call(self, partition: Any, batch: list[Event]) -> None:
        await self._inject_faults(partition.id, batch)
        if self.handler is not None:
            result = self.handler(partition, batch)
            await finish(result)

    async def _inject_faults(self, partition: str, batch: Sequence[Event]) -> None:
        last = batch[-1].sequence or 0
        if any(self._is_poison(partition, event) for event in batch):
            self._spare(partition, last)
            raise InjectedError("poison")
        if self._draw("handler_stuck"):
            await self._hang(self.rng.uniform(*STUCK_S))
        elif self._draw("handler_slow"):
            await asyncio.sleep(self.rng.uniform(*SLOW_S))
        elif self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0.001, 0.3))
        if asyncio.get_running_loop().time() < self._away_until_s:
            raise InjectedOutage("the hub to which the handler sends is away")
        # After the last retry of a batch each of its events is tried alone, once. An injected
        # exception in that attempt would make the processor skip a valid event.
        if last <= self._spared.get(partition, -1):
            return
        if self._draw("handler_cancels"):
            self._spare(partition, last)
            await cancel_own_task()
        if self._draw("handler_raises"):
            if self.rng.random() < OUTAGE:
                away_s = self.rng.uniform(*OUTAGE_S)
                self._away_until_s = asyncio.get_running_loop().time() + away_s
                raise InjectedOutage("the hub to which the handler sends is away")
            self._spare(partition, last)
            raise InjectedError("at random")

    def _spare(self, partition: str, last: int) -> None:
        """Inject no exception up to some events after this one."""
        before = -1 if self.checks.options.key_order is None else self._spared.get(partition, -1)
        self._spared[partition] = max(before, last + SPARED_EVENTS)

    def _is_poison(self, partition: str, event: Event) -> bool:
        return event.body == POISON and (partition, event.sequence or 0) not in self.repaired

    async def _hang(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.faults_ended.wait()
        except TimeoutError:
            pass

    def _draw(self, kind: str) -> bool:
        rate: float = getattr(self.faults, kind)
        if rate and self.rng.random() < rate:
            self.injected[kind.replace("_", " ")] += 1
            return True
        return False


async def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def is_from_user_handler(raised: BaseException) -> bool:
    """Whether the user's handler raised, and neither a fault nor a lost partition is the reason."""
    injected = InjectedError | InjectedOutage | OwnershipLost
    return isinstance(raised, Exception) and not isinstance(raised, injected)


def describe(raised: BaseException) -> str:
    """Type and message in one line, without memory addresses, which differ in every run."""
    text = re.sub(r"\b0x[0-9a-fA-F]+", "0x…", " ".join(str(raised).split()))
    return f"{type(raised).__name__}: {text[:MESSAGE_CHARS_MAX]}".removesuffix(": ")
