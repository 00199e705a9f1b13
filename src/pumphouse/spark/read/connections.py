"""Connections of a worker process, kept for its next task.

Spark uses a worker again for later tasks, and opening a connection costs several round trips. One
that was used to the end of a range can be used again; one that failed cannot. Those that nobody
uses for a while are closed by whoever comes next.

    read_task -> connections.borrow -> BulkClient
                 ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pumphouse.client.bulk import BulkClient, ConnectionOptions
from pumphouse.errors import PumphouseError
from pumphouse.spark.identity import make_credential
from pumphouse.spark.options import HubIdentity

IDLE_S = 60.0  # far below the 240 s after which a hub hangs up


@dataclass(frozen=True, slots=True)
class IdleConnection:
    client: BulkClient
    since_s: float


class ConnectionPool:
    """Open connections by identity. Safe for threads; a forked child starts with none."""

    def __init__(
        self,
        connect: Callable[[HubIdentity], BulkClient],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._idle: dict[HubIdentity, list[IdleConnection]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    @contextmanager
    def borrow(self, identity: HubIdentity) -> Iterator[BulkClient]:
        """A connection for one range; it comes back unless that failed or was left early."""
        client = self._take(identity) or self._connect(identity)
        try:
            yield client
        except BaseException:
            hang_up(client)
            raise
        self._put(identity, client)

    def _take(self, identity: HubIdentity) -> BulkClient | None:
        with self._lock:
            stale = self._sweep()
            waiting = self._idle.get(identity)
            found = waiting.pop().client if waiting else None
        for client in stale:
            hang_up(client)
        return found

    def _sweep(self) -> list[BulkClient]:
        """Those that nobody has used for too long, taken out."""
        if self._process != os.getpid():  # sockets of the parent are not ours to use or close
            self._process, self._idle = os.getpid(), {}
        before = self._monotonic() - IDLE_S
        stale = [one for idle in self._idle.values() for one in idle if one.since_s < before]
        self._idle = {
            identity: kept
            for identity, idle in self._idle.items()
            if (kept := [one for one in idle if one.since_s >= before])
        }
        return [one.client for one in stale]

    def _put(self, identity: HubIdentity, client: BulkClient) -> None:
        with self._lock:
            self._idle.setdefault(identity, []).append(IdleConnection(client, self._monotonic()))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for one in (one for kept in idle.values() for one in kept):
            hang_up(one.client)


def hang_up(client: BulkClient) -> None:
    with suppress(PumphouseError, OSError):
        client.__exit__(None, None, None)


def connect(identity: HubIdentity) -> BulkClient:
    """A connection of its own, open; `operationTimeout` can only make us less patient."""
    usual, most_s = ConnectionOptions(), identity.operation_timeout_s
    client = BulkClient(
        identity.connection,
        identity.hub,
        credential=make_credential(identity),
        transport=identity.transport,
        ca_file=identity.ca_file or None,
        retry=identity.retry,
        options=replace(
            usual,
            connect_s=min(usual.connect_s, most_s),
            answer_s=min(usual.answer_s, most_s),
        ),
    )
    return client.__enter__()


connections = ConnectionPool(connect)
