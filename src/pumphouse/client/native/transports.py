"""Sockets to a hub: plain, encrypted, or inside a WebSocket.

    Route -> open_transport -> Connection.connection_made
             ^^^^^^^^^^^^^^ this module

What goes wrong is told in a sentence that says where, why and what to do. A certificate that we do
not trust is not a bad connection: trying again would not help.
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
    """What to trust: what this machine does, or the authorities in a file and no others."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as wrong:
        why = wrong.strerror or "it holds no certificate"
        raise OptionError(f"ca_file {str(ca_file)!r} cannot be used: {why}") from None


async def open_transport(
    route: Route, wire: asyncio.Protocol, context: ssl.SSLContext | None
) -> None:
    """Connect a wire. There is no deadline in here: whoever waits has set one."""
    try:
        if route.websocket:
            await open_websocket(route, wire, context)
        else:
            await open_socket(route, wire, context)
    except OSError as failed:
        raise not_connected(route, failed) from None


async def open_socket(
    route: Route, protocol: asyncio.Protocol, context: ssl.SSLContext | None
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        lambda: protocol, route.host, route.port, ssl=context if route.tls else None
    )
    return transport


async def open_websocket(
    route: Route, wire: asyncio.Protocol, context: ssl.SSLContext | None
) -> None:
    # Imported where it is needed: most connections are none.
    from pumphouse.client.native.websocket import ClientWebSocket

    websocket = ClientWebSocket(route, wire)
    transport = await open_socket(route, websocket, context)
    try:
        await websocket.opened
    except BaseException:
        transport.abort()
        raise


def not_connected(route: Route, failed: OSError) -> PumphouseError:
    """Why there is no connection, as an error of ours."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        return HubUntrusted(
            f"{route.place} shows a certificate that is not trusted: {failed.verify_message}; "
            "give ca_file=FILE if it is a development certificate"
        )
    if isinstance(failed, ssl.SSLError) and failed.reason == "WRONG_VERSION_NUMBER":
        return HubUntrusted(
            f"{route.place} does not speak TLS; for an embedded hub without it the connection "
            "string says UseDevelopmentEmulator=true"
        )
    return ConnectionFailed(
        f"no hub answers at {route.place}: {cause(failed)}; "
        "is it running? `pumphouse up` starts one"
    )


def cause(failed: OSError) -> str:
    """Why there is no connection, in the system's words without asyncio's."""
    if isinstance(failed, ssl.SSLError):
        return f"the TLS handshake failed ({failed.reason or failed.strerror})"
    if isinstance(failed, socket.gaierror) or not failed.errno:
        # Without a number, several addresses were tried and all of them failed.
        return failed.strerror or "connection refused"
    return os.strerror(failed.errno).lower()
