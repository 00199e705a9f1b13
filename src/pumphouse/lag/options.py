"""What an exporter observes: a hub, a store, and some or all of its consumer groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from pumphouse.client.base import read_connection_string
from pumphouse.errors import OptionError
from pumphouse.leases.store_url import StoreUrl, parse_store_url


@dataclass(frozen=True, slots=True)
class LagOptions:
    """The settings of an exporter, checked at the start, so that later errors are temporary."""

    connection: str = field(repr=False)
    store: StoreUrl
    hub: str
    namespace: str
    groups: tuple[str, ...] = ()  # (): those in the store
    interval_s: float = 15.0
    lease_s: float = 30.0
    ca_file: str | None = None


def lag_options(
    connection: str,
    hub: str,
    store: str,
    groups: tuple[str, ...] = (),
    interval_s: float = 15.0,
    lease_s: float = 30.0,
    ca_file: str | None = None,
) -> LagOptions:
    address, url = read_connection_string(connection, hub), parse_store_url(store)
    if not address.hub:
        raise OptionError("no hub: use --hub HUB, or a connection string with EntityPath=HUB")
    if url.kind == "memory":
        raise OptionError(
            "a memory: store is visible to its own process only: use the store of the consumers"
        )
    unique = tuple(dict.fromkeys(groups))
    return LagOptions(
        connection, url, address.hub, address.authority, unique, interval_s, lease_s, ca_file
    )
