"""Reads ranges of partitions straight into Arrow record batches.

A range is the events from `first` up to, not including, `last`.

    for batch in read_range(connection_string, "0", 1_000, 251_000):
        ...                                     # pyarrow.RecordBatch with the columns of Spark

Either all events of the range are returned, each once and in order, or an exception is raised.
Transient failures (a lost connection, a detach, a busy hub) are retried as `RetryOptions` allows:
reading resumes after the last returned row. Other failures are raised: RangeTimeout (the events
have not been sent), EventsGone (they are no longer stored; continue at `available`), HubRecreated,
ReaderEvicted (a reader of a higher epoch is attached), AuthError, HubNotFound, and ConnectionFailed
(without retries if the first connection fails).

    read_range -> BulkClient -> RangeReader -> Columns -> BatchBuilder
    ^^^^^^^^^^ this module ^^
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from pumphouse.amqp.links import Link, ReceiverLink
from pumphouse.amqp.performatives import FIRST, RECEIVER, SETTLED, Source, Target
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import HubProperties, PartitionProperties, RetryOptions
from pumphouse.client.bulk.blocking_connection import BlockingConnection
from pumphouse.client.bulk.metering import RangeMetering
from pumphouse.client.bulk.ranges import (
    BATCH_ROWS_MAX,
    CREDIT_WINDOW,
    EventsGone,
    HubRecreated,
    RangeOptions,
    RangeReader,
    RangeTimeout,
    first_credit,
)
from pumphouse.client.bulk.streams import Stream, open_stream
from pumphouse.client.bulk.tokens import BlockingToken, check_blocking
from pumphouse.client.connection_string import (
    ConnectionString,
    hub_missing,
    read_connection_string,
)
from pumphouse.client.credentials import credential_for
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.management import HUB, PARTITION, parse_hub, parse_partition
from pumphouse.client.native.transports import tls_context
from pumphouse.client.retries import delay_s, exhausted, is_transient
from pumphouse.client.routes import Route, route_for
from pumphouse.client.selectors import filter_for
from pumphouse.errors import AmqpError, AuthError, ConnectionFailed, OptionError, PumphouseError
from pumphouse.events import Position
from pumphouse.telemetry.meter import is_on

__all__ = [
    "BATCH_ROWS_MAX",
    "CREDIT_WINDOW",
    "BulkClient",
    "EventsGone",
    "HubRecreated",
    "RangeOptions",
    "RangeTimeout",
    "read_range",
]

MANAGEMENT = "$management"

Connect = Callable[[Route, float], Stream]  # the route, and the timeout of each step


def read_range(
    connection: str | ConnectionString,
    partition: str,
    first: int,
    last: int,
    options: RangeOptions | None = None,
    *,
    hub: str = "",
    credential: Any = None,
    transport: str = "tcp",
    endpoint: str | None = None,
    ca_file: str | Path | None = None,
    retry: RetryOptions | None = None,
    connect: Connect | None = None,
) -> Iterator[pa.RecordBatch]:
    """The events of a partition from `first` up to, not including, `last`.

    A connection is opened for this range. The other arguments are those of `BulkClient`.
    """
    client = BulkClient(
        connection,
        hub,
        credential=credential,
        transport=transport,
        endpoint=endpoint,
        ca_file=ca_file,
        retry=retry,
        connect=connect,
    )
    check_range(partition, first, last)
    return client.read_once(Span(partition, first, last, options or RangeOptions()))


def check_range(partition: str, first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise OptionError(
            f"invalid range {first} to {last} of partition {partition}: use 0 <= first <= last"
        )


@dataclass(slots=True)
class Span:
    """The unread rest of a range."""

    partition: str
    next: int
    last: int
    options: RangeOptions
    enqueued_ms: int | None = None  # of the last returned event
    attached: bool = False  # at least once

    def advance(self, rows: int, enqueued_ms: int | None) -> None:
        self.next += rows
        self.enqueued_ms = enqueued_ms


class BulkClient:
    """A connection over which ranges are read, one after the other.

    Opening a connection costs several round trips, so keep it for many ranges.

    `connection` is a connection string, or the host of a namespace if a `credential` is given: a
    signature, or a blocking credential of azure-identity. `transport` is "tcp" or "websocket".
    `endpoint` (HOST:PORT) replaces the address. `ca_file` or `context` replaces the certificate
    authorities of this machine. `connect` is a function that opens the stream; `ca_file` and
    `context` are then not used. `options` holds timeouts, the frame size and the clock.
    """

    def __init__(
        self,
        connection: str | ConnectionString,
        hub: str = "",
        *,
        credential: Any = None,
        transport: str = "tcp",
        endpoint: str | None = None,
        ca_file: str | Path | None = None,
        context: ssl.SSLContext | None = None,
        retry: RetryOptions | None = None,
        connect: Connect | None = None,
        options: ConnectionOptions | None = None,
    ) -> None:
        check_blocking(credential)
        self.connection_string = read_connection_string(
            connection, hub, keyless=credential is not None
        )
        self.hub = self.connection_string.hub
        self.route = route_for(self.connection_string, transport, endpoint)
        self.credential = credential_for(self.connection_string, credential)
        self.ca_file = ca_file
        self.context = context
        self.retry = retry or RetryOptions()
        self.connect: Connect = connect or self.open_stream
        self.options = options or ConnectionOptions()
        self._connection: BlockingConnection | None = None
        self._span: Span | None = None  # the range that is being read
        self._reader: RangeReader | None = None  # None while the connection is broken
        self._requested: Span | None = None  # a range that is not read yet
        self._requested_link: Link | None = None  # until the hub has accepted it
        self._entered = False  # inside a `with` block
        self._token = BlockingToken(
            self.credential, self.connection_string.resource(self.hub), self.options.clock
        )
        if not self.hub:
            raise hub_missing()

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else "open"
        return f"<BulkClient {self.route.address} {self.hub} {state}>"

    # -- opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        self._entered = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def connection(self) -> BlockingConnection:
        if self._connection is None:
            raise OptionError(f"{self!r} must be used in a `with` block")
        return self._connection

    def open_stream(self, route: Route, timeout_s: float) -> Stream:
        if route.tls and self.context is None:
            self.context = tls_context(self.ca_file)
        return open_stream(route, timeout_s, self.context)

    def open(self) -> None:
        """Connect, log in, and put the token."""
        stream = self.connect(self.route, self.options.connect_s)
        self._connection = BlockingConnection(stream, self.route, self.options)
        try:
            self._connection.open()
            self._token.put(self._connection)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Close the connection without waiting."""
        connection, self._connection = self._connection, None
        self._reader = self._requested_link = None
        if connection is not None:
            connection.abort()

    def renew_token(self) -> None:
        """Renew the token if it is due."""
        self._token.renew(self.connection)

    # -- reading ----------------------------------------------------------------------------------

    def read_range(
        self, partition: str, first: int, last: int, options: RangeOptions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The events of a partition from `first` up to, not including, `last`."""
        check_range(partition, first, last)
        if not self._entered:
            raise self.not_usable()
        return self.read(Span(partition, first, last, options or RangeOptions()))

    def request_range(
        self, partition: str, first: int, last: int, options: RangeOptions | None = None
    ) -> None:
        """Request a range, and wait for nothing. `read_requested` then returns its events.

        With several clients, several ranges are requested before the first is read. The round trips
        then overlap, without a thread for each.
        """
        check_range(partition, first, last)
        if not self._entered or self._span is not None:
            raise self.not_usable()
        self.renew_token()
        self._requested = Span(partition, first, last, options or RangeOptions())
        if first < last:
            self._requested_link = self.request_link(self._requested)
            self.connection.flush()

    def read_requested(self) -> Iterator[pa.RecordBatch]:
        """The events of the range that was requested."""
        span, self._requested = self._requested, None
        if span is None:
            raise self.not_usable()
        return self.read(span)

    def read_once(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Connect, read one range, and close."""
        if span.next < span.last:
            with self:
                yield from self.read(span)

    def not_usable(self) -> OptionError:
        return OptionError(f"{self!r} cannot read now: read one range at a time, in a `with` block")

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        if not self._entered or self._span is not None:
            raise self.not_usable()
        self._span = span
        try:
            with self.metered(span) as next_batch:
                while span.next < span.last:
                    yield next_batch(span)
            self.finish()
        except BaseException:
            self.abort()
            raise
        finally:
            self._span = None

    @contextmanager
    def metered(self, span: Span) -> Iterator[Callable[[Span], pa.RecordBatch]]:
        """`next_batch`, which records metrics if they can be read."""
        if not is_on():
            yield self.next_batch
            return
        with closing(RangeMetering(self.hub, span.partition, span.options.group)) as metering:
            yield lambda span: metering.next_batch(partial(self.next_batch, span))

    def next_batch(self, span: Span) -> pa.RecordBatch:
        """The next batch, over a new connection if the current one is broken."""
        failures = 0
        while True:
            try:
                return self.next_batch_once(span)
            except PumphouseError as failed:
                self.abort()
                failures += 1
                if not is_transient(failed, resumed=span.attached) or exhausted(
                    failures, self.retry
                ):
                    raise
            self.options.pause(delay_s(failures, self.retry, self.options.rng))

    def next_batch_once(self, span: Span) -> pa.RecordBatch:
        if self._reader is None:
            self._reader = self.attach_rest(span)
        batch = self._reader.next_batch()
        assert batch is not None, "the span has unread events"
        span.advance(batch.num_rows, self._reader.enqueued_ms)
        return batch

    def attach_rest(self, span: Span) -> RangeReader:
        """Attach at the start of the unread rest of a range."""
        if self._connection is None:
            self.open()
            self.check_same_hub(span)
        self.renew_token()
        requested, self._requested_link = self._requested_link, None
        link = requested or self.request_link(span)
        self.connection.finish_attach(link)
        assert isinstance(link, ReceiverLink)
        span.attached = True
        return RangeReader(self, link, span.partition, span.next, span.last, span.options)

    def finish(self) -> None:
        """Detach after the range is read. A failure of the connection is ignored then."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        reader.check_end()
        self.connection.reading = None
        try:
            # Without an epoch the hub counts readers: the next one could be one too many.
            self.connection.detach(reader.link, wait=reader.options.epoch is None)
        except ConnectionFailed:
            self.abort()

    def request_link(self, span: Span) -> Link:
        """Request a link, and grant its first credit: the events follow the hub's response."""
        options, properties = span.options, dict[Any, Any]()
        if options.epoch is not None:
            properties[Symbol("com.microsoft:epoch")] = options.epoch
        if options.receiver_name is not None:
            properties[Symbol("com.microsoft:receiver-name")] = options.receiver_name
        link = self.connection.start_attach(
            RECEIVER,
            source=Source(
                address=f"{self.hub}/ConsumerGroups/{options.group}/Partitions/{span.partition}",
                filter=filter_for(Position("sequence", str(span.next), inclusive=True)),
            ),
            target=Target(address=options.receiver_name or "bulk"),
            snd_settle_mode=SETTLED,
            rcv_settle_mode=FIRST,
            properties=properties or None,
        )
        assert isinstance(link, ReceiverLink)
        link.grant(first_credit(span.next, span.last, options))
        self.connection.reading = link
        return link

    # -- properties -------------------------------------------------------------------------------

    def check_same_hub(self, span: Span) -> None:
        """Raise HubRecreated if the hub is younger than an event that was read."""
        if span.enqueued_ms is None:
            return
        with suppress(AmqpError, AuthError):  # a reader may lack the right to read properties
            if self.properties().created_ms > span.enqueued_ms:
                raise HubRecreated(self.hub, span.partition, span.next)

    def properties(self, seconds: float | None = None) -> HubProperties:
        """The properties of the hub; `seconds` limits the wait."""
        return parse_hub(self.request(HUB, seconds), self.route.address)

    def partition_properties(
        self, partition: str, seconds: float | None = None
    ) -> PartitionProperties:
        """The properties of a partition; `seconds` limits the wait."""
        reply = self.request(PARTITION, seconds, partition=partition)
        return parse_partition(reply, self.route.address)

    def request(self, kind: str, seconds: float | None, **fields: str) -> Any:
        request_id = self.connection.request(
            MANAGEMENT, {"operation": "READ", "type": kind, "name": self.hub, **fields}
        )
        return self.connection.reply(request_id, MANAGEMENT, seconds)
