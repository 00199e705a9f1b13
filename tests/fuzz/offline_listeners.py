"""Connections of the other listeners, without a socket: WebSocket, the HTTP API and the page.

Each runs in an event loop of its own, in this thread. `receive_all` gives it the pieces of a stream
as a socket would: the next piece only if the connection reads. It measures the CPU time of every
turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from pumphouse.dashboard.options import DashboardOptions
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.dashboard.server.client_log import RequestLog
from pumphouse.dashboard.server.guard import access_to
from pumphouse.dashboard.server.protocol import READ_BYTES_MAX, TimedProtocol
from pumphouse.dashboard.server.routes import make_app
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.limits.admission import Admission, Slot
from pumphouse.hub.listeners.admin_api import AdminApi
from pumphouse.hub.listeners.http import LIMITS, HttpConnection, HttpTurns
from pumphouse.hub.listeners.websocket import ServerWebSocket
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.server import HubServer
from tests.fuzz.offline_connection import HUB, KEY, PAGE_TOKEN, RULE, Transport

PORT = 80  # a Host header needs no port then
TURNS_MAX = 100_000


class PausingTransport(Transport):
    """Discards what is written to it, and records whether the connection reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def write(self, data: bytes) -> None:
        """The client reads at once."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """The page would hand over to WebSocket so."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", PORT)}.get(name, default)


class OfflineListener:
    """One connection. A subclass makes the protocol inside the running loop."""

    read_bytes = 256 * 1024  # what the transport reads at once
    protocol: Any

    def __init__(self) -> None:
        self.transport = PausingTransport()
        self.runner = asyncio.Runner()
        self.reset()
        self.runner.run(self._open())

    def reset(self) -> None:
        self.total_s = self.longest_s = 0.0

    def receive_all(self, pieces: Iterable[bytes]) -> None:
        self.runner.run(self._receive_all(pieces))

    def counts(self) -> tuple[int, int, int]:
        """The numbers of links, sessions and stored events."""
        return 0, 0, 0

    def end(self) -> None:
        self.runner.run(self._end())
        self.runner.close()

    # -- for subclasses ---------------------------------------------------------------------------

    def connect(self) -> Any:
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Whether the connection has more to do with what it has received."""
        return not self.transport.reading

    def feed(self, data: bytes) -> None:
        self.protocol.data_received(data)

    # -- the loop ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.protocol = self.connect()
        self.protocol.connection_made(cast(asyncio.Transport, self.transport))

    async def _end(self) -> None:
        self.protocol.connection_lost(None)
        await asyncio.sleep(0)

    async def _receive_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            for start in range(0, len(piece), self.read_bytes):
                if self.transport.closed:
                    return
                await self._receive(piece[start : start + self.read_bytes])

    async def _receive(self, data: bytes) -> None:
        start = time.thread_time()
        self.feed(data)
        start = self._note(start)
        for _ in range(TURNS_MAX):
            if not self.is_busy() or self.transport.closed:
                return
            await asyncio.sleep(0)
            start = self._note(start)
        raise AssertionError("the connection is busy without end")

    def _note(self, start: float) -> float:
        """Add a turn that began at `start`; returns the start of the next one."""
        end = time.thread_time()
        self.total_s += end - start
        self.longest_s = max(self.longest_s, end - start)
        return end


def make_namespace() -> Namespace:
    namespace = Namespace([AccessRule(RULE, KEY)])
    namespace.create_hub(HUB, 2)
    return namespace


def admitted(admission: Admission) -> Slot:
    slot = admission.admit("fuzz", asyncio.get_running_loop().time())
    assert slot is not None
    return slot


class OfflineWebSocket(OfflineListener):
    """A connection of the WebSocket listener."""

    def connect(self) -> ServerWebSocket:
        self.server = HubServer(make_namespace())
        self.server.loop = asyncio.get_running_loop()
        slot = admitted(self.server.admission)
        return ServerWebSocket(self.server, slot, ["localhost"], set())

    def is_busy(self) -> bool:
        return super().is_busy() or len(self.server.turns) > 0

    def counts(self) -> tuple[int, int, int]:
        sessions = [
            session
            for connection in self.server.connections
            for session in connection.amqp.sessions.values()
        ]
        partitions = self.server.namespace.hub(HUB).partitions
        events = sum(partition.log.next_sequence for partition in partitions)
        return sum(len(session.links) for session in sessions), len(sessions), events


class OfflineHttp(OfflineListener):
    """A connection of the HTTP API."""

    def connect(self) -> HttpConnection:
        api = AdminApi(make_namespace())
        api.port = PORT
        turns = HttpTurns(asyncio.get_running_loop())
        return HttpConnection(api, admitted(Admission(LIMITS)), turns)


@cache
def page_config() -> uvicorn.Config:
    """The application that all connections of the page share."""
    page = Dashboard(DashboardOptions(connection="Endpoint=sb://localhost", hubs=(HUB,)))
    page.access = access_to(PORT, PAGE_TOKEN, "changes")
    config = uvicorn.Config(
        make_app(page), lifespan="off", ws="none", log_config=None, access_log=False
    )
    config.load()
    return config


class OfflinePage(OfflineListener):
    """A connection of the dashboard's page, to a client without and with the token."""

    read_bytes = READ_BYTES_MAX

    def connect(self) -> TimedProtocol:
        self.state = ServerState()
        log = RequestLog(time.monotonic)
        return TimedProtocol(log, config=page_config(), server_state=self.state, app_state={})

    def feed(self, data: bytes) -> None:
        self.protocol.get_buffer(-1)[: len(data)] = data
        self.protocol.buffer_updated(len(data))

    def is_busy(self) -> bool:
        return super().is_busy() or bool(self.state.tasks)


LISTENERS: dict[str, Callable[[], OfflineListener]] = {
    "websocket": OfflineWebSocket,
    "http": OfflineHttp,
    "page": OfflinePage,
}
