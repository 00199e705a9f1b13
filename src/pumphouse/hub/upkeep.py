"""The periodic work of one connection, and the log lines about what it refuses or closes.

The server calls `tick` for every connection about once a second: time-outs, expired tokens,
heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from pumphouse.amqp.credit import RESOURCE_LIMIT
from pumphouse.amqp.links import Link
from pumphouse.amqp.performatives import Error, Open
from pumphouse.errors import AmqpError, LocalProtocolError, RemoteProtocolError
from pumphouse.hub.limits.admission import Slot
from pumphouse.hub.limits.turns import Turns
from pumphouse.hub.links.link import as_error
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.options import ServerOptions
from pumphouse.logs import line

if TYPE_CHECKING:
    from pumphouse.hub.connection import HubConnection

TICK_S = 1.0  # the longest interval between two ticks
# The smallest idle time-out of a client: the hub sends a heartbeat after half of it. The official
# Python clients announce none, the others tens of seconds.
CLIENT_IDLE_MIN_MS = 100
FORCED = "amqp:connection:forced"
SLOW_DISK = "check the disk: it is slower than the producers"


class ConnectionOwner(Protocol):
    """The part of the server that its connections use."""

    namespace: Namespace
    options: ServerOptions
    authority: str
    opening: Open
    loop: asyncio.AbstractEventLoop
    turns: Turns

    def add(self, connection: HubConnection) -> None: ...

    def remove(self, connection: HubConnection) -> None: ...

    def tick_often(self, connection: HubConnection) -> None: ...

    def warn(self, report: line, lines: int | None = None) -> None: ...

    def inform(self, report: line, slot: Slot) -> None: ...

    def log_throttled(
        self, level: int, report: line, kind: Hashable, lines: int | None
    ) -> None: ...


def tick(connection: HubConnection, now: float) -> None:
    """Do what is due at a time of the loop's clock."""
    if now > connection.abort_at:
        connection.transport.abort()
    if connection.transport.is_closing():
        return
    connection.count_unread()
    close_expired(connection)
    if is_anonymous_too_long(connection, now):
        close_anonymous(connection)
    elif is_idle_too_long(connection, now):
        close_idle(connection)
    else:
        # For a peer that does not read, a heartbeat would only fill the buffer.
        if connection.writable and now - connection.sent_at >= heartbeat_s(connection):
            connection.amqp.heartbeat()
        connection.flush()


def heartbeat_s(connection: HubConnection) -> float:
    """The longest time without sending: half of the peer's idle time-out."""
    remote = connection.amqp.remote
    if remote is None or not remote.idle_time_out:
        return float("inf")
    return remote.idle_time_out / 2000


def check_idle_time_out(connection: HubConnection) -> None:
    """RemoteProtocolError if a client needs heartbeats more often than the hub sends them."""
    remote = connection.amqp.remote
    if remote is not None and 0 < (remote.idle_time_out or 0) < CLIENT_IDLE_MIN_MS:
        raise RemoteProtocolError(
            f"open.idle-time-out is {remote.idle_time_out} ms, the minimum is {CLIENT_IDLE_MIN_MS}",
            "amqp:invalid-field",
        )


def start_heartbeats(connection: HubConnection) -> None:
    """Tick more often for a client that needs it and has authenticated.

    Before authentication a client gets heartbeats only with the usual tick, so that it cannot make
    the hub tick often.
    """
    if connection.slot.authenticated and heartbeat_s(connection) < 2 * TICK_S:
        connection.server.tick_often(connection)


def is_anonymous_too_long(connection: HubConnection, now: float) -> bool:
    """Whether a connection has had no valid key or token for too long."""
    if connection.opened and connection.guard.has_grants:
        connection.login_deadline = now + connection.options.handshake_s
    return now > connection.login_deadline


def is_idle_too_long(connection: HubConnection, now: float) -> bool:
    """Whether a client has sent nothing for too long, although the hub has read."""
    options = connection.options
    # Twice the announced time, as in the specification (2.4.5): some peers, such as Proton, send a
    # heartbeat only when the announced time is almost over.
    return (
        options.enforce_idle
        and not connection.must_wait
        and now - connection.received_at > 2 * options.idle_timeout_s
    )


def close_anonymous(connection: HubConnection) -> None:
    seconds = connection.options.handshake_s
    peer = connection.peer_address
    report = line("connection_unauthenticated", peer=peer, seconds=seconds)
    connection.server.inform(report, connection.slot)
    close(connection, f"No valid key or token was given within {seconds:g} seconds.")


def close_idle(connection: HubConnection) -> None:
    idle_ms = int(connection.options.idle_timeout_s * 1000)
    close(
        connection,
        f"The connection was inactive for more than the allowed {idle_ms} milliseconds and is "
        f"closed by container '{connection.server.opening.container_id}'.",
    )


def close(connection: HubConnection, text: str) -> None:
    connection.amqp.close(Error(condition=FORCED, description=connection.guard.tracked(text)))
    if connection.opened:
        connection.finish()
    else:
        connection.drop()


def close_expired(connection: HubConnection) -> None:
    """Detach the links whose token has expired."""
    guard, now = connection.guard, connection.namespace.clock.now()
    if guard.next_expiry > now:
        return
    for link in connection.links():
        if link.claim is not None and not guard.allows(link.path, link.claim):
            link.close(
                "amqp:unauthorized-access",
                f"ExpiredToken: the token for '{guard.resource(link.path)}' is expired. "
                f"'{link.claim}' claim(s) are required; put a new token and attach again.",
            )
    guard.forget_expired(now)


def close_after_violation(connection: HubConnection, error: RemoteProtocolError) -> None:
    """A client has violated the protocol or exceeded its budget: close the connection."""
    event = "budget_exceeded" if error.condition == RESOURCE_LIMIT else "protocol_violated"
    # As a text: an exception in a log record would keep the connection alive.
    text = f"{type(error).__name__}: {error}"
    report = line(event, peer=connection.peer_address, error=text, todo="check the client")
    connection.server.warn(report)
    if connection.amqp.state != "END":  # raised by one of our links
        connection.amqp.close_after(error)
    connection.finish()


def close_after_bug(connection: HubConnection, error: LocalProtocolError) -> None:
    """The hub could not encode a response: close the connection."""
    todo = "report this as a bug of the hub"
    report = line("connection_failed", peer=connection.peer_address, error=str(error), todo=todo)
    connection.server.log_throttled(logging.ERROR, report, None, None)
    connection.amqp.close(Error(condition="amqp:internal-error", description=str(error)))
    connection.finish()


def refuse_link(connection: HubConnection, link: Link, refusal: AmqpError) -> None:
    error = as_error(refusal, connection.guard)
    logged = AmqpError(error.condition, error.description or "")
    peer = connection.peer_address
    report = line("link_refused", link=link.name[:80], peer=peer, error=logged)
    connection.server.inform(report, connection.slot)
    link.refuse(error)


def warn_overrun(connection: HubConnection, link: Link) -> None:
    """Log a producer that ignores its credit."""
    name, peer = link.name[:80], connection.peer_address
    connection.server.warn(line("credit_exceeded", link=name, peer=peer, todo="check the client"))


def warn_slow_disk(connection: HubConnection) -> None:
    """Log that a producer waits for the disk."""
    size, todo = connection.namespace.storage.backlog.held, SLOW_DISK
    connection.server.warn(line("write_queue_full", bytes=size, todo=todo), lines=1)
