"""The hub's server: its connections, the plain AMQP port, and the periodic work.

The periodic work is a tick for every connection (heartbeats, idle time-outs, expired tokens) and
retention.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from contextlib import suppress

from pumphouse.amqp.performatives import Open
from pumphouse.errors import PortTaken
from pumphouse.hub.connection import TICK_S, HubConnection
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.options import ServerOptions
from pumphouse.logs import RepeatedFailures, line

log = logging.getLogger("pumphouse.hub")

RETENTION_EVERY_S = 10.0
ACCEPT_TURNS = 4  # of the event loop; `connection_made` is called 2 or 3 after the accept
CLOSE_S = 0.25  # for a peer to respond to our close; one that does not read never responds


async def close_port(server: asyncio.Server) -> None:
    """Accept no more connections, but let those just accepted reach `connection_made`.

    If a server is closed in between, asyncio up to 3.11 cannot make a transport for such a
    connection, and leaves its socket open.
    """
    for listening in server.sockets:
        server.get_loop().remove_reader(listening.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()


class HubServer:
    """A namespace behind a TCP port."""

    def __init__(self, namespace: Namespace, options: ServerOptions | None = None) -> None:
        self.namespace = namespace
        self.options = options or ServerOptions()
        self.connections: set[HubConnection] = set()
        self._tick_now = asyncio.Event()
        self._empty: asyncio.Event | None = None  # while stopping: set if no connection is left
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
        try:
            self._server = await self.loop.create_server(lambda: HubConnection(self), host, port)
        except OSError as failure:
            raise cannot_listen(host, port, failure) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self.authority = f"{host}:{self.port}"
        self.namespace.faults.on_removed = self.wake_readers_soon
        self._ticker = self.loop.create_task(self.tick_forever(), name="hub ticker")
        hubs = len(self.namespace.hubs)
        log.info("%s", line("listener_started", address=self.authority, kind="amqp", hubs=hubs))

    async def stop(self) -> None:
        """Close every connection and the port; bounded by `stop_s`."""
        self.namespace.faults.on_removed = lambda: None
        await close_port(self._server)
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

    def add(self, connection: HubConnection) -> None:
        self.connections.add(connection)

    def remove(self, connection: HubConnection) -> None:
        self.connections.discard(connection)
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

    # -- periodic work ----------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        retention_at = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.tick_s()):
                    await self._tick_now.wait()
            self._tick_now.clear()
            try:
                self.tick()
                if (now := self.loop.time()) >= retention_at:
                    retention_at = now + RETENTION_EVERY_S
                    self.namespace.expire()
            except Exception as failure:
                # For example a failing disk. The connections still need heartbeats: continue.
                self.log_tick_failure(failure)
            else:
                self.log_tick_success()

    def log_tick_failure(self, failure: Exception) -> None:
        count = self._failures.failed("tick", failure)
        if count is not None:
            todo = "check the disk of the data directory"
            report = line("tick_failed", error=failure, count=count, todo=todo)
            log.error("%s", report, exc_info=failure)

    def log_tick_success(self) -> None:
        if count := self._failures.succeeded("tick"):
            log.info("%s", line("tick_recovered", count=count))

    def tick_early(self) -> None:
        """Tick now and compute the next interval again: a new peer needs shorter heartbeats."""
        self._tick_now.set()

    def tick(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.tick(now)

    def tick_s(self) -> float:
        """Seconds to the next tick: one, or fewer if a peer needs heartbeats more often."""
        shortest = min((c.heartbeat_s for c in self.connections), default=float("inf"))
        idle_check_s = self.options.idle_timeout_s / 4 if self.options.enforce_idle else TICK_S
        return max(0.02, min(TICK_S, shortest / 2, idle_check_s))


def cannot_listen(host: str, port: int, failure: OSError) -> Exception:
    if failure.errno == errno.EADDRINUSE:
        return PortTaken(
            f"cannot listen on {host}:{port}: address in use; "
            "stop the other program, or choose another port (0 picks a free one)"
        )
    return PortTaken(f"cannot listen on {host}:{port}: {failure.strerror}")
