"""Completes errors of the hub with the option of the query to check.

Errors of a client name hosts, keys and hubs; the author of a query knows options. Errors keep their
class.

    HubState, read_task, write_rows -> with_advice -> the error of the query
                                       ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    HubNotFound,
    HubUntrusted,
    OptionError,
    PumphouseError,
)
from pumphouse.spark.options import HubIdentity


def with_advice(failed: PumphouseError, identity: HubIdentity) -> PumphouseError:
    """The error with the option to check appended; other errors are returned unchanged."""
    message = str(failed).rstrip(".")
    # Exact classes only: subclasses have specific texts, and other arguments.
    kind = type(failed)
    if kind is AuthError:
        return AuthError(f"{message}. {advise_on_keys(identity)}", failed.status)  # type: ignore[attr-defined]
    if kind is HubNotFound:
        return HubNotFound(
            f"{message}. The hub is named by the option name, or by EntityPath in connectionString"
        )
    if kind is HubUntrusted:
        return HubUntrusted(f"{message}. The option caFile names an authority to trust")
    if kind is ConnectionFailed:
        return ConnectionFailed(
            f"{message}. The host is {identity.connection.host}, from connectionString or "
            "fullyQualifiedNamespace; driver and executors must all reach it"
        )
    return failed


def advise_on_keys(identity: HubIdentity) -> str:
    if identity.credential != "none":
        return f"The identity is that of credential={identity.credential}; check its roles"
    return (
        "The key is in connectionString, or in sharedAccessKeyName and sharedAccessKey; reading "
        "needs the claim Listen, writing Send"
    )


def no_response_error(identity: HubIdentity) -> ConnectionFailed:
    seconds = identity.operation_timeout_s
    return ConnectionFailed(
        f"hub {identity.hub} did not respond within {seconds:g} s (operationTimeout); check that "
        f"{identity.connection.host} is reachable, or raise operationTimeout"
    )


def no_such_group_error(group: str, hub: str, failed: HubNotFound) -> OptionError:
    return OptionError(
        f"invalid consumerGroup {group!r}: hub {hub} has no such group: "
        f"{str(failed).rstrip('.')}. Create it, or leave the option out to read as $Default"
    )
