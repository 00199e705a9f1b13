"""Opens a client of a hub and chooses its driver: our own AMQP, or the official SDK.

    connection string, driver -> open_client -> NativeClient or AzureClient
                                 ^^^^^^^^^^^ this module

If metrics can be read, a `MeteredClient` is around the driver; if the application has a
TracerProvider, a `TracedClient` is around that.

With `driver="auto"` an embedded hub is opened with the native driver, and the real service with its
own SDK. Both drivers keep the same contract (`base`) and differ in speed only.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from pumphouse.client.base import HubClient, RetryOptions
from pumphouse.client.connection_string import ConnectionString, read_connection_string
from pumphouse.client.metered import MeteredClient
from pumphouse.errors import OptionError
from pumphouse.telemetry.meter import is_on, may_turn_on
from pumphouse.telemetry.tracing import is_traced

DRIVERS = ("auto", "native", "azure")


def open_client(
    connection: str | ConnectionString,
    hub: str = "",
    *,
    driver: str = "auto",
    credential: Any = None,
    transport: str = "tcp",
    endpoint: str | None = None,
    ca_file: str | Path | None = None,
    retry: RetryOptions | None = None,
    first_retry: RetryOptions | None = None,
) -> HubClient:
    """A client of a hub, for use in an `async with` block.

    `connection` is a connection string; with a `credential` it may be the host of a namespace. A
    `credential` is an object of azure-identity or the text of a SharedAccessSignature. `transport`
    is "tcp" or "websocket". `endpoint` (HOST:PORT) replaces the address of the connection string.
    `ca_file` replaces the certificate authorities of this machine. `first_retry` replaces `retry`
    for the first connection of the native driver; the azure driver connects on the first call.
    """
    client = open_driver(
        read_connection_string(connection, hub, keyless=credential is not None),
        driver,
        first_retry,
        credential=credential,
        transport=transport,
        endpoint=endpoint,
        ca_file=ca_file,
        retry=retry,
    )
    return traced(MeteredClient(client, is_on=is_on) if may_turn_on() else client)


def traced(client: HubClient) -> HubClient:
    """The client, with spans if the application has a TracerProvider."""
    if not is_traced():
        return client
    from pumphouse.client.traced import TracedClient  # imports OpenTelemetry

    return TracedClient(client)


def open_driver(
    address: ConnectionString, driver: str, first_retry: RetryOptions | None, **options: Any
) -> HubClient:
    if choose_driver(address, driver) == "native":
        from pumphouse.client.native.client import NativeClient

        return NativeClient(address, **options, first_retry=first_retry)
    from pumphouse.client.azure.client import AzureClient  # raises OptionError without the SDK

    return AzureClient(address, **options)


def choose_driver(address: ConnectionString, driver: str) -> str:
    """The driver for an address; `auto` means native without TLS or for a loopback address."""
    if driver not in DRIVERS:
        raise OptionError(f"driver must be one of {', '.join(DRIVERS)} (got {driver!r})")
    if driver != "auto":
        return driver
    return "native" if not address.tls or is_loopback(address.host) else "azure"


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
