"""One listening port: accepts connections, and connects each to a protocol.

asyncio's own server is not used, for three reasons. When descriptors run out, it logs a traceback
for every attempt, and each attempt schedules a hundred more. It has no limits. And it does not
know a connection until its TLS handshake is done, so a hub that stops during the handshake could
not close it.

A port may accept TLS, plain bytes, or both. A TLS client starts with a handshake record, whose
first byte is not the first of any HTTP method. With `plain_too` the listener peeks at that byte.

    accept -> Admission.admit -> (first byte, TLS handshake) -> factory(slot) -> protocol
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pumphouse.forks import close_in_child
from pumphouse.hub.limits.admission import DESCRIPTORS, Admission, Slot, address_key
from pumphouse.logs import LogThrottle, line

log = logging.getLogger("pumphouse.hub")

TLS_HANDSHAKE = b"\x16"
BACKLOG = 100
ACCEPTS_PER_TURN = 10  # of the event loop, so that many new clients do not delay the others
RETRY_S = 0.2  # after the system could not accept another connection
TLS_BYTES = 288 * 1024  # memory of a TLS connection; asyncio allocates most of it at the accept
SHUTDOWN_S = 1.0  # for a TLS client to respond to the end of the session
# Descriptors that connections do not use: for segments on disk, which a write may have to open,
# and for the HTTP API. If the limit of open files is small, the reserve is a quarter of the limit.
RESERVE, RESERVE_SHARE = 64, 4
LINES_PER_MINUTE = 10  # of the failures of one port

Factory = Callable[[Slot], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Transport:
    """How the bytes of a port are carried."""

    context: ssl.SSLContext | None = None  # None: without TLS
    plain_too: bool = False  # with a context: plain connections are accepted as well
    handshake_s: float = 10.0  # for the first byte and the TLS handshake


PLAIN = Transport()


class Listener:
    """One listening port."""

    def __init__(
        self,
        factory: Factory,
        admission: Admission,
        transport: Transport = PLAIN,
        reserve: int = RESERVE,
        kind: str = "amqp",
    ) -> None:
        self.factory = factory
        self.kind = kind
        self.admission = admission
        self.transport = transport
        self.reserve = reserve
        self.port = 0
        self._sockets: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._throttle = LogThrottle(LINES_PER_MINUTE, 60.0)
        self._failures = 0  # attempts to accept that failed, since the last that succeeded

    async def start(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._sockets = await listening_sockets(host, port)
        self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            self.loop.add_reader(listening, self.accept_ready, listening)

    async def stop(self) -> None:
        """Accept no more. Connections just accepted still reach their protocol, without TLS."""
        for listening in self._sockets:
            self.loop.remove_reader(listening)
            listening.close()
        for retry in self._retries.values():
            retry.cancel()
        if self.transport.context is not None:
            for task in self._connecting:
                task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)

    # -- accepting --------------------------------------------------------------------------------

    def accept_ready(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                self.on_failure(listening, failure)
                return
            self.on_success()
            low = is_low(connection.fileno(), self.reserve, open_files_max())
            self.admit(connection, address, low)
            if low:
                return  # a connection that is closed to make room ends some turns later

    def on_failure(self, listening: socket.socket, failure: OSError) -> None:
        """The system could not accept: make room, and try again after a while."""
        self.log_failure(failure)
        for _ in range(ACCEPTS_PER_TURN):
            self.admission.evict(None, DESCRIPTORS)
        self.loop.remove_reader(listening)
        self._retries[listening] = self.loop.call_later(RETRY_S, self.retry, listening)

    def retry(self, listening: socket.socket) -> None:
        del self._retries[listening]
        self.loop.add_reader(listening, self.accept_ready, listening)

    def on_success(self) -> None:
        failures, self._failures = self._failures, 0
        if failures and self._throttle.due("recovered", self.loop.time()) is not None:
            log.info("%s", line("accept_recovered", port=self.port, failures=failures))

    def log_failure(self, failure: OSError) -> None:
        self._failures += 1
        count = self._throttle.due(failure.errno, self.loop.time(), lines=1)
        if count is not None:
            todo = "raise the limit of open files, or close connections"
            report = line("accept_failed", port=self.port, error=failure, count=count, todo=todo)
            log.warning("%s", report)

    def admit(self, connection: socket.socket, address: Any, low: bool) -> None:
        slot = self.admission.admit(address_key(address), self.loop.time(), low)
        if slot is None:
            connection.close()
            return
        slot.listener = self.kind
        close_in_child(connection)
        connection.setblocking(False)
        # asyncio sets this only for sockets that it has accepted itself. Without it the system
        # delays a reply until the client has confirmed the previous one, for up to 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self.connect(connection, slot), name="hub accept")
        self._connecting.add(task)
        slot.close = lambda reason: cancel(task)

        def done(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            if task.cancelled():
                connection.close()  # if it was cancelled before its first step

        task.add_done_callback(done)

    # -- connecting -------------------------------------------------------------------------------

    async def connect(self, connection: socket.socket, slot: Slot) -> None:
        """Find out whether a client uses TLS, and connect it to a protocol."""
        try:
            async with asyncio.timeout(self.transport.handshake_s):
                await self.hand_over(connection, slot, await self.uses_tls(connection))
        except (OSError, TimeoutError) as failure:  # a failed TLS handshake is an OSError
            self.log_handshake(str(failure) or "timed out")
            self.discard(connection, slot, failure)
        except BaseException as failure:
            self.discard(connection, slot, failure)
            raise

    def discard(self, connection: socket.socket, slot: Slot, failure: BaseException) -> None:
        connection.close()
        slot.release()
        # The failure and the variables of its traceback's frames refer to each other, and these
        # variables hold the TLS buffers. Clearing them frees all of it at once.
        traceback.clear_frames(failure.__traceback__)

    def log_handshake(self, cause: str) -> None:
        count = self._throttle.due("handshake", self.loop.time())
        if count is not None:
            log.info("%s", line("handshake_failed", port=self.port, error=cause, count=count))

    async def uses_tls(self, connection: socket.socket) -> bool:
        if self.transport.context is None or not self.transport.plain_too:
            return self.transport.context is not None
        return await self.first_byte(connection) == TLS_HANDSHAKE

    async def first_byte(self, connection: socket.socket) -> bytes:
        """The first received byte, left in the socket; empty if the client has closed."""
        arrived = asyncio.Event()
        self.loop.add_reader(connection, arrived.set)
        try:
            await arrived.wait()
            return connection.recv(1, socket.MSG_PEEK)
        finally:
            self.loop.remove_reader(connection)

    async def hand_over(self, connection: socket.socket, slot: Slot, tls: bool) -> None:
        def factory() -> asyncio.Protocol:
            return self.factory(slot)

        if tls:
            slot.hold_fixed(TLS_BYTES)
            await self.loop.connect_accepted_socket(
                factory,
                connection,
                ssl=self.transport.context,
                ssl_handshake_timeout=self.transport.handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        else:
            await self.loop.connect_accepted_socket(factory, connection)


def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def open_files_max() -> int | None:
    """The number of files that this process may open; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def is_low(descriptor: int, reserve: int, files_max: int | None) -> bool:
    """Whether a new descriptor lies in the reserve.

    The system gives the lowest free number, so all numbers below a new descriptor are in use.
    """
    if files_max is None:
        return False
    share = files_max // RESERVE_SHARE * reserve // RESERVE
    return descriptor >= files_max - min(reserve, share)


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host name, all on the same port."""
    loop, kind = asyncio.get_running_loop(), socket.SOCK_STREAM
    numeric = socket.AI_PASSIVE | socket.AI_NUMERICHOST
    try:  # an address needs no request to a name server, and so no thread
        addresses = socket.getaddrinfo(host or None, port, type=kind, flags=numeric)
    except socket.gaierror:
        addresses = await loop.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    failure = OSError(errno.EADDRNOTAVAIL, f"{host!r} has no address")
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            sockets.append(listen(family, (address[0], port, *address[2:])))
        except OSError as refused:
            # A machine without IPv6 may still have an IPv6 address for localhost.
            if refused.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                close_all(sockets)
                raise
            failure = refused
        else:
            port = sockets[-1].getsockname()[1]
    if not sockets:
        raise failure
    return sockets


def listen(family: int, address: Any) -> socket.socket:
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    listening.setblocking(False)
    close_in_child(listening)
    return listening


def close_all(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):
            each.close()
