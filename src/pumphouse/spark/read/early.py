"""Requests several small ranges of a task before the first of them is read.

Reading a small range is mostly waiting: for the link, and for its events. With all ranges requested
first, their round trips overlap. Threads would do the same, but starting and switching them takes
longer than reading some events.

This happens only over connections that are open already, and is never needed: if anything fails,
the range is read as if it had not been requested, and the failure is handled there.

    read_task -> read_in_turn -> EarlyRange.request -> read_span -> EarlyRange.take
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^                 ^^^^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol

import pyarrow as pa

from pumphouse.client.bulk import BulkClient, RangeOptions
from pumphouse.errors import PumphouseError
from pumphouse.spark.offsets import Span
from pumphouse.spark.options import HubIdentity
from pumphouse.spark.read.connections import ConnectionPool

EVENTS_MAX = 2000  # of all ranges of a task; reading more takes longer than starting threads


def is_small(spans: tuple[Span, ...]) -> bool:
    return sum(span.count for span in spans) <= EVENTS_MAX


class EarlyRange:
    """One range, and the connection on which it is requested."""

    def __init__(self, pool: ConnectionPool, identity: HubIdentity) -> None:
        self._pool, self._identity = pool, identity
        self._client: BulkClient | None = None

    def request(self, span: Span, options: RangeOptions) -> None:
        """Request the range, if a connection is open."""
        self._client = self._pool.take_idle(self._identity)
        if self._client is None:
            return
        try:
            self._client.request_range(span.partition, span.first, span.last, options)
        except PumphouseError:
            self.close()

    def take(self) -> BulkClient | None:
        """The client that has requested the range; None if it must be read from the start."""
        client, self._client = self._client, None
        return client

    def close(self) -> None:
        """Give the range up, if it was not taken."""
        client, self._client = self._client, None
        if client is not None:
            client.abort()


class RangeReader(Protocol):
    """Reads one range of a task."""

    early: EarlyRange

    def request(self) -> None:
        """Request the events of the range."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...


def read_in_turn(readers: Sequence[RangeReader], at_once: int) -> Iterator[pa.RecordBatch]:
    """The events of small ranges, one range after the other; `at_once` are requested first."""
    for number in range(0, len(readers), at_once):
        some = readers[number : number + at_once]
        with ExitStack() as cleanup:
            for reader in some:
                cleanup.callback(reader.early.close)
                reader.request()
            for reader in some:
                yield from reader.batches()
