"""The sender and the Spark stages of the demonstration as processes, and their figures.

DemoPlan -> StageProcesses.start -> sender and Spark processes
hub counts, status.json -> StageProcesses.gauges -> terminal, next_homes -> fewer homes
                           ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from pumphouse.cli.demo import processes, stages
from pumphouse.cli.demo.gauges import Gauge, count_events, read_stages
from pumphouse.cli.demo.pace import Sample, next_homes
from pumphouse.cli.demo.processes import DemoProcess
from pumphouse.cli.demo.stages import DemoPlan
from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.dashboard.views.alert_delays import AlertDelays
from pumphouse.errors import PumphouseError
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, SENSORS_HUB
from pumphouse.private_files import create_private_folder

COUNTED_HUBS = (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB)
STOP_S = 7.0  # until sender and Spark are killed; hub and page then have their own deadlines
INTERVAL_S = 1.0
RESPONSE_S = 2.0  # for a hub to return its counts
SAMPLES_MAX = 600

Report = Callable[[str], None]
ReadDelays = Callable[[], AlertDelays]


@asynccontextmanager
async def open_stage_processes(
    plan: DemoPlan,
    connection: str,
    report: Report,
    now_s: Callable[[], float],
    read_delays: ReadDelays = AlertDelays,
) -> AsyncIterator[StageProcesses]:
    async with AsyncExitStack() as stack:
        clients = {
            hub: await stack.enter_async_context(open_client(connection, hub))
            for hub in COUNTED_HUBS
        }
        stage_processes = StageProcesses(plan, connection, report, now_s, clients, read_delays)
        stack.push_async_callback(stage_processes.stop)
        await stage_processes.start()
        yield stage_processes


class StageProcesses:
    """The running sender and Spark processes. Times are seconds since the demonstration began."""

    def __init__(
        self,
        plan: DemoPlan,
        connection: str,
        report: Report,
        now_s: Callable[[], float],
        clients: Mapping[str, HubClient],
        read_delays: ReadDelays = AlertDelays,
    ) -> None:
        self.plan, self.connection, self.clients = plan, connection, clients
        self.report, self.now_s, self.read_delays = report, now_s, read_delays
        self.homes = plan.homes
        self.measuring_since_s = 0.0  # when the homes last changed or the lag was last unknown
        self.counts: dict[str, int] = {}
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.processes: dict[str, DemoProcess] = {}

    async def start(self) -> None:
        create_private_folder(self.plan.results)
        await self.update_counts()
        spec = stages.spark_process(self.plan, self.connection)
        self.processes["spark"] = await processes.start(spec, self.plan.folder)
        await self.restart_sender(self.homes)
        self.report("Spark      starting: sift, watch and record")

    async def restart_sender(self, homes: int) -> None:
        """Restart the sender with this number of homes."""
        if (running := self.processes.pop("homes", None)) is not None:
            await processes.stop([running], STOP_S)
        spec = stages.sender_process(self.plan, self.connection, homes)
        self.processes["homes"] = await processes.start(spec, self.plan.folder)
        self.homes, self.measuring_since_s = homes, self.now_s()
        self.report(f"homes      {homes:,}, five sensors each, one reading a minute")

    async def stop(self) -> None:
        await processes.stop(self.processes.values(), STOP_S)

    async def gauges(
        self, stop: asyncio.Event, until_s: float | None
    ) -> AsyncGenerator[Gauge, None]:
        """One gauge per second until `stop` is set or `until_s` is reached.

        Raises PumphouseError if one of the processes has ended.
        """
        at_s = self.now_s()
        while not stop.is_set() and (until_s is None or self.now_s() < until_s):
            await wait(stop, INTERVAL_S)
            self.check_processes()
            before = self.counts.get(SENSORS_HUB, 0)
            await self.update_counts()
            sent, elapsed_s = self.counts.get(SENSORS_HUB, 0) - before, self.now_s() - at_s
            at_s += elapsed_s
            stage_list = read_stages(self.plan.status)
            rate, counts = sent / elapsed_s, dict(self.counts)
            gauge = Gauge(at_s, self.homes, rate, counts, stage_list, self.read_delays())
            yield gauge
            await self.keep_pace(gauge)

    def check_processes(self) -> None:
        for process in self.processes.values():
            if process.has_ended:
                raise PumphouseError(
                    f"{process.name} ended with exit code {process.process.returncode}:\n"
                    f"{process.log_tail()}"
                )

    async def update_counts(self) -> None:
        """Read how many events each hub has received. A hub that does not respond keeps its count.

        The page can inject faults into the hub; these must not end the demonstration.
        """
        for hub, client in self.clients.items():
            with suppress(PumphouseError, TimeoutError):
                self.counts[hub] = await count_events(client, RESPONSE_S)

    async def keep_pace(self, gauge: Gauge) -> None:
        """Reduce the number of homes if the lag of the first stage keeps growing."""
        if gauge.lag is None:
            self.measuring_since_s = gauge.at_s
            return
        self.samples.append(Sample(gauge.at_s, gauge.lag))
        homes = next_homes(self.homes, self.samples, self.measuring_since_s)
        if homes < self.homes:
            self.report(
                f"this machine is too small for {self.homes:,} homes: the pipeline is "
                f"{gauge.lag:,} events behind and the lag grows; continuing with {homes:,}"
            )
            await self.restart_sender(homes)


async def wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
