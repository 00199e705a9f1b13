"""How long a client waits for the hub while another one sends a stream, on real sockets.

The hub is a process of its own, with the dashboard's page in the same event loop. A probe asks it
for a flow, again and again, and the longest time to a response counts. Other programs of the
machine delay it too, so a long delay is measured again, and the least counts.

`python -m tests.fuzz.probing` is the hub's process: it prints its ports and runs until its standard
input is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from threading import Event, Thread
from types import TracebackType

from pumphouse.dashboard.options import DashboardOptions
from pumphouse.dashboard.server.app import Dashboard
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.embedded import EmbeddedHub
from tests.fuzz.offline_connection import BEGUN, HUB, KEY, PAGE_TOKEN, RULE, OfflineConnection
from tests.fuzz.streams import Stream, flow

DEADLINE_S = 60.0
PAUSE_S = 0.002  # between two probes
HOST_HEADER = b"Host: localhost"  # in a stream; the real one needs the port
MORE_RUNS = 5


def connect(port: int, data: bytes) -> socket.socket:
    """A connection that has sent its login and received a response."""
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    sock.sendall(data)
    sock.recv(1 << 16)
    return sock


class Probe(Thread):
    """Measures the longest time to a response, until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.sock = connect(port, BEGUN)
        self.longest_s = 0.0
        self.stopped = Event()

    def run(self) -> None:
        with self.sock, suppress(OSError):
            drain(self.sock)
            while not self.stopped.wait(PAUSE_S):
                start = time.monotonic()
                self.sock.sendall(flow(9, echo=True))
                if not self.sock.recv(1 << 16):
                    return
                self.longest_s = max(self.longest_s, time.monotonic() - start)

    def stop(self) -> float:
        self.stopped.set()
        self.join(DEADLINE_S)
        return self.longest_s


def drain(sock: socket.socket) -> None:
    """Receive the rest of the responses to the login."""
    sock.settimeout(0.02)
    with suppress(TimeoutError):
        while sock.recv(1 << 16):
            pass
    sock.settimeout(DEADLINE_S)


def send(port: int, stream: Stream) -> None:
    """Send a stream, and receive until the hub has handled it and closes."""
    with begun(port, stream) as sock, suppress(OSError):
        reading = Thread(target=receive_all, args=(sock,), daemon=True)
        reading.start()
        for piece in stream.pieces:
            sock.sendall(piece.replace(HOST_HEADER, HOST_HEADER + b":%d" % port))
        sock.shutdown(socket.SHUT_WR)
        reading.join(DEADLINE_S)


def begun(port: int, stream: Stream) -> socket.socket:
    """A connection at the point where a stream begins."""
    login = b"" if stream.listener else OfflineConnection.ATTACHED
    if login or stream.setup:
        return connect(port, login + stream.setup)
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def receive_all(sock: socket.socket) -> None:
    with suppress(OSError):
        while sock.recv(1 << 20):
            pass


class ProbedHub:
    """A hub in a process of its own."""

    def __enter__(self) -> ProbedHub:
        self._cleanup = ExitStack()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.probing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._cleanup.enter_context(self.process)
        assert self.process.stdout is not None
        self.ports: dict[str, int] = json.loads(self.process.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # the hub then stops
        self._cleanup.close()

    def delay_s(self, stream: Stream) -> float:
        probe = Probe(self.ports[""])
        probe.start()
        send(self.ports[stream.listener], stream)
        return probe.stop()

    def least_delay_s(self, stream: Stream, suspicious_s: float) -> float:
        """The delay of a stream; a suspicious one is measured again, and the least counts."""
        delay_s = self.delay_s(stream)
        for _ in range(MORE_RUNS if delay_s > suspicious_s else 0):
            delay_s = min(delay_s, self.delay_s(stream))
        return delay_s


async def serve() -> None:
    async with EmbeddedHub({HUB: 2}, rules=[AccessRule(RULE, KEY)], ws_port=0, http_port=0) as hub:
        options = DashboardOptions(
            port=0, connection=hub.connection_string(), hubs=(HUB,), token=PAGE_TOKEN
        )
        async with Dashboard(options) as page:
            ports = {"": hub.port, "anonymous": hub.port, "websocket": hub.ws_port}
            ports |= {"http": hub.http_port, "page": page.port}
            sys.stdout.write(f"{json.dumps(ports)}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    logging.getLogger("pumphouse").setLevel(logging.CRITICAL)
    asyncio.run(serve())


if __name__ == "__main__":
    main()
