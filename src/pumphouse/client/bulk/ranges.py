"""A range of events, read from a link into Arrow record batches.

The hub is granted credit for exactly the events of the range, so it stops by itself at the end;
what comes is turned into columns, thousands of events at a time. Either all events come, each once
and in order, or there is an exception.

    BulkClient -> RangeReader -> Columns -> BatchBuilder
                  ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from pumphouse.amqp import credit
from pumphouse.amqp.columnar.buffer_view import IntArray
from pumphouse.amqp.columnar.columns import ColumnReader, Columns, frame_at
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.session import INCOMING_WINDOW
from pumphouse.client.base import DEFAULT_GROUP, PartitionProperties
from pumphouse.client.bulk.arrow import ALL_COLUMNS, BatchBuilder, schema_of
from pumphouse.client.bulk.blocking_connection import (
    HELD_BYTES_MAX,
    READ_BYTES_MIN,
    BlockingConnection,
)
from pumphouse.errors import (
    AmqpError,
    AuthError,
    HubNotFound,
    OptionError,
    PumphouseError,
    RemoteProtocolError,
)

# Events under way at the most. A batch must fit half of it: at half it is topped up.
CREDIT_WINDOW = 40_000
BATCH_ROWS_MAX = INCOMING_WINDOW // 2
BATCH_BYTES_MAX = HELD_BYTES_MAX // 2
PROBABLE_BYTES = 2048  # of a frame
PATIENCE_S = 1.0  # with no event for so long we ask whether there is one at all


class EventsGone(PumphouseError):
    """Events of a range are no longer there: retention has passed them."""

    def __init__(self, partition: str, wanted: int, available: int) -> None:
        super().__init__(
            f"partition {partition} no longer has event {wanted}; the first available is "
            f"{available}. Read from there, or let the hub keep events for longer"
        )
        self.partition = partition
        self.wanted = wanted
        self.available = available


class RangeTimeout(PumphouseError):
    """The next event of a range did not come in time."""

    def __init__(self, partition: str, wanted: int, last: int, seconds: float) -> None:
        super().__init__(
            f"event {wanted} of partition {partition} did not come within {seconds:g} s; the range "
            f"goes up to {last}. Has it been sent? Then try again, or wait for longer"
        )
        self.partition = partition
        self.wanted = wanted


class HubRecreated(PumphouseError):
    """A hub was deleted and created anew while a range of it was read."""

    def __init__(self, hub: str, partition: str, wanted: int) -> None:
        super().__init__(
            f"hub {hub} was deleted and created anew while partition {partition} was read up to "
            f"event {wanted}; what it holds now does not follow. Plan the range anew"
        )
        self.hub = hub
        self.partition = partition
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """How a range is read, and as whom."""

    group: str = DEFAULT_GROUP
    epoch: int | None = None  # None reads beside others; a number evicts all lower ones
    receiver_name: str | None = None  # how the hub calls us when it tells of us to others
    columns: tuple[str, ...] = ALL_COLUMNS
    batch_rows: int = 8192
    batch_bytes: int = 4 << 20  # as they come; more than fits a CPU's cache makes it slower
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


class RangeClient(Protocol):
    """What a range is read through."""

    @property
    def wire(self) -> BlockingConnection: ...

    def keep_token(self) -> None:
        """Renew the token if it is time."""

    def partition_properties(
        self, partition: str, seconds: float | None = None
    ) -> PartitionProperties: ...


class RangeReader:
    """Reads one range from a link that has just been attached."""

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
        self.wire = client.wire
        self.link = link
        self.partition = partition
        self.next = first
        self.last = last
        self.options = options
        self.window = max(CREDIT_WINDOW, 2 * options.batch_rows)
        channel, handle = link.session.remote_channel, link.remote_handle
        assert channel is not None
        assert handle is not None
        self.columns = ColumnReader(channel, handle)
        self.batches = BatchBuilder(partition, options.columns)
        self.enqueued_ms: int | None = None  # of the last event
        self.mean_bytes = 100.0  # of a frame; a guess until the first have come
        self.wire.reading = link
        # As much as will be needed, probably: making room costs time.
        self.wire.inbox.grow(min(options.batch_bytes, (last - first) * PROBABLE_BYTES))
        self.top_up()

    def __repr__(self) -> str:
        return f"<RangeReader partition {self.partition} from {self.next} to {self.last}>"

    def next_batch(self) -> pa.RecordBatch | None:
        """The next events; None at the end of the range."""
        inbox, index, most = self.wire.inbox, self.wire.inbox.index, self.options.batch_rows
        while self.next < self.last:
            self.fill()
            columns = self.columns.read(inbox.view, index.starts[:most], index.ends[:most])
            if not columns.frames:
                most = self.complete()
                continue
            rows = self.batches.rows(columns)
            self.check(rows.sequence())
            batch = rows.batch() if len(columns) else None
            enqueued_ms = rows.newest_ms()
            self.consume(columns)
            if batch is not None:
                self.enqueued_ms = enqueued_ms
                return batch
        return None

    def check_end(self) -> None:
        """The range has been read, and nothing else may be there."""
        if len(self.wire.inbox.index):
            raise RemoteProtocolError(f"events came beyond {self.last}, which were not asked for")

    # -- waiting ----------------------------------------------------------------------------------

    def complete(self) -> int:
        """There is only the first part of a large delivery: wait for the rest of it.

        The number of frames that it has, if no other link has one among them.
        """
        inbox, known = self.wire.inbox, 0
        while True:
            for at in range(known, len(inbox.index)):
                if self.columns.ends_delivery(frame_at(inbox.data, int(inbox.index.starts[at]))):
                    return at + 1
            known = len(inbox.index)
            self.fill(known + 1)

    def fill(self, frames: int = 1) -> None:
        """Wait until there is a batch in the inbox; of `frames` transfers at least."""
        inbox, wire = self.wire.inbox, self.wire
        wanted = max(frames, min(self.options.batch_rows, self.last - self.next))
        since, inquired = wire.clock.monotonic(), False
        while True:
            self.client.keep_token()
            held = len(inbox.index)
            full = inbox.end >= self.options.batch_bytes and held >= frames
            if held >= wanted or full:
                return
            patience_s = self.options.deadline_s
            if not inquired:
                patience_s = min(PATIENCE_S, patience_s / 2)
            came = wire.listen(since + patience_s, self.read_bytes(held, wanted))
            wire.check(self.link)
            if len(inbox.index) > held:
                since, inquired = wire.clock.monotonic(), False
            elif not came and held >= frames:
                return  # what there is may tell by its numbers why no more comes
            elif not came and not inquired:
                self.inquire(self.next + held, self.options.deadline_s - patience_s)
                inquired = True
            elif not came:
                raise RangeTimeout(
                    self.partition, self.next + held, self.last, self.options.deadline_s
                )

    def read_bytes(self, held: int, wanted: int) -> int:
        """How much to receive at once: about what is missing, so that little is left over."""
        if held:
            self.mean_bytes = self.wire.inbox.index.end / held
        return int((wanted - held) * self.mean_bytes)

    def inquire(self, wanted: int, seconds: float) -> None:
        """No event comes: is it gone already, or not there yet?"""
        try:
            found = self.client.partition_properties(self.partition, seconds)
        except (AmqpError, AuthError, HubNotFound):
            return  # whoever may read need not be allowed to ask
        # The answer may have come behind events: those are looked at first.
        if found.first_sequence > wanted and not len(self.wire.inbox.index):
            raise EventsGone(self.partition, wanted, found.first_sequence)

    # -- taking -----------------------------------------------------------------------------------

    def check(self, found: IntArray) -> None:
        """Every event must be the one after the one before."""
        wrong = np.flatnonzero(found != np.arange(self.next, self.next + len(found)))
        if not len(wrong):
            return
        wanted, came = self.next + int(wrong[0]), int(found[wrong[0]])
        if came > wanted:
            raise EventsGone(self.partition, wanted, came)
        raise RemoteProtocolError(
            f"partition {self.partition} gave event {came} where {wanted} was expected"
        )

    def consume(self, columns: Columns) -> None:
        """Forget what has been read, and let the hub send more in its place."""
        inbox, link, session = self.wire.inbox, self.link, self.link.session
        inbox.drop(columns.frames)
        for frame in columns.other_frames:
            self.wire.take(frame)
        for delivery_id in columns.unsettled:
            session.accept(delivery_id)
        # What Session.on_transfer and ReceiverLink.count_one do for a single frame.
        own = columns.frames - len(columns.other_frames)
        session.next_incoming_id = credit.advance(session.next_incoming_id or 0, own)
        session.incoming_window -= own
        used = len(columns) + columns.aborted
        link.delivery_count = credit.advance(link.delivery_count, used)
        link.credit -= used
        self.next += len(columns)
        self.top_up()
        self.wire.flush()

    def top_up(self) -> None:
        """Grant credit up to the end of the range, if that is not too far, at half a window."""
        left = self.last - self.next
        if self.link.credit < min(left, self.window // 2):
            self.link.grant(min(left, self.window))
        elif credit.needs_topping_up(self.link.session.incoming_window, INCOMING_WINDOW):
            self.link.session.send_flow()
