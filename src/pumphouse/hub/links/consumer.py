"""The consumer link: events of one partition go out, as credit and session windows allow."""

from __future__ import annotations

from itertools import count
from typing import Any

from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.performatives import SETTLED, Attach, Source
from pumphouse.amqp.types import short
from pumphouse.clock import now_ms
from pumphouse.errors import AmqpError
from pumphouse.hub import epochs
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.faults.injection import inject_on_deliver
from pumphouse.hub.filters import position_from_filter
from pumphouse.hub.limits.lengths import check_length
from pumphouse.hub.links.delivery import (
    RUNTIME_METRIC,
    address_run,
    count_fitting,
    messages,
    runtime_metric,
    with_metric,
)
from pumphouse.hub.links.link import HubLink, LinkConnection, accept_attach, find_hub, not_found
from pumphouse.hub.namespace import Partition
from pumphouse.hub.routing import Address
from pumphouse.hub.storage.run import Run

READER_NAME_CHARS_MAX = 256  # the service allows 64; error texts for other readers have the name
SLICE_BYTES = 512 * 1024  # bytes sent to one reader before others have their turn

# Limits of a slice whose events are sent one by one: events, and bytes. Such a slice takes a few
# milliseconds.
SINGLY_MAX, SINGLY_BYTES = 256, 128 * 1024

reader_ids = count(1)


def open_consumer_link(
    connection: LinkConnection, link: SenderLink, attach: Attach, address: Address
) -> ConsumerLink:
    if address.kind != "receiver":
        raise AmqpError(
            "amqp:not-allowed",
            f"Events are read from 'hub/ConsumerGroups/group/Partitions/id', not '{address.path}'.",
        )
    # Before the look-up: a client without access must not learn which hubs exist.
    connection.guard.check(address.path, Claim.LISTEN)
    hub = find_hub(connection, address)
    group = address.group.lower()
    if group not in hub.groups:
        raise not_found(connection, f"{hub.name}/ConsumerGroups/{address.group}")
    partition = hub.partition(address.partition)
    start = position_from_filter(attach.source.filter)
    sequence = partition.log.locate(start.position)
    consumer = ConsumerLink(connection, link, hub.name, partition, group, sequence, attach)
    consumer.path = address.path
    partition.admit(group, consumer)
    # Set before our attach is sent: if that fails, the reader must still leave the partition.
    link.user = consumer
    accept_reader(connection, link, attach, dict(start.honoured))
    return consumer


def accept_reader(
    connection: LinkConnection, link: SenderLink, attach: Attach, honoured: dict[Any, Any]
) -> None:
    source = Source(
        address=attach.source.address,
        filter=honoured or None,
        outcomes=attach.source.outcomes,
        default_outcome=attach.source.default_outcome,
    )
    capabilities = tuple(name for name in attach.desired_capabilities if name == RUNTIME_METRIC)
    accept_attach(
        link,
        attach,
        snd_settle_mode=SETTLED,
        source=source,
        target=attach.target,
        initial_delivery_count=0,
        max_message_size=connection.namespace.message_bytes_max,
        offered_capabilities=capabilities,
        properties=attach.properties,
    )


class ConsumerLink(HubLink):
    """A link on which a consumer receives the events of one partition."""

    link: SenderLink
    claim = Claim.LISTEN

    def __init__(
        self,
        connection: LinkConnection,
        link: SenderLink,
        hub_name: str,
        partition: Partition,
        group: str,
        sequence: int,
        attach: Attach,
    ) -> None:
        super().__init__(connection, link)
        self.partition = partition
        self.group = group
        self.next_sequence = sequence
        self.hub_name = hub_name
        self.fault_done = False  # a fault has delayed the next events: inject no other
        self.reader = reader_of(attach)
        # A reader with an epoch may count as present for a time after its connection broke.
        self.lingers = self.reader.epoch is not None
        self.wants_metric = RUNTIME_METRIC in attach.desired_capabilities
        self._throttled = False  # True while the throughput units make it wait

    @property
    def client(self) -> str:
        remote = self.connection.amqp.remote
        return remote.container_id if remote is not None else ""

    def wake(self) -> None:
        if self.link.credit:
            self.connection.schedule(self)

    def send_slice(self) -> bool:
        """Send one slice of events; True if there is more to send and credit for it."""
        namespace = self.connection.namespace
        if namespace.faults and self.has_events and inject_on_deliver(namespace.faults, self):
            return False
        if namespace.meter is not None and self.throttle():
            return False
        try:
            run = self.partition.log.read(self.next_sequence, self.count_readable, SLICE_BYTES)
        except AmqpError as damage:
            self.close(damage.condition, damage.description)
            return False
        if run is not None:
            self.send(run)
            self.count(run)
        if self.at_end:
            self.link.answer_drain()
            return False
        return self.link.sendable > 0

    @property
    def count_readable(self) -> int:
        """The number of events to read for one slice."""
        sendable = self.link.sendable
        return min(sendable, SINGLY_MAX) if self.wants_metric else sendable

    def send(self, run: Run) -> None:
        """Send a run as it is stored.

        If a frame is too large for the client, or the client wants the runtime metric, send the run
        event by event.
        """
        session, events = self.link.session, len(run.starts)
        if self.wants_metric or count_fitting(run, session.frame_max) < events:
            self.send_singly(run)
            return
        frames = address_run(run, session.channel, self.link.handle, session.delivery_ids(events))
        self.link.send_ready(frames, events)
        self.next_sequence = run.sequence + events

    def count(self, run: Run) -> None:
        """Count the events of a run that have been sent."""
        events = max(0, self.next_sequence - run.sequence)
        size = len(run.frames) * events // len(run.starts)
        self.partition.events_sent += events
        self.partition.bytes_sent += size
        if (meter := self.connection.namespace.meter) is not None:
            meter.sent(events, size)

    def throttle(self) -> bool:
        """Whether the throughput units make this reader wait. It is woken after the wait."""
        namespace = self.connection.namespace
        if namespace.meter is None or self.at_end:
            return False
        wait_s = namespace.meter.egress_wait_s(namespace.clock.monotonic())
        if wait_s > 0 and not self._throttled:
            self._throttled = True
            self.partition.throttled += 1
            self.connection.call_later(wait_s, self.end_throttle)
        return wait_s > 0

    def end_throttle(self) -> None:
        self._throttled = False
        if self.link.attached:
            self.wake()

    @property
    def has_events(self) -> bool:
        return self.link.sendable > 0 and not self.at_end

    @property
    def at_end(self) -> bool:
        return self.next_sequence >= self.partition.log.next_sequence

    def send_singly(self, run: Run) -> None:
        """Send each event by itself, in as many frames as it needs, until the slice is full."""
        log = self.partition.log
        metric = b""
        if self.wants_metric:
            metric = runtime_metric(log, now_ms(self.connection.namespace.clock))
        size, last = 0, run.sequence + SINGLY_MAX
        for sequence, message in enumerate(messages(run), run.sequence):
            if not self.link.sendable or sequence >= last or size >= SINGLY_BYTES:
                return
            self.link.send(with_metric(message, metric))
            self.next_sequence = sequence + 1
            size += len(message)

    def on_closed(self) -> None:
        self.partition.leave(self.group, self)


def reader_of(attach: Attach) -> epochs.Reader:
    """The reader of an attach, for the epoch rules."""
    properties = attach.properties or {}
    epoch = properties.get("com.microsoft:epoch")
    name = properties.get("com.microsoft:receiver-name")
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0):
        raise AmqpError(
            "com.microsoft:argument-error",
            f"The epoch must be 0 or a positive whole number, found {short(epoch)}.",
        )
    if isinstance(name, str):
        check_length("receiver name", name, READER_NAME_CHARS_MAX)
    return epochs.Reader(
        id=next(reader_ids),
        name=name if isinstance(name, str) and name else None,
        epoch=None if epoch is None else int(epoch),
    )
