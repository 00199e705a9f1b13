"""Ranges of partitions, read straight into Arrow record batches.

For those who know what they want: the events from `first` up to, not including, `last`.

    for batch in read_range(connection_string, "0", 1_000, 251_000):
        ...                                     # pyarrow.RecordBatch, columns as Spark wants them

Either all events of the range come, each once and in order, or there is an exception. What breaks
in the middle and passes by itself (a lost connection, a detach, a busy hub) is mended within the
patience of `RetryOptions`: reading goes on behind the last row that was handed out. The rest is
raised: RangeTimeout (the events have not been sent), EventsGone (they are no longer there; go on
from `available`), HubRecreated, ReaderEvicted (a reader of a higher epoch is there), AuthError,
HubNotFound; and ConnectionFailed, at once if there never was a connection.

    read_range -> BulkClient -> RangeReader -> Columns -> BatchBuilder
    ^^^^^^^^^^ this module ^^
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

import pyarrow as pa

from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import FIRST, RECEIVER, SETTLED, Source, Target
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import HubProperties, PartitionProperties, RetryOptions
from pumphouse.client.bulk.blocking_connection import BlockingConnection
from pumphouse.client.bulk.ranges import (
    BATCH_ROWS_MAX,
    CREDIT_WINDOW,
    EventsGone,
    HubRecreated,
    RangeOptions,
    RangeReader,
    RangeTimeout,
)
from pumphouse.client.bulk.streams import Stream, open_stream
from pumphouse.client.bulk.tokens import BlockingToken, check_blocking
from pumphouse.client.connection_string import ConnectionString, read_connection_string
from pumphouse.client.credentials import credential_for
from pumphouse.client.native.connection import FRAME_BYTES_MAX, ConnectionOptions
from pumphouse.client.native.management import HUB, PARTITION, hub_from, partition_from
from pumphouse.client.native.transports import tls_context
from pumphouse.client.retries import delay_s, exhausted, passes
from pumphouse.client.routes import Route, route_for
from pumphouse.client.selectors import filter_for
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AmqpError, AuthError, ConnectionFailed, OptionError, PumphouseError
from pumphouse.events import Position

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

Connect = Callable[[Route, float], Stream]  # by which way, and how long each step may take


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
    """The events of a partition from `first` up to, not including, `last`, over a connection of
    its own. What else can be given is as for `BulkClient`."""
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
            f"a range goes from 0 or more up to the same or more; for partition {partition} it "
            f"goes from {first} to {last}"
        )


@dataclass(slots=True)
class Span:
    """What is left to read of a range."""

    partition: str
    next: int
    last: int
    options: RangeOptions
    enqueued_ms: int | None = None  # of the last event that was handed out
    attached: bool = False  # at least once

    def took(self, rows: int, enqueued_ms: int | None) -> None:
        self.next += rows
        self.enqueued_ms = enqueued_ms


class BulkClient:
    """A connection over which ranges are read, one after the other.

    Opening one costs several round trips, so whoever reads many ranges keeps it.

    `connection` is a connection string, or just the host of a namespace if a `credential` is given:
    a signature, or a credential of azure-identity that blocks. `transport` is tcp or websocket,
    `endpoint` another way to the same hub, `ca_file` whom to trust. `connect` opens a stream in
    place of all of these.
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
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Clock | None = None,
        rng: Random | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        check_blocking(credential)
        self.connection = read_connection_string(connection, hub, keyless=credential is not None)
        self.hub = self.connection.hub
        self.route = route_for(self.connection, transport, endpoint)
        self.credential = credential_for(self.connection, credential)
        self.ca_file = ca_file
        self.context = context
        self.retry = retry or RetryOptions()
        self.connect: Connect = connect or self.open_stream
        self.options = options or ConnectionOptions()
        self.frame_bytes_max = frame_bytes_max  # what the hub may send at once
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self.pause = pause
        self._wire: BlockingConnection | None = None
        self._span: Span | None = None  # that is being read
        self._reader: RangeReader | None = None  # of it, unless the connection is broken
        self._within = False  # a `with` block
        self._token = BlockingToken(self.credential, self.connection.resource(self.hub), self.clock)
        if not self.hub:
            raise OptionError(
                "no hub is named: name one, or add EntityPath=HUB to the connection string"
            )

    def __repr__(self) -> str:
        state = "closed" if self._wire is None else "open"
        return f"<BulkClient {self.route.place} {self.hub} {state}>"

    # -- opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        self._within = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._within = False
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    @property
    def wire(self) -> BlockingConnection:
        if self._wire is None:
            raise OptionError(f"{self!r} is to be used in a `with` block")
        return self._wire

    def open_stream(self, route: Route, timeout_s: float) -> Stream:
        if route.tls and self.context is None:
            self.context = tls_context(self.ca_file)
        return open_stream(route, timeout_s, self.context)

    def open(self) -> None:
        """Connect, log in, show the token."""
        stream = self.connect(self.route, self.options.connect_s)
        self._wire = BlockingConnection(
            stream,
            self.route,
            self.options,
            frame_bytes_max=self.frame_bytes_max,
            clock=self.clock,
        )
        try:
            self._wire.open()
            self._token.put(self._wire)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Hang up without waiting."""
        wire, self._wire = self._wire, None
        self._reader = None
        if wire is not None:
            wire.abort()

    def keep_token(self) -> None:
        """Renew the token if it is time."""
        self._token.keep(self.wire)

    # -- reading ----------------------------------------------------------------------------------

    def read_range(
        self, partition: str, first: int, last: int, options: RangeOptions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The events of a partition from `first` up to, not including, `last`."""
        check_range(partition, first, last)
        if not self._within:
            raise self.not_now()
        return self.read(Span(partition, first, last, options or RangeOptions()))

    def read_once(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Connect, read one range, hang up."""
        if span.next < span.last:
            with self:
                yield from self.read(span)

    def not_now(self) -> OptionError:
        return OptionError(
            f"{self!r} cannot read now: it reads one range at a time, in a `with` block"
        )

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        if not self._within or self._span is not None:
            raise self.not_now()
        self._span = span
        try:
            while span.next < span.last:
                yield self.next_batch(span)
            self.leave()
        except BaseException:
            self.give_up()
            raise
        finally:
            self._span = None

    def next_batch(self, span: Span) -> pa.RecordBatch:
        """The next events, over another connection if the one that we had is broken."""
        failures = 0
        while True:
            try:
                return self.next_batch_once(span)
            except PumphouseError as failed:
                self.give_up()
                failures += 1
                if not passes(failed, again=span.attached) or exhausted(failures, self.retry):
                    raise
            self.pause(delay_s(failures, self.retry, self.rng))

    def next_batch_once(self, span: Span) -> pa.RecordBatch:
        if self._reader is None:
            self._reader = self.begin(span)
        batch = self._reader.next_batch()
        assert batch is not None, "there is something left of the span"
        span.took(batch.num_rows, self._reader.enqueued_ms)
        return batch

    def begin(self, span: Span) -> RangeReader:
        """Attach to where the rest of a range starts."""
        if self._wire is None:
            self.open()
            self.check_same_hub(span)
        self.keep_token()
        link = self.attach(span)
        span.attached = True
        return RangeReader(self, link, span.partition, span.next, span.last, span.options)

    def leave(self) -> None:
        """All has been read. Should the connection break now, it was good for long enough."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        reader.check_end()
        self.wire.reading = None
        try:
            self.wire.detach(reader.link)
        except ConnectionFailed:
            self.give_up()

    def attach(self, span: Span) -> ReceiverLink:
        options, properties = span.options, dict[Any, Any]()
        if options.epoch is not None:
            properties[Symbol("com.microsoft:epoch")] = options.epoch
        if options.receiver_name is not None:
            properties[Symbol("com.microsoft:receiver-name")] = options.receiver_name
        link, _ = self.wire.attach(
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
        return link

    # -- asking -----------------------------------------------------------------------------------

    def check_same_hub(self, span: Span) -> None:
        """A hub that is younger than an event we have read is another one of the same name."""
        if span.enqueued_ms is None:
            return
        with suppress(AmqpError, AuthError):  # whoever may read need not be allowed to ask
            if self.properties().created_ms > span.enqueued_ms:
                raise HubRecreated(self.hub, span.partition, span.next)

    def properties(self, seconds: float | None = None) -> HubProperties:
        """What the hub says of itself; `seconds` is how long it may think about it."""
        return hub_from(self.ask(HUB, seconds))

    def partition_properties(
        self, partition: str, seconds: float | None = None
    ) -> PartitionProperties:
        """What a partition holds; `seconds` is how long the hub may think about it."""
        return partition_from(self.ask(PARTITION, seconds, partition=partition))

    def ask(self, kind: str, seconds: float | None, **asked: str) -> Any:
        number = self.wire.ask(
            MANAGEMENT, {"operation": "READ", "type": kind, "name": self.hub, **asked}
        )
        return self.wire.reply(number, MANAGEMENT, seconds)
