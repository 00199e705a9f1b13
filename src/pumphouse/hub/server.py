"""The hub's server: its connections, the plain AMQP port, and the periodic work.

The periodic work is a tick for every connection (heartbeats, idle time-outs, expired tokens) and
retention.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Hashable
from contextlib import suppress

from pumphouse.amqp.performatives import Open
from pumphouse.clock import ahead_s
from pumphouse.errors import PortTaken
from pumphouse.hub.connection import HubConnection
from pumphouse.hub.limits.admission import ADDRESS, DESCRIPTORS, PROCESS, Admission, Slot
from pumphouse.hub.limits.turns import Turns
from pumphouse.hub.listeners.listener import Listener
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.options import ServerOptions
from pumphouse.hub.upkeep import TICK_S, heartbeat_s
from pumphouse.logs import LogThrottle, RepeatedFailures, line

log = logging.getLogger("pumphouse.hub")

RETENTION_EVERY_S = 10.0
LINES_PER_MINUTE = 20  # of one event that clients cause
# Of a refusal of clients that have authenticated. A reader with a wrong epoch retries without end.
AUTHENTICATED_LINES_PER_MINUTE = 100
FULL_TODO = {
    PROCESS: "close clients, or raise connections_max",
    ADDRESS: "close clients of this address, or raise connections_per_address_max",
    DESCRIPTORS: "raise the limit of open files, or close clients",
}
CLOSE_S = 0.25  # for a peer to respond to our close; one that does not read never responds


class HubServer:
    """A namespace behind a TCP port."""

    def __init__(self, namespace: Namespace, options: ServerOptions | None = None) -> None:
        self.namespace = namespace
        self.options = options or ServerOptions()
        self.connections: set[HubConnection] = set()
        self.admission = Admission(self.options.admission_limits)
        self.turns = Turns(lambda call: self.loop.call_soon(call))
        self.throttle = LogThrottle(LINES_PER_MINUTE, 60.0)
        self._tick_now = asyncio.Event()
        self._all_ticked_at = float("-inf")
        self._retention_at = float("-inf")
        self._retention_ahead_s = 0.0
        # Connections that need heartbeats more often than the usual tick.
        self.hasty: set[HubConnection] = set()
        self._empty: asyncio.Event | None = None  # while stopping: set if no connection is left
        self._shedding = False
        self._failures = RepeatedFailures()
        self.authority = ""
        self.port = 0
        self.opening = Open(
            container_id=uuid.uuid4().hex,
            max_frame_size=self.options.limits.max_frame_size,
            channel_max=self.options.limits.channel_max,
            idle_time_out=int(self.options.idle_timeout_s * 1000),
        )

    async def start(self, host: str, port: int) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.admission.on_full = self.log_full
        self.admission.total.on_exceeded = self.shed_soon
        self._listener = Listener(self.make_connection, self.admission)
        try:
            await self._listener.start(host, port)
        except OSError as failure:
            raise cannot_listen(host, port, failure) from None
        self.port = self._listener.port
        self.authority = f"{host}:{self.port}"
        self.namespace.faults.on_removed = self.wake_readers_soon
        self._ticker = self.loop.create_task(self.tick_forever(), name="hub ticker")
        hubs = len(self.namespace.hubs)
        log.info("%s", line("listener_started", address=self.authority, kind="amqp", hubs=hubs))

    async def stop(self) -> None:
        """Close every connection and the port; bounded by `stop_s`."""
        self.namespace.faults.on_removed = lambda: None
        await self._listener.stop()
        self._ticker.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticker
        self._empty = asyncio.Event()
        # Send an AMQP close, and end the connection only later: the official asyncio client tries
        # to respond to the close. If it cannot, it reports that failure instead of the close.
        for close, patience_s in (
            (HubConnection.stop, min(CLOSE_S, self.options.stop_s)),
            (HubConnection.finish, self.options.stop_s),
        ):
            for connection in list(self.connections):
                close(connection)
            await self.wait_until_empty(self._empty, patience_s)
        for connection in list(self.connections):
            connection.drop()
        await asyncio.sleep(0)
        log.info("%s", line("hub_stopped", address=self.authority))

    # -- connections ------------------------------------------------------------------------------

    def make_connection(self, slot: Slot) -> HubConnection:
        return HubConnection(self, slot)

    def add(self, connection: HubConnection) -> None:
        self.connections.add(connection)

    def remove(self, connection: HubConnection) -> None:
        self.connections.discard(connection)
        self.hasty.discard(connection)
        self.check_empty()

    def check_empty(self) -> None:
        if not self.connections and self._empty is not None:
            self._empty.set()

    async def wait_until_empty(self, empty: asyncio.Event, patience_s: float) -> None:
        """Wait for the last connection to end, at most `patience_s`."""
        self.check_empty()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await empty.wait()

    def wake_readers_soon(self) -> None:
        """Wake all readers; callable from any thread."""
        self.loop.call_soon_threadsafe(self.wake_readers)

    def wake_readers(self) -> None:
        """Let every reader check for events: the fault that blocked it may be removed."""
        for hub in self.namespace.hubs:
            for reader in hub.readers():
                reader.wake()

    # -- limits -----------------------------------------------------------------------------------

    def warn(self, report: line, lines: int | None = None) -> None:
        """Log a problem that a client has caused, at most a few times a minute."""
        self.log_throttled(logging.WARNING, report, report.fields.get("limit"), lines)

    def inform(self, report: line, slot: Slot) -> None:
        """Log the refusal of a client, with a limit for each minute.

        Clients that have authenticated count separately, so that others cannot suppress the lines
        about them.
        """
        lines = AUTHENTICATED_LINES_PER_MINUTE if slot.authenticated else None
        self.log_throttled(logging.INFO, report, slot.authenticated, lines)

    def log_throttled(self, level: int, report: line, kind: Hashable, lines: int | None) -> None:
        count = self.throttle.due((report.event, kind), self.loop.time(), lines)
        if count is not None:
            report.fields["count"] = count
            log.log(level, "%s", report)

    def log_full(self, limit: str, address: str, refused: bool) -> None:
        """A limit of connections is reached: one line a minute."""
        report = line(
            "connections_limited",
            limit=limit,
            address=address,
            connections=len(self.admission),
            action="refused" if refused else "oldest_anonymous_closed",
            todo=FULL_TODO[limit],
        )
        self.warn(report, lines=1)

    def shed_soon(self) -> None:
        """Close the connections that hold most, in the next turn of the event loop.

        Not at once: the bytes are counted while a connection handles a frame, and this connection
        may be the one to close.
        """
        if not self._shedding:
            self._shedding = True
            self.loop.call_soon(self.shed)

    def shed(self) -> None:
        self._shedding = False
        total = self.admission.total.limit
        for slot, held in self.admission.shed():
            error = f"it held {held} bytes, more than the others; the limit of all is {total}"
            todo = "check the client; or raise total_bytes_max"
            self.warn(line("budget_exceeded", peer=slot.address, error=error, todo=todo))

    # -- periodic work ----------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.tick_s()):
                    await self._tick_now.wait()
            self._tick_now.clear()
            try:
                self.tick_due()
                self.expire_due()
            except Exception as failure:
                # For example a failing disk. The connections still need heartbeats: continue.
                self.log_tick_failure(failure)
            else:
                self.log_tick_success()

    def expire_due(self) -> None:
        """Apply retention every RETENTION_EVERY_S, and when a MovableClock was advanced."""
        now, ahead = self.loop.time(), ahead_s(self.namespace.clock)
        if now >= self._retention_at or ahead != self._retention_ahead_s:
            self._retention_at, self._retention_ahead_s = now + RETENTION_EVERY_S, ahead
            self.namespace.expire()

    def log_tick_failure(self, failure: Exception) -> None:
        count = self._failures.failed("tick", failure)
        if count is not None:
            todo = "check the disk of the data directory"
            report = line("tick_failed", error=failure, count=count, todo=todo)
            log.error("%s", report, exc_info=failure)

    def log_tick_success(self) -> None:
        if failures := self._failures.succeeded("tick"):
            log.info("%s", line("tick_recovered", failures=failures))

    def tick_often(self, connection: HubConnection) -> None:
        """From now on this connection needs frequent heartbeats."""
        self.hasty.add(connection)
        self._tick_now.set()

    def tick(self) -> None:
        """Do the periodic work of all connections and of the storage."""
        now = self._all_ticked_at = self.loop.time()
        self.namespace.storage.check()
        for connection in list(self.connections):
            connection.tick(now)

    def tick_due(self) -> None:
        """Do the periodic work: of all connections if that is due, else of the hasty ones only."""
        now = self.loop.time()
        if now >= self._all_ticked_at + self.tick_all_s:
            self.tick()
            return
        for connection in list(self.hasty):
            connection.tick(now)

    @property
    def tick_all_s(self) -> float:
        idle_check_s = self.options.idle_timeout_s / 4 if self.options.enforce_idle else TICK_S
        return min(TICK_S, idle_check_s)

    def tick_s(self) -> float:
        """Seconds to the next tick: of all connections, or of the hasty ones."""
        shortest = min((heartbeat_s(c) for c in self.hasty), default=float("inf"))
        wait_s = self._all_ticked_at + self.tick_all_s - self.loop.time()
        return max(0.02, min(wait_s, shortest / 2))


def cannot_listen(host: str, port: int, failure: OSError) -> Exception:
    if failure.errno == errno.EADDRINUSE:
        return PortTaken(
            f"cannot listen on {host}:{port}: address in use; "
            "stop the other program, or choose another port (0 picks a free one)"
        )
    return PortTaken(
        f"cannot listen on {host}:{port}: {failure.strerror}; choose another host or port"
    )
