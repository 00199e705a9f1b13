"""Which driver speaks to a hub: our own AMQP, or the official SDK.

    connection string, driver -> open_client -> native.Client or azure.AzureClient
                                 ^^^^^^^^^^^ this module

Without a wish, an embedded hub is spoken to by the native driver, and the real service by the SDK
that its makers test against it. Both keep the same contract (`base`), so the choice is one of speed
and of trust, not of behaviour.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from pumphouse.client.base import HubClient, RetryOptions
from pumphouse.client.connection_string import ConnectionString, read_place
from pumphouse.errors import OptionError

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
) -> HubClient:
    """A client of a hub, to be used in an `async with` block.

    `connection` is a connection string, or the host of a namespace if a `credential` is given: one
    of azure-identity, or a SharedAccessSignature as text. `transport` is "tcp" or "websocket";
    `endpoint` (HOST:PORT) leads elsewhere than the connection string; `ca_file` is what to trust in
    place of what the machine does.
    """
    place = read_place(connection, hub, keyless=credential is not None)
    options: dict[str, Any] = {
        "credential": credential,
        "transport": transport,
        "endpoint": endpoint,
        "ca_file": ca_file,
        "retry": retry,
    }
    if choose_driver(place, driver) == "native":
        from pumphouse.client.native.client import Client

        return Client(place, **options)
    from pumphouse.client.azure.client import AzureClient  # says so itself if the SDK is missing

    return AzureClient(place, **options)


def choose_driver(place: ConnectionString, driver: str) -> str:
    """The driver that is meant: for `auto`, native wherever a hub of ours is likely."""
    if driver not in DRIVERS:
        raise OptionError(f"driver must be one of {', '.join(DRIVERS)} (got {driver!r})")
    if driver != "auto":
        return driver
    return "native" if not place.tls or is_loopback(place.host) else "azure"


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
