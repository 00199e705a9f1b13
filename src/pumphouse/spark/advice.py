"""What went wrong at the hub, with the option that a user can change about it.

A client knows hosts, keys and hubs; who writes a query knows options. Errors pass through here on
their way to Spark, and keep their class.

    Outlook, read_task, write_rows -> advised -> the query's error
                                      ^^^^^^^ this module
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
    """The same error and what to look at; others as they are."""
    told = str(failed).rstrip(".")
    # Only these classes themselves: those made of them say enough, and take other arguments.
    kind = type(failed)
    if kind is AuthError:
        return AuthError(f"{told}. {about_keys(identity)}", failed.status)  # type: ignore[attr-defined]
    if kind is HubNotFound:
        return HubNotFound(
            f"{told}. The hub is named by the option name, or by EntityPath in connectionString"
        )
    if kind is HubUntrusted:
        return HubUntrusted(f"{told}. The option caFile names an authority to trust")
    if kind is ConnectionFailed:
        return ConnectionFailed(
            f"{told}. The host is {identity.connection.host}, from connectionString or "
            "fullyQualifiedNamespace; driver and executors must all reach it"
        )
    return failed


def about_keys(identity: HubIdentity) -> str:
    if identity.credential != "none":
        return f"It is that of credential={identity.credential}; its roles must allow this"
    return (
        "The key is in connectionString, or in sharedAccessKeyName and sharedAccessKey; reading "
        "needs the claim Listen, writing Send"
    )


def no_response_error(identity: HubIdentity) -> ConnectionFailed:
    seconds = identity.operation_timeout_s
    return ConnectionFailed(
        f"hub {identity.hub} did not answer within {seconds:g} s (operationTimeout)"
    )


def no_such_group_error(group: str, hub: str, failed: HubNotFound) -> OptionError:
    return OptionError(
        f"consumerGroup is {group!r}, and hub {hub} has no such group: {failed} Create it, or "
        "leave the option out to read as $Default"
    )
