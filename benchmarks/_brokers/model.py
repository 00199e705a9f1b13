"""What every broker and every client of one offers to the benchmark."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Protocol

from benchmarks._processes import ROOT

OURS_PYTHON = Path(sys.executable)
PEERS_PYTHON = ROOT / ".venv-brokers" / "bin" / "python"
INSTALL = "run scripts/brokers"

BATCH_EVENTS = 100
IN_FLIGHT = 20  # batches that wait for their acknowledgement
WINDOW = BATCH_EVENTS * IN_FLIGHT  # events, for clients without batches
SIZES = {100: "100 B", 1024: "1 KiB", 16384: "16 KiB"}
IDLE_S = 0.5  # the longest time without a result of `consume`

MEMORY, DURABLE = "in memory", "durable"

Acknowledged = Callable[[int], None]  # called with the number of further acknowledged events


class Client(Protocol):
    """A client of one stream; one coroutine uses it."""

    async def open(self) -> None:
        """Connect, and create the stream if it does not exist."""

    async def close(self) -> None: ...

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        """Publish events, at most WINDOW of them without acknowledgement; in order."""

    async def send(self, body: bytes) -> None:
        """Publish one event as fast as possible; returns when it is acknowledged."""

    def consume(self) -> AsyncIterator[Sequence[bytes]]:
        """The bodies of all events from the first; empty after IDLE_S without an event."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of client."""

    name: str  # the worker finds the class of the client by this name
    title: str  # in the figures
    python: Path
    modes: tuple[str, ...] = (MEMORY, DURABLE)
    publishes: bool = True
    rereads: bool = True  # False: reading removes the events
    share: float = 1.0  # of the number of events; below 1 for slow clients
    durable_share: float = 1.0  # a further factor, if each event is synced alone
    keeps_bytes: int | None = None  # the broker drops older events beyond this size
    survives: bool = True  # a restart, in the mode DURABLE


@dataclass(frozen=True, slots=True)
class Launch:
    """The processes of one broker. The last one is the broker, the others are its helpers."""

    commands: tuple[Sequence[str], ...]
    env: dict[str, str]
    ready: Callable[[Popen[bytes], float], str]  # waits for it until a time; returns the address
    prints_address: bool = False


class Broker(Protocol):
    """A broker that can be started in a folder."""

    @property
    def name(self) -> str: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    def absent(self) -> str:
        """The reason why it cannot be started; empty if it can."""

    def launch(self, folder: Path, mode: str) -> Launch: ...


def stream_name(kind: str, size: int) -> str:
    """The stream of events of one size; clients of a kind before the hyphen share it."""
    return f"{kind.partition('-')[0]}-{size}"


async def arriving(bodies: list[bytes], arrived: asyncio.Event) -> AsyncIterator[Sequence[bytes]]:
    """The bodies that a callback has added to a list, batch by batch."""
    while True:
        try:
            await asyncio.wait_for(arrived.wait(), IDLE_S)
        except TimeoutError:
            yield ()
            continue
        arrived.clear()
        batch, bodies[:] = list(bodies), []
        yield batch
