"""The hub, the store and the names of a host, from environment variables.

PUMPHOUSE_CONNECTION, or EVENT_HUB_CONN_STR    connection string
EVENT_HUB_HOSTNAME                             or the host of a namespace, and the identity of
                                               the machine (DefaultAzureCredential)
EVENT_HUB_NAME                                 the hub, unless the connection string names it
PUMPHOUSE_GROUP, PUMPHOUSE_HOST                consumer group; name of this host
PUMPHOUSE_STORE                                URL of the store
PUMPHOUSE_CA_FILE                              certificate authorities of the hub

os.environ -> read_environment -> HostEnvironment -> Processor, EventProcessorHost, ...
              ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumphouse.client.base import (
    DEFAULT_GROUP,
    ConnectionString,
    HubClient,
    read_connection_string,
)
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store_of_host

CONNECTION_VARIABLES = ("PUMPHOUSE_CONNECTION", "EVENT_HUB_CONN_STR")
NAMESPACE, HUB = "EVENT_HUB_HOSTNAME", "EVENT_HUB_NAME"
GROUP, HOST, STORE, CA_FILE = (
    "PUMPHOUSE_GROUP", "PUMPHOUSE_HOST", "PUMPHOUSE_STORE", "PUMPHOUSE_CA_FILE"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """What the variables of a process say about its host."""

    address: ConnectionString
    keyless: bool  # the identity of the machine takes the place of a key
    group: str
    host: str
    store_url: str = field(repr=False)
    ca_file: str | None

    def connect(self) -> HubClient:
        """A client of the hub that the variables name."""
        return self.connect_to(self.need_hub())

    def connect_to(self, hub: str) -> HubClient:
        credential = machine_identity() if self.keyless else None
        return open_client(self.address, hub, credential=credential, ca_file=self.ca_file)

    def need_hub(self) -> str:
        if not self.address.hub:
            raise OptionError(
                f"the environment variable {HUB} is not set, and no EntityPath names the hub"
            )
        return self.address.hub

    def open_store(self, lease_s: float, option: str) -> CheckpointStore:
        """The store, for leases of `lease_s`; errors call that option `option`."""
        if not self.store_url:
            raise OptionError(f"the environment variable {STORE} is not set: it names the store")
        try:
            return open_store_of_host(self.store_url, lease_s, option)
        except OptionError as error:
            raise OptionError(f"{STORE}: {error}") from None


def read_environment(environ: Mapping[str, str] | None = None) -> HostEnvironment:
    """The host of these variables, by default those of the process."""
    variables = os.environ if environ is None else environ
    address, keyless = _read_address(variables)
    return HostEnvironment(
        address,
        keyless,
        variables.get(GROUP) or DEFAULT_GROUP,
        variables.get(HOST, ""),
        variables.get(STORE, ""),
        variables.get(CA_FILE) or None,
    )


def _read_address(variables: Mapping[str, str]) -> tuple[ConnectionString, bool]:
    hub = variables.get(HUB, "")
    for name in (*CONNECTION_VARIABLES, NAMESPACE):
        if text := variables.get(name):
            return _read_variable(name, text, hub), name == NAMESPACE
    raise OptionError(
        f"none of the environment variables {', '.join(CONNECTION_VARIABLES)} and {NAMESPACE} is "
        "set: one of them names the namespace"
    )


def _read_variable(name: str, text: str, hub: str) -> ConnectionString:
    try:
        return read_connection_string(text, hub, keyless=name == NAMESPACE)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None


def machine_identity() -> Any:
    """What azure-identity finds: environment, managed identity, command line tool, ..."""
    from pumphouse.leases.stores.blob.machine_identity import MachineIdentity

    return MachineIdentity()
