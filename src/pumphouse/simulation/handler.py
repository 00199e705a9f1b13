"""What the handler of a simulated host does with a batch: your own code, and a bit of trouble.

face -> SimulatedHandler -> (slow, stuck, raises) -> checks
        ^^^^ this module
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pumphouse.errors import OwnershipLost
from pumphouse.events import Event
from pumphouse.processor.options import SKIP
from pumphouse.simulation.faults.profiles import NO_FAULTS, Faults
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostProcess

Handler = Callable[[Any, list[Event]], Awaitable[None] | None]
SLOW_S, STUCK_S = (1.0, 20.0), (70.0, 240.0)
POISON = b"poison"
WORDS_MAX = 300  # characters of an exception's message
QUIET_EVENTS = 100  # as many as a batch may have


class InjectedError(Exception):
    """A handler that raises, on purpose."""


@dataclass(slots=True)
class FailedAttempts:
    """How often a batch that a partition client handed out, or a part of it, was tried in vain."""

    batch: tuple[Any, int]
    times: int = 0


class SimulatedHandler:
    """Handles the batches of one host. `clears` ends what is stuck when the weather clears up."""

    def __init__(
        self,
        process: HostProcess,
        checks: Checks,
        rng: Random,
        injected: Counter[str],
        clears: asyncio.Event,
        handler: Handler | None = None,
    ) -> None:
        self.process, self.checks, self.rng, self.injected = process, checks, rng, injected
        self.handler, self.clears = handler, clears
        self.faults: Faults = NO_FAULTS
        self.buries = True  # what cannot be handled, as the PoisonPolicy says
        self._quiet: dict[str, int] = {}  # by partition: up to here nothing raises by chance
        self._raised: dict[str, FailedAttempts] = {}  # by partition

    async def handle(self, partition: Any, batch: list[Event]) -> None:
        """Handle a batch of a partition client, and let it be checked."""
        if not batch:
            return
        call = self.checks.start(self.process, partition, partition.epoch, batch)
        try:
            await self._do(partition, batch)
        except BaseException as raised:
            theirs = own(raised)
            self.checks.failed(call, in_words(raised) if theirs else type(raised).__name__)
            buried = self._tried(partition, batch)
            if theirs:
                self._quiet[partition.id] = call.last + QUIET_EVENTS
                self.checks.theirs(call, in_words(raised), buried=buried)
            raise
        self.checks.done(call)

    def _tried(self, partition: Any, batch: Sequence[Event]) -> bool:
        """It was in vain; whether the policy now skips the event, which was tried by itself."""
        whole, policy = (partition, partition.batches_handed_out), self.checks.options.poison
        raised = self._raised.get(partition.id)
        if raised is None or raised.batch != whole:
            raised = self._raised[partition.id] = FailedAttempts(whole)
        raised.times += 1
        often = raised.times > policy.retries
        return self.buries and policy.then == SKIP and len(batch) == 1 and often

    async def _do(self, partition: Any, batch: list[Event]) -> None:
        await self._trouble(partition.id, batch)
        if self.handler is not None:
            told = self.handler(partition, batch)
            if inspect.isawaitable(told):
                await told

    async def _trouble(self, partition: str, batch: Sequence[Event]) -> None:
        last = batch[-1].sequence or 0
        if any(event.body == POISON for event in batch):
            self._quiet[partition] = last + QUIET_EVENTS
            raise InjectedError("poison")
        if self._draw("handler_stuck"):
            await self._linger(self.rng.uniform(*STUCK_S))
        elif self._draw("handler_slow"):
            await asyncio.sleep(self.rng.uniform(*SLOW_S))
        elif self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0.001, 0.3))
        # Tried one by one, an event has one chance only: raising again would bury a good one.
        if last > self._quiet.get(partition, -1) and self._draw("handler_raises"):
            self._quiet[partition] = last + QUIET_EVENTS
            raise InjectedError("by chance")

    async def _linger(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.clears.wait()
        except TimeoutError:
            pass

    def _draw(self, kind: str) -> bool:
        rate: float = getattr(self.faults, kind)
        if rate and self.rng.random() < rate:
            self.injected[kind.replace("_", " ")] += 1
            return True
        return False


def own(raised: BaseException) -> bool:
    """Whether your own handler has failed, rather than one that is made to, or lost its right."""
    return isinstance(raised, Exception) and not isinstance(raised, InjectedError | OwnershipLost)


def in_words(raised: BaseException) -> str:
    """Type and message in one line, without addresses, which no seed can repeat."""
    text = re.sub(r"\b0x[0-9a-fA-F]+", "0x…", " ".join(str(raised).split()))
    return f"{type(raised).__name__}: {text[:WORDS_MAX]}".removesuffix(": ")
