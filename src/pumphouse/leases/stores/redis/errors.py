"""Errors of Redis as errors of a store.

redis.RedisError -> store_error -> StoreUnavailable | StoreError
                    ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.stores.limits import printable

_LENGTH_MAX = 300
# Responses after which a later call may succeed: a failover, a full disk, a slow script.
_TRANSIENT = (
    BusyLoadingError, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError
)  # fmt: skip
_TRANSIENT_CODES = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY")
_NO_PERMISSION = ("NOPERM", "The user executing the script can't")
_REFUSED = (AuthenticationError, AuthorizationError)
_REFUSED_CODES = ("NOAUTH", "WRONGPASS")


def store_error(where: str, error: RedisError) -> StoreError:
    """The error to raise: StoreUnavailable if a later call may succeed."""
    reason = f"{where}: {first_line(error)}"
    text = str(error).removeprefix("-")
    if isinstance(error, NoPermissionError) or text.startswith(_NO_PERMISSION):
        return StoreError(
            f"{reason}; grant the user the keys, channels and commands of docs/leases.md"
        )
    if isinstance(error, _REFUSED) or text.startswith(_REFUSED_CODES):
        return StoreError(f"{reason}; check user and password")
    if isinstance(error, MovedError) or text.startswith("MOVED"):
        return StoreError(
            f"{where} is a node of a Redis Cluster: use a server without cluster mode"
        )
    if isinstance(error, _TRANSIENT) or text.startswith(_TRANSIENT_CODES):
        return StoreUnavailable(reason)
    if isinstance(error, ResponseError):
        return StoreError(reason)
    return StoreUnavailable(reason)


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0][:_LENGTH_MAX])
