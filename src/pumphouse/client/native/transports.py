"""Opens transports to a hub: plain TCP, TLS, or WebSocket.

    Route -> open_transport -> Connection.connection_made
             ^^^^^^^^^^^^^^ this module

Failures name the address, the cause and what to do. An untrusted certificate is not retried.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed, HubUntrusted, OptionError, PumphouseError


def tls_context(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """An SSL context with the authorities of this machine, or with those of a file only."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as wrong:
        reason = wrong.strerror or "it contains no certificate"
        raise OptionError(f"cannot use ca_file {str(ca_file)!r}: {reason}") from None


async def open_transport(
    route: Route, connection: asyncio.Protocol, context: ssl.SSLContext | None
) -> None:
    """Open a transport for a connection. The caller sets the deadline."""
    try:
        if route.websocket:
            await open_websocket(route, connection, context)
        else:
            await open_socket(route, connection, context)
    except OSError as failed:
        raise connection_error(route, failed) from None


async def open_socket(
    route: Route, protocol: asyncio.Protocol, context: ssl.SSLContext | None
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        lambda: protocol, route.host, route.port, ssl=context if route.tls else None
    )
    return transport


async def open_websocket(
    route: Route, connection: asyncio.Protocol, context: ssl.SSLContext | None
) -> None:
    # Imported here because most connections use no WebSocket.
    from pumphouse.client.native.websocket import ClientWebSocket

    websocket = ClientWebSocket(route, connection)
    transport = await open_socket(route, websocket, context)
    try:
        await websocket.opened
    except BaseException:
        transport.abort()
        raise


def connection_error(route: Route, failed: OSError) -> PumphouseError:
    """The error for a failed connection attempt."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        return HubUntrusted(
            f"{route.address} has a certificate that is not trusted: {failed.verify_message}; "
            "set ca_file=FILE for a development certificate"
        )
    if isinstance(failed, ssl.SSLError) and failed.reason == "WRONG_VERSION_NUMBER":
        return HubUntrusted(
            f"{route.address} does not speak TLS; for an embedded hub without TLS add "
            "UseDevelopmentEmulator=true to the connection string"
        )
    return ConnectionFailed(
        f"cannot connect to {route.address}: {cause_of(failed)}; "
        "check that the hub is running (`pumphouse up` starts one)"
    )


def cause_of(failed: OSError) -> str:
    """The cause of a failed connection attempt, as the operating system describes it."""
    if isinstance(failed, ssl.SSLError):
        return f"the TLS handshake failed ({failed.reason or failed.strerror})"
    if isinstance(failed, socket.gaierror) or not failed.errno:
        # asyncio raises an error without a number if the host has several addresses and all fail.
        return failed.strerror or "connection refused"
    return os.strerror(failed.errno).lower()
