"""The environment variables of a FixedPartitionProcessor.

os.environ -> read_options, read_hub, read_store -> FixedPartitionProcessor.from_env
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from pumphouse.client.base import DEFAULT_GROUP, HubClient
from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.checks.parts import check_connect
from pumphouse.processor.hosting.environment import (
    CONNECTION_VARIABLES,
    GROUP,
    HOST,
    HUB,
    NAMESPACE,
    read_environment,
)
from pumphouse.processor.options import FixedPartitionOptions, FixedPartitionSettings

CONNECTION_VARIABLE = "INBOUND_EVENTHUB_CONNSTRING"
GROUP_VARIABLE = "INBOUND_EVENTHUB_CONSUMER_GROUP"
OF_HUB = (CONNECTION_VARIABLE, GROUP_VARIABLE, *CONNECTION_VARIABLES, NAMESPACE, HUB, GROUP)
SETTINGS = frozenset(FixedPartitionSettings.__annotations__)
VARIABLES = {
    "max_batch_size": "INBOUND_EVENTHUB_MAX_BATCH_SIZE",
    "lease_s": "LEASE_FOR_X_SEC",
    "renew_s": "RENEW_EVERY_X_SEC",
}


def read_options(variables: Mapping[str, str], **settings: Any) -> FixedPartitionOptions:
    """The options: from the variables, except for those that are given as keywords."""
    default = FixedPartitionOptions()
    read = {
        "max_batch_size": read_integer(
            variables, VARIABLES["max_batch_size"], default.max_batch_size
        ),
        "lease_s": read_seconds(variables, VARIABLES["lease_s"], default.lease_s),
        "renew_s": read_seconds(variables, VARIABLES["renew_s"], default.renew_s),
    }
    try:
        return FixedPartitionOptions(**{**read, **settings})
    except OptionError as error:
        raise OptionError(with_variables(str(error), settings)) from None


def name_of(option: str, settings: Container[str]) -> str:
    """The name under which the user has given an option: the keyword or the variable."""
    return option if option in settings else VARIABLES[option]


def with_variables(text: str, settings: Container[str]) -> str:
    """The text of an error with the names under which the user has given the options."""
    for option in VARIABLES:
        text = re.sub(rf"\b{option}\b", name_of(option, settings), text)
    return text


def read_hub(variables: Mapping[str, str]) -> tuple[str | Callable[[], HubClient], str, str]:
    """The hub, the consumer group and the name of the host."""
    group = variables.get(GROUP_VARIABLE) or variables.get(GROUP) or DEFAULT_GROUP
    if variables.get(CONNECTION_VARIABLE):
        check_connect(CONNECTION_VARIABLE, variables[CONNECTION_VARIABLE], has_hub=True)
        return variables[CONNECTION_VARIABLE], group, variables.get(HOST, "")
    if not any(variables.get(name) for name in (*CONNECTION_VARIABLES, NAMESPACE)):
        raise OptionError(f"the environment variable {CONNECTION_VARIABLE} is not set")
    settings = read_environment(variables)
    settings.need_hub()
    return settings.connect, group, settings.host


def read_text(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise OptionError(f"the environment variable {name} is not set")
    return variables[name]


def read_seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; it must be a number of seconds") from None


def read_integer(variables: Mapping[str, str], name: str, default: int | None) -> int:
    if not variables.get(name) and default is not None:
        return default
    text = read_text(variables, name)
    if not text.strip().isdecimal():
        raise OptionError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def read_store(variables: Mapping[str, str], lease_s: float, name: str) -> CheckpointStore:
    if not variables.get("STORAGE_CONNSTRING") and variables.get("PUMPHOUSE_STORE"):
        from pumphouse.leases.store_url import open_store_of_host

        return open_store_of_host(variables["PUMPHOUSE_STORE"], lease_s, name)
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore, whole_lease_s

    whole_lease_s(lease_s, name)
    return BlobLeaseStore.from_connection_string(
        read_text(variables, "STORAGE_CONNSTRING"),
        read_text(variables, "STORAGE_CONTAINER_NAME"),
        lease_s=lease_s,
    )
