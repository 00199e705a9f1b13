"""Reads one range of events from a link into Arrow record batches.

The hub gets credit for exactly the events of the range, so it sends no others. Received frames
become columns, thousands of events at a time. Either all events are returned, each once and in
order, or an exception is raised.

    BulkClient -> RangeReader -> Columns -> BatchBuilder
                  ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from pumphouse.amqp import credit
from pumphouse.amqp.columnar.buffer_view import IntArray
from pumphouse.amqp.columnar.columns import Columns, frame_at
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.session import INCOMING_WINDOW
from pumphouse.client.base import DEFAULT_GROUP, PartitionProperties
from pumphouse.client.bulk.arrow import ALL_COLUMNS, BatchBuilder, schema_of
from pumphouse.client.bulk.blocking_connection import READ_BYTES_MIN, BlockingConnection
from pumphouse.client.bulk.receive_buffer import HELD_BYTES_MAX
from pumphouse.errors import (
    AmqpError,
    AuthError,
    HubNotFound,
    OptionError,
    PumphouseError,
    RemoteProtocolError,
)

# The credit of a link, or twice `batch_rows` if that is more. It is granted again when half is
# used, so a batch must fit into half of it.
CREDIT_WINDOW = 40_000
BATCH_ROWS_MAX = INCOMING_WINDOW // 2
BATCH_BYTES_MAX = HELD_BYTES_MAX // 2
FRAME_BYTES_GUESS = 2048  # assumed size of a frame, for the first size of the buffer
CHECK_AFTER_S = 1.0  # after this time without events, check whether the next is still stored


class EventsGone(PumphouseError):
    """Events of a range are no longer stored: their retention has ended."""

    def __init__(self, partition: str, wanted: int, available: int) -> None:
        super().__init__(
            f"partition {partition} no longer has event {wanted}; the first available is "
            f"{available}. Read from there, or raise the retention of the hub"
        )
        self.partition = partition
        self.wanted = wanted
        self.available = available


class RangeTimeout(PumphouseError):
    """The next event of a range did not arrive in time."""

    def __init__(self, partition: str, wanted: int, last: int, seconds: float) -> None:
        super().__init__(
            f"event {wanted} of partition {partition} did not arrive within {seconds:g} s; the "
            f"range ends before {last}. Check that the event was sent; if it was, raise deadline_s"
        )
        self.partition = partition
        self.wanted = wanted


class HubRecreated(PumphouseError):
    """A hub was deleted and created again while a range of it was read."""

    def __init__(self, hub: str, partition: str, wanted: int) -> None:
        super().__init__(
            f"hub {hub} was deleted and created again while partition {partition} was read up to "
            f"event {wanted}; its events do not continue the range. Plan a new range"
        )
        self.hub = hub
        self.partition = partition
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The consumer group, columns, batch sizes and deadline of a range."""

    group: str = DEFAULT_GROUP
    epoch: int | None = None  # None shares the partition; a number evicts readers of lower epochs
    receiver_name: str | None = None  # shown by the hub to evicted readers
    columns: tuple[str, ...] = ALL_COLUMNS
    batch_rows: int = 8192
    batch_bytes: int = 4 << 20  # received bytes; larger than a CPU cache is slower
    deadline_s: float = 60.0  # the longest wait for the next event

    def __post_init__(self) -> None:
        schema_of(self.columns)
        if not 1 <= self.batch_rows <= BATCH_ROWS_MAX:
            raise OptionError(
                f"batch_rows must be from 1 to {BATCH_ROWS_MAX} (got {self.batch_rows})"
            )
        if not READ_BYTES_MIN <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise OptionError(
                f"batch_bytes must be from {READ_BYTES_MIN} to {BATCH_BYTES_MAX} "
                f"(got {self.batch_bytes})"
            )
        if self.deadline_s <= 0:
            raise OptionError(f"deadline_s must be above zero (got {self.deadline_s:g})")


def credit_window(options: RangeOptions) -> int:
    return max(CREDIT_WINDOW, 2 * options.batch_rows)


def first_credit(first: int, last: int, options: RangeOptions) -> int:
    """The credit to grant together with the attach."""
    return min(last - first, credit_window(options))


class RangeClient(Protocol):
    """The client that a range is read through."""

    @property
    def connection(self) -> BlockingConnection: ...

    def renew_token(self) -> None:
        """Renew the token if it is due."""

    def partition_properties(
        self, partition: str, seconds: float | None = None
    ) -> PartitionProperties: ...


class RangeReader:
    """Reads the events from `first` up to, not including, `last` from a newly attached link.

    The link has its first credit, so its first events may have arrived.
    """

    def __init__(
        self,
        client: RangeClient,
        link: ReceiverLink,
        partition: str,
        first: int,
        last: int,
        options: RangeOptions,
    ) -> None:
        self.client = client
        self.connection = client.connection
        self.link = link
        self.partition = partition
        self.next = first
        self.last = last
        self.options = options
        self.window = credit_window(options)
        self.columns = self.connection.column_reader(link)
        self.batches = BatchBuilder(partition, options.columns)
        self.enqueued_ms: int | None = None  # of the last event
        self.mean_bytes = 100.0  # of a frame; an estimate until the first frames arrive
        # Grow the buffer to its probable size now: growing it later copies its content.
        self.connection.buffer.grow(min(options.batch_bytes, (last - first) * FRAME_BYTES_GUESS))

    def __repr__(self) -> str:
        return f"<RangeReader partition {self.partition} from {self.next} to {self.last}>"

    def next_batch(self) -> pa.RecordBatch | None:
        """The next events; None at the end of the range."""
        buffer, index, frames_max = (
            self.connection.buffer,
            self.connection.buffer.index,
            self.options.batch_rows,
        )
        while self.next < self.last:
            self.fill()
            with self.naming_the_hub():
                columns = self.columns.read(
                    buffer.view, index.starts[:frames_max], index.ends[:frames_max]
                )
                if not columns.frames:
                    frames_max = self.complete()
                    continue
                rows = self.batches.rows(columns)
                self.check(rows.sequence())
                self.check_count(len(columns))
                batch = rows.batch() if len(columns) else None
                enqueued_ms = rows.newest_ms()
            self.consume(columns)
            if batch is not None:
                self.enqueued_ms = enqueued_ms
                return batch
        return None

    @contextmanager
    def naming_the_hub(self) -> Iterator[None]:
        """Add the hub and the partition to errors about invalid events."""
        try:
            yield
        except RemoteProtocolError as wrong:
            sent = f"{self.connection.address} sent an invalid event of partition"
            text = f"{sent} {self.partition}: {wrong}"
            raise RemoteProtocolError(text, wrong.condition) from None

    def check_end(self) -> None:
        """Raise if more events arrived than the range has."""
        if len(self.connection.buffer.index):
            raise self.not_requested()

    def check_count(self, count: int) -> None:
        """Raise if the next `count` events exceed the range: the hub has not respected credit."""
        if self.next + count > self.last:
            raise self.not_requested()

    def not_requested(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"events from {self.last} on arrived but were not requested")

    # -- waiting ----------------------------------------------------------------------------------

    def complete(self) -> int:
        """Wait for all frames of a large delivery; returns their number.

        The whole delivery must arrive by the deadline: otherwise a hub that sends a frame now and
        then could delay it without end.
        """
        buffer, checked = self.connection.buffer, 0
        until = self.connection.clock.monotonic() + self.options.deadline_s
        while True:
            for position in range(checked, len(buffer.index)):
                if self.columns.ends_delivery(
                    frame_at(buffer.data, int(buffer.index.starts[position]))
                ):
                    return position + 1
            checked = len(buffer.index)
            if self.connection.clock.monotonic() > until:
                raise self.timed_out(self.next)
            self.fill(checked + 1)

    def fill(self, frames: int = 1) -> None:
        """Wait until the buffer holds a batch, and at least `frames` transfers."""
        buffer, connection = self.connection.buffer, self.connection
        target = max(frames, min(self.options.batch_rows, self.last - self.next))
        began = since = connection.clock.monotonic()
        checked = False
        while True:
            self.client.renew_token()
            held = len(buffer.index)
            full = buffer.end >= self.options.batch_bytes and held >= frames
            # Events that trickle in are returned at the deadline, and not when a batch is full.
            late = held >= frames and connection.clock.monotonic() - began > self.options.deadline_s
            if held >= target or full or late:
                return
            wait_s = self.options.deadline_s
            if not checked:
                wait_s = min(CHECK_AFTER_S, wait_s / 2)
            received = connection.receive_frames(since + wait_s, self.read_bytes(held, target))
            connection.check(self.link)
            if len(buffer.index) > held:
                since, checked = connection.clock.monotonic(), False
            elif not received and held >= frames:
                return  # the sequence numbers of the held events may show a gap
            elif not received and not checked:
                self.check_available(self.next + held, self.options.deadline_s - wait_s)
                checked = True
            elif not received:
                raise self.timed_out(self.next + held)

    def timed_out(self, sequence: int) -> RangeTimeout:
        return RangeTimeout(self.partition, sequence, self.last, self.options.deadline_s)

    def read_bytes(self, held: int, target: int) -> int:
        """The number of bytes to receive at once: the estimated size of the missing frames."""
        if held:
            self.mean_bytes = self.connection.buffer.index.end / held
        return int((target - held) * self.mean_bytes)

    def check_available(self, sequence: int, seconds: float) -> None:
        """Raise EventsGone if the next event is no longer stored."""
        try:
            properties = self.client.partition_properties(self.partition, seconds)
        except (AmqpError, AuthError, HubNotFound):
            return  # a reader may lack the right to read properties
        # Events may have arrived before the reply: they are read first.
        if properties.first_sequence > sequence and not len(self.connection.buffer.index):
            raise EventsGone(self.partition, sequence, properties.first_sequence)

    # -- consuming --------------------------------------------------------------------------------

    def check(self, sequence: IntArray) -> None:
        """Raise unless the sequence numbers are consecutive."""
        mismatches = np.flatnonzero(sequence != np.arange(self.next, self.next + len(sequence)))
        if not len(mismatches):
            return
        expected, received = self.next + int(mismatches[0]), int(sequence[mismatches[0]])
        if received > expected:
            raise EventsGone(self.partition, expected, received)
        raise RemoteProtocolError(
            f"partition {self.partition} returned event {received} where {expected} was expected"
        )

    def consume(self, columns: Columns) -> None:
        """Remove the frames that were read, and grant credit for more."""
        buffer, link, session = self.connection.buffer, self.link, self.link.session
        buffer.drop(columns.frames)
        for frame in columns.other_frames:
            self.connection.feed(frame)
        for delivery_id in columns.unsettled:
            session.accept(delivery_id)
        # As Session.on_transfer and ReceiverLink.count_delivery do for a single frame.
        own_frames = columns.frames - len(columns.other_frames)
        session.next_incoming_id = credit.advance(session.next_incoming_id or 0, own_frames)
        session.incoming_window -= own_frames
        used = len(columns) + columns.aborted
        link.delivery_count = credit.advance(link.delivery_count, used)
        link.credit -= used
        self.next += len(columns)
        self.grant_credit()
        self.connection.flush()

    def grant_credit(self) -> None:
        """Grant credit for the rest of the range, at most a window, when half of it is used."""
        remaining = self.last - self.next
        if self.link.credit < min(remaining, self.window // 2):
            self.link.grant(min(remaining, self.window))
        elif credit.needs_topping_up(self.link.session.incoming_window, INCOMING_WINDOW):
            self.link.session.send_flow()
