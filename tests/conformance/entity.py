"""The event hub under test: its readers, its clock, and the links that it refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from pumphouse.errors import AmqpError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.namespace import EventHub, Partition
from pumphouse.logs import line

# No test depends on speed: this only bounds a wait that would never end.
DEADLINE_S = 30.0

group_numbers = count(1)


@dataclass(frozen=True)
class Entity:
    """One event hub of the namespace under test."""

    hub: EmbeddedHub
    name: str

    @property
    def connection(self) -> str:
        return self.hub.connection_string(self.name)

    @property
    def address(self) -> str:
        """Host and port, for clients that are made from a credential."""
        return f"{self.hub.host}:{self.hub.port}"

    @property
    def resource(self) -> str:
        """The name in the hub's refusals: it has the plain port in every variant."""
        return f"sb://{self.hub.server.authority}/{self.name}"

    @property
    def model(self) -> EventHub:
        return self.hub.namespace.hub(self.name)

    def partition(self, number: int | str) -> Partition:
        return self.model.partitions[int(number)]

    def new_group(self) -> str:
        """A new consumer group, without readers of earlier tests that are still closing."""
        name = f"group-{next(group_numbers)}"
        self.hub.create_group(self.name, name)
        return name

    def reader_count(self, number: int | str = 0, group: str = "$default") -> int:
        return len(self.partition(number).readers.get(group, []))

    async def attached(
        self, count: int = 1, number: int | str = 0, group: str = "$default"
    ) -> None:
        """Wait until a partition has `count` readers."""
        await eventually(
            lambda: self.reader_count(number, group) == count,
            lambda: f"{count} readers on {self.name}/{number}: {self.reader_count(number, group)}",
        )


@asynccontextmanager
async def running(hub: EmbeddedHub) -> AsyncIterator[EmbeddedHub]:
    """A hub for one test, stopped in a thread so that clients on this loop see it close."""
    await asyncio.to_thread(hub.__enter__)
    try:
        yield hub
    finally:
        await asyncio.to_thread(hub.__exit__)


async def eventually(
    condition: Callable[[], object], complaint: Callable[[], str] = lambda: "the condition"
) -> None:
    """Poll until a condition holds that no event announces."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s for {complaint()}"
        await asyncio.sleep(0.01)


class MovableClock:
    """Real time plus an offset that the test changes.

    The SDK's tokens expire after an hour of real time. A test that advances the clock further and
    needs valid tokens starts in the past.
    """

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def advance(self, seconds: float) -> None:
        self.ahead_s += seconds

    def now(self) -> float:
        return time.time() + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Refusals(logging.Handler):
    """The links that the hub refused, from its log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.errors: list[AmqpError] = []

    def count(self, code: str, text: str) -> int:
        return sum(e.condition == code and e.description.startswith(text) for e in self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        [entry] = record.args if isinstance(record.args, tuple) and record.args else [None]
        if isinstance(entry, line) and entry.event == "link_refused":
            self.errors.append(entry.fields["error"])  # type: ignore[arg-type]
