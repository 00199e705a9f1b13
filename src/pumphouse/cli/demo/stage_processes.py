"""The homes that send and the Spark stages of the demonstration, and what is seen of them.

Cast -> Troupe.start -> players;  hubs' counts, status.json -> Troupe.gauges -> demo's terminal
        ^^^^^^ this module                                     -> pace.judge -> fewer homes
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from pumphouse.cli.demo import processes as players
from pumphouse.cli.demo import stages as parts
from pumphouse.cli.demo.gauges import Gauge, count, read_stages
from pumphouse.cli.demo.pace import Sample, judge
from pumphouse.cli.demo.processes import Player
from pumphouse.cli.demo.stages import Cast
from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, SENSORS_HUB

COUNTED = (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB)
STOP_S = 7.0  # for those who send and count; the hub and the page have the rest of ten seconds
LOOK_S = 1.0
ANSWER_S = 2.0  # for a hub to say its counts
SAMPLES_MAX = 600

Say = Callable[[str], None]


@asynccontextmanager
async def troupe_of(
    cast: Cast, connection: str, say: Say, now_s: Callable[[], float]
) -> AsyncIterator[Troupe]:
    async with AsyncExitStack() as stack:
        clients = {
            hub: await stack.enter_async_context(open_client(connection, hub)) for hub in COUNTED
        }
        troupe = Troupe(cast, connection, say, now_s, clients)
        stack.push_async_callback(troupe.stop)
        await troupe.start()
        yield troupe


class Troupe:
    """Times are seconds since the demonstration began."""

    def __init__(
        self,
        cast: Cast,
        connection: str,
        say: Say,
        now_s: Callable[[], float],
        clients: Mapping[str, HubClient],
    ) -> None:
        self.cast, self.connection, self.clients = cast, connection, clients
        self.say, self.now_s = say, now_s
        self.homes = cast.homes
        self.changed_s = 0.0
        self.counts: dict[str, int] = {}
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.players: dict[str, Player] = {}

    async def start(self) -> None:
        self.cast.results.mkdir(parents=True, exist_ok=True)
        await self.look_at_hubs()
        spark = await players.start(parts.stages(self.cast, self.connection), self.cast.folder)
        self.players["spark"] = spark
        await self.send(self.homes)
        self.say("Spark      is starting: sift, watch and record")

    async def send(self, homes: int) -> None:
        """So many homes from now on."""
        if (before := self.players.pop("homes", None)) is not None:
            await players.stop([before], STOP_S)
        part = parts.senders(self.cast, self.connection, homes)
        self.players["homes"] = await players.start(part, self.cast.folder)
        self.homes, self.changed_s = homes, self.now_s()
        self.say(f"homes      {homes:,}, each with five sensors, once a minute")

    async def stop(self) -> None:
        await players.stop(self.players.values(), STOP_S)

    async def gauges(
        self, stop: asyncio.Event, until_s: float | None
    ) -> AsyncGenerator[Gauge, None]:
        """A look a second, until it is time; whoever has ended too early is told of."""
        looked_s = self.now_s()
        while not stop.is_set() and (until_s is None or self.now_s() < until_s):
            await wait(stop, LOOK_S)
            self.check()
            before = self.counts.get(SENSORS_HUB, 0)
            await self.look_at_hubs()
            sent, over_s = self.counts.get(SENSORS_HUB, 0) - before, self.now_s() - looked_s
            looked_s += over_s
            stages = read_stages(self.cast.status)
            gauge = Gauge(looked_s, self.homes, sent / over_s, dict(self.counts), stages)
            yield gauge
            await self.keep_pace(gauge)

    def check(self) -> None:
        for player in self.players.values():
            if player.ended:
                raise PumphouseError(
                    f"{player.name} ended with exit code {player.process.returncode}:\n"
                    f"{player.last_words()}"
                )

    async def look_at_hubs(self) -> None:
        """How many events each has taken in. One that does not answer now may at the next look.

        The page breaks things on request; what was asked for must not end the demonstration.
        """
        for hub, client in self.clients.items():
            with suppress(PumphouseError, TimeoutError):
                self.counts[hub] = await count(client, ANSWER_S)

    async def keep_pace(self, gauge: Gauge) -> None:
        """Fewer homes, if the first stage falls farther and farther behind."""
        if gauge.lag is None:
            self.changed_s = gauge.at_s
            return
        self.samples.append(Sample(gauge.at_s, gauge.lag))
        homes = judge(self.homes, self.samples, self.changed_s)
        if homes < self.homes:
            self.say(
                f"this machine is too small for {self.homes:,} homes (the pipeline is "
                f"{gauge.lag:,} events behind and falls farther): going on with {homes:,}"
            )
            await self.send(homes)


async def wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
