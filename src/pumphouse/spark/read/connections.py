"""A pool of connections in a worker process, kept open for its next task.

Spark reuses a worker for later tasks, and opening a connection costs several round trips. A
connection that has read its range to the end can be reused; one that failed cannot. The next
borrower closes connections that were idle for too long.

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

IDLE_S = 60.0  # far below the 240 s after which a hub closes an idle connection


@dataclass(frozen=True, slots=True)
class IdleConnection:
    client: BulkClient
    since_s: float


class ConnectionPool:
    """Idle connections by identity. Thread-safe; a forked child starts with none."""

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
    def borrow(
        self, identity: HubIdentity, taken: BulkClient | None = None
    ) -> Iterator[BulkClient]:
        """A connection for one range; it is kept unless the read failed or ended early.

        `taken` is one of `take_idle`.
        """
        client = taken or self.take_idle(identity) or self._connect(identity)
        try:
            yield client
        except BaseException:
            close_quietly(client)
            raise
        self._put(identity, client)

    def count_idle(self, identity: HubIdentity) -> int:
        with self._lock:
            return len(self._idle.get(identity, ())) if self._process == os.getpid() else 0

    def take_idle(self, identity: HubIdentity) -> BulkClient | None:
        """An open connection, if there is one; the caller passes it to `borrow`, or aborts it."""
        with self._lock:
            stale = self._sweep()
            idle = self._idle.get(identity)
            borrowed = idle.pop().client if idle else None
        for client in stale:
            close_quietly(client)
        return borrowed

    def _sweep(self) -> list[BulkClient]:
        """Take out and return the connections that were idle for too long."""
        if self._process != os.getpid():  # the sockets belong to the parent process
            self._process, self._idle = os.getpid(), {}
        oldest_s = self._monotonic() - IDLE_S
        stale = [
            entry for idle in self._idle.values() for entry in idle if entry.since_s < oldest_s
        ]
        self._idle = {
            identity: kept
            for identity, idle in self._idle.items()
            if (kept := [entry for entry in idle if entry.since_s >= oldest_s])
        }
        return [entry.client for entry in stale]

    def _put(self, identity: HubIdentity, client: BulkClient) -> None:
        with self._lock:
            self._idle.setdefault(identity, []).append(IdleConnection(client, self._monotonic()))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for entry in (entry for kept in idle.values() for entry in kept):
            close_quietly(entry.client)


def close_quietly(client: BulkClient) -> None:
    with suppress(PumphouseError, OSError):
        client.__exit__(None, None, None)


def connect(identity: HubIdentity) -> BulkClient:
    """A new open connection; `operationTimeout` can only shorten its deadlines."""
    defaults, timeout_s = ConnectionOptions(), identity.operation_timeout_s
    client = BulkClient(
        identity.connection,
        identity.hub,
        credential=make_credential(identity),
        transport=identity.transport,
        ca_file=identity.ca_file or None,
        retry=identity.retry,
        options=replace(
            defaults,
            connect_s=min(defaults.connect_s, timeout_s),
            answer_s=min(defaults.answer_s, timeout_s),
        ),
    )
    return client.__enter__()


connections = ConnectionPool(connect)
