"""The web server of the page.

    options = DashboardOptions(groups=(WatchedGroup(connection, "sensors", store="leases.db"),))
    async with Dashboard(options) as page:
        print(page.url)

options -> Dashboard -> GroupMonitor, HomesMonitor -> UpdateSignal -> streams, routes -> browser
           ^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Self
from urllib.parse import urlencode

import uvicorn

from pumphouse.client.base import HubClient, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.dashboard.monitors.alert_details import AlertActions
from pumphouse.dashboard.monitors.events import Tail
from pumphouse.dashboard.monitors.groups import GroupMonitor
from pumphouse.dashboard.monitors.homes import HomesMonitor, first_error
from pumphouse.dashboard.monitors.host_processes import RUNNING, STOPPING
from pumphouse.dashboard.monitors.hub_faults import HubFaults
from pumphouse.dashboard.monitors.readiness import Source, not_ready
from pumphouse.dashboard.monitors.stages import STAGE_COLUMNS, read_stages
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.options import DashboardOptions
from pumphouse.dashboard.server.client_log import RequestLog
from pumphouse.dashboard.server.guard import LAUNCH_TOKEN, access_to
from pumphouse.dashboard.server.protocol import BACKLOG, TimedProtocol
from pumphouse.dashboard.server.routes import make_app
from pumphouse.dashboard.server.streams import StageStatus
from pumphouse.dashboard.views.alert_delays import AlertDelays
from pumphouse.dashboard.views.fleet import vocabulary
from pumphouse.dashboard.views.homes import homes_vocabulary
from pumphouse.dashboard.views.ownership_history import CHANGE_MEANINGS
from pumphouse.dashboard.views.table import columns_json
from pumphouse.errors import PortTaken, PumphouseError
from pumphouse.homes.stage_counts import stage_counts_json
from pumphouse.logs import RepeatedFailures, line

HOST = "127.0.0.1"
STREAMS_MAX = 32
TOKEN_BYTES = 24
GRACE_S = 2  # for open requests on shutdown
START_S = 10.0  # for the web server to start
RETRY_S = 2.0  # after an unexpected failure of a monitor

log = logging.getLogger("pumphouse.dashboard")


class Dashboard:
    """Serves the page inside an `async with` block. Leaving the block takes a bounded time."""

    def __init__(self, options: DashboardOptions, *, clock: Clock | None = None) -> None:
        self.options = options
        self.clock: Clock = clock or SystemClock()
        token = secrets.token_urlsafe(TOKEN_BYTES) if options.token is None else options.token
        self.access = access_to(options.port, token, secrets.token_urlsafe(TOKEN_BYTES))
        self.updates = UpdateSignal()
        self.stages = StageStatus()
        self.faults = HubFaults(options.connection, options.ca_file)
        self.monitors = [
            GroupMonitor(watched, f"g{number}", self.clock, options.ca_file)
            for number, watched in enumerate(options.groups)
        ]
        self.homes_monitor = (
            None
            if options.homes is None
            else HomesMonitor(options.homes, self.clock, options.ca_file)
        )
        self.alert_desk = (
            None
            if self.homes_monitor is None
            else AlertActions(self.homes_monitor, self.homes_client, write=options.write)
        )
        self.port = 0
        self._streams = 0
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._monitoring: list[asyncio.Task[None]] = []
        self._tasks = asyncio.TaskGroup()
        self._fleets = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<Dashboard {self.address} | {self._streams} streams>"

    @property
    def address(self) -> str:
        """The address of the page. A browser that has opened `url` once can use it."""
        return f"http://{HOST}:{self.port}/"

    @property
    def url(self) -> str:
        """The address to open, with the launch token: it must not be logged."""
        token = self.access.launch_token
        return f"{self.address}?{urlencode({LAUNCH_TOKEN: token})}" if token else self.address

    def alert_delays(self) -> AlertDelays:
        """The delays of recent alerts, from the sensor to the hub."""
        return AlertDelays() if self.homes_monitor is None else self.homes_monitor.alert_delays()

    # -- starting and stopping --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        listening = listen(self.options.port)
        self.port = listening.getsockname()[1]
        self.access = access_to(self.port, self.access.launch_token, self.access.change_token)
        try:
            for monitor in self.monitors:
                if monitor.group.fleet is not None:
                    await self._fleets.enter_async_context(monitor.group.fleet)
            await self._tasks.__aenter__()
            self._monitoring = [
                self._tasks.create_task(self._keep_running(run)) for run in self._monitor_runs()
            ]
            await self._serve(listening)
        except BaseException:
            listening.close()
            await self._fleets.aclose()
            raise
        return self

    def _monitor_runs(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """For each monitor, the function that runs it."""
        every_s = self.options.update_s
        for monitor in self.monitors:
            yield partial(monitor.run, every_s, self.updates)
        if self.homes_monitor is not None:
            yield partial(self.homes_monitor.run, every_s, self.updates)
        if self.options.status is not None:
            yield self._read_stages

    async def _keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a monitor until cancelled. An unexpected error does not stop the page."""
        failures = RepeatedFailures()
        while True:
            try:
                await run()
            except Exception as error:
                if count := failures.failed("monitor", error):
                    todo = "report it as a bug; the page restarts the monitor"
                    event = line("monitor_failed", error=error, count=count, todo=todo)
                    log.warning("%s", event, exc_info=True)
            await self.clock.sleep(RETRY_S)

    async def _read_stages(self) -> None:
        assert self.options.status is not None
        while True:
            counts = self.homes_monitor.received() if self.homes_monitor is not None else {}
            self.stages.latest_json = await asyncio.to_thread(
                read_stages, self.options.status, now_ms(self.clock), counts
            )
            self.updates.notify()
            await self.clock.sleep(max(1.0, self.options.update_s))

    async def _serve(self, listening: socket.socket) -> None:
        config = uvicorn.Config(
            make_app(self),
            lifespan="off",
            http=partial(TimedProtocol, RequestLog(self.clock.monotonic)),  # type: ignore[arg-type]
            backlog=BACKLOG,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = Server(config)
        self._serving = self._tasks.create_task(self._server.serve(sockets=[listening]))
        async with asyncio.timeout(START_S):
            await self._server.started_up.wait()

    async def __aexit__(self, *exc: object) -> None:
        self.updates.close()
        for task in self._monitoring:
            task.cancel()
        # Ask all hosts to stop before waiting for any: each may take seconds.
        for monitor in self.monitors:
            for host in monitor.group.fleet.hosts() if monitor.group.fleet is not None else ():
                if host.state == RUNNING and monitor.group.fleet is not None:
                    await monitor.group.fleet.stop(host.name)
        if self._server is not None:
            self._server.should_exit = True
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            if self.homes_monitor is not None:
                self.homes_monitor.close()
            await self._fleets.aclose()

    # -- for operators ----------------------------------------------------------------------------

    def not_ready(self) -> str | None:
        """Which hub, store or database does not respond; None if all do."""
        return not_ready(self._sources(), self.clock.monotonic(), self.options.update_s)

    def _sources(self) -> Iterator[Source]:
        for monitor in self.monitors:
            yield monitor.source()
        if self.homes_monitor is not None:
            yield from self.homes_monitor.sources()

    def targets(self) -> Iterator[tuple[str, int]]:
        """The name and the metrics port of each running host of the page."""
        for monitor in self.monitors:
            for host in monitor.group.fleet.hosts() if monitor.group.fleet is not None else ():
                if host.metrics_port is not None and host.state in (RUNNING, STOPPING):
                    yield host.name, host.metrics_port

    # -- for the routes and streams ----------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self._streams >= STREAMS_MAX

    @contextmanager
    def open_stream(self) -> Iterator[bool]:
        """Count a stream while it is open; False if STREAMS_MAX are open already."""
        if self.is_full:
            yield False
            return
        self._streams += 1
        try:
            yield True
        finally:
            self._streams -= 1

    def client(self, hub: str) -> HubClient:
        options = self.options
        return open_client(
            options.connection, hub, ca_file=options.ca_file, retry=RetryOptions(attempts=1)
        )

    def homes_client(self, hub: str) -> HubClient:
        assert self.options.homes is not None
        connection, retry = self.options.homes.connection, RetryOptions(attempts=1)
        return open_client(connection, hub, ca_file=self.options.ca_file, retry=retry)

    def start_tail(self, tail: Tail) -> asyncio.Task[str]:
        return self._tasks.create_task(self._tail(tail))

    async def _tail(self, tail: Tail) -> str:
        """Read events for a tail; returns the reason why reading ended."""
        reason = "the tail has ended"
        try:
            async with self.client(tail.query.hub) as client:
                await tail.run(client)
        except* (PumphouseError, OSError, TimeoutError) as failed:
            reason = first_error(failed)
        return reason

    def about(self) -> dict[str, Any]:
        """What the page can show and change, with the texts of its columns and states."""
        options = self.options
        return {
            "homes": None if options.homes is None else homes_vocabulary(options.homes.kinds),
            "groups": [
                {"key": monitor.key, "title": monitor.group.title} for monitor in self.monitors
            ],
            "hubs": list(options.hubs),
            "events_group": options.events_group,
            "write": options.write,
            "stages": options.status is not None,
            "words": vocabulary()
            | {"stage_columns": columns_json(STAGE_COLUMNS), "stage_counts": stage_counts_json()}
            | {"changes": CHANGE_MEANINGS},
        }


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the program and reports when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.started_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise PortTaken(
            f"cannot listen on {HOST}:{port}: {error.strerror}; use another port, or 0 for a "
            "free one"
        ) from None
    listening.setblocking(False)
    return listening
