"""The producer link: events go into a partition, and the outcome of each delivery goes back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial

from pumphouse.amqp.events import Delivered, RunReceived
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.messages import SINGLE_FORMAT
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.annotations import (
    STEP_BYTES,
    Batch,
    EventGroup,
    check_event_count,
    parse_in_steps,
    parse_run,
)
from pumphouse.hub.frames.building import check_growth
from pumphouse.hub.limits.sections import SectionShapes
from pumphouse.hub.links.event_runs import RunOutcome, share_of_all, share_out
from pumphouse.hub.links.link import (
    HubLink,
    LinkConnection,
    accept_attach,
    as_error,
    find_hub,
    too_large,
)
from pumphouse.hub.namespace import EventHub, Partition
from pumphouse.hub.routing import Address

PUBLISHER_CHARS_MAX = 256  # the publisher is written onto every event
# The most bytes that annotations may add to a batch, as a multiple of the largest message size. A
# full batch of empty events without a key from an official client grows by 13 times that size.
GROWTH_MAX = 32
# The smallest event of an official client takes 9 bytes of a batch. Smaller ones have no body, and
# each of them takes a hundred bytes in the log.
EVENT_BYTES_MIN = 8
# Deliveries that a producer may have in flight: received, and not yet stored. Their bytes have a
# limit of their own, the queue to the disk.
SENDER_CREDIT = 1000
# Deliveries beyond the credit that are accepted. The official Python client ignores credit, but it
# waits for the outcome of each delivery: it has at most one in flight on a link.
CREDIT_TOLERANCE = 1000


def open_producer_link(
    connection: LinkConnection, link: ReceiverLink, attach: Attach, address: Address
) -> ProducerLink:
    if address.kind == "receiver":
        raise AmqpError(
            "amqp:not-allowed",
            f"Events cannot be sent to '{address.path}'; send to 'hub' or 'hub/Partitions/id'.",
        )
    if len(address.publisher) > PUBLISHER_CHARS_MAX:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"A publisher's name has at most {PUBLISHER_CHARS_MAX} characters, "
            f"found {len(address.publisher)}.",
        )
    # Before the look-up: a client without access must not learn which hubs exist.
    connection.guard.check(address.path, Claim.SEND)
    hub = find_hub(connection, address)
    partition = hub.partition(address.partition) if address.kind == "partition" else None
    link.size_max = connection.namespace.message_bytes_max
    accept_attach(
        link,
        attach,
        source=attach.source,
        target=attach.target,
        max_message_size=link.size_max,
        properties=attach.properties,
    )
    link.keep_granting(SENDER_CREDIT)
    link.take_numbered_runs()
    return ProducerLink(connection, link, hub, address, partition)


class ProducerLink(HubLink):
    """A link on which a producer sends events to one partition, or to a hub."""

    link: ReceiverLink
    claim = Claim.SEND

    def __init__(
        self,
        connection: LinkConnection,
        link: ReceiverLink,
        hub: EventHub,
        address: Address,
        partition: Partition | None,
    ) -> None:
        super().__init__(connection, link)
        self.hub = hub
        self.path = address.path
        self.partition = partition
        self.publisher = address.publisher or None
        self.shapes = SectionShapes()
        hub.senders.add(self)

    @property
    def send_scope(self) -> tuple[str, str]:
        return self.hub.name, self.partition.id if self.partition is not None else ""

    @property
    def ready(self) -> bool:
        return not self.connection.namespace.storage.backlog.full

    def on_delivery(self, delivered: Delivered) -> Iterator[None] | None:
        if self.link.overrun > CREDIT_TOLERANCE:
            self.close_overrun()
            return None
        steps = self.store(delivered)
        if len(delivered.payload) > STEP_BYTES:
            return steps
        for _ in steps:
            pass
        return None

    def store(self, delivered: Delivered) -> Iterator[None]:
        """Store a delivery in steps of a few milliseconds: a batch may have 100,000 events."""
        try:
            if delivered.oversize:
                raise too_large(delivered)
            batch = yield from parse_in_steps(
                delivered.payload, delivered.message_format, self.shapes
            )
            if self.link.attached:
                self.publish(delivered, batch)
        except (AmqpError, RemoteProtocolError) as failure:
            self.reject(delivered, failure)

    def publish(self, delivered: Delivered, batch: Batch) -> None:
        namespace = self.connection.namespace
        check_event_count(batch, namespace.message_bytes_max // EVENT_BYTES_MIN)
        check_growth(batch, self.publisher, GROWTH_MAX * namespace.message_bytes_max)
        if self.publisher is not None:
            self.check_keys(batch, self.publisher)
        if (meter := namespace.meter) is not None:
            meter.admit(batch.event_count, delivered.size, namespace.clock.monotonic())
        partition = self.partition or self.hub.choose(batch.key or self.publisher)
        # Without the payload, so that it is not held twice while the batch waits for the disk.
        receipt = without_payload(delivered)
        self.link.pending += 1

        def done(failure: AmqpError | None) -> None:
            if self.link.finish_delivery():
                self.connection.request_flush()
            if failure is None:
                self.settle(receipt, None)
            else:
                self.reject(receipt, failure)

        self.append(partition, batch, delivered.size, done)

    def append(
        self,
        partition: Partition,
        batch: Batch,
        size: int,
        done: Callable[[AmqpError | None], None],
    ) -> None:
        """Store a batch; `done` gets its outcome after it is counted."""
        namespace = self.connection.namespace
        events, on_append = batch.event_count, namespace.on_append
        began_s = namespace.clock.monotonic() if on_append is not None else 0.0

        def committed(failure: AmqpError | None) -> None:
            if failure is None:
                partition.events_received += events
                partition.bytes_received += size
                if on_append is not None:
                    on_append(self.hub.name, namespace.clock.monotonic() - began_s)
            done(failure)

        namespace.publish(partition, batch, self.publisher, committed)

    # -- runs of single events --------------------------------------------------------------------

    def on_run(self, run: RunReceived) -> Iterator[None] | None:
        return self.store_run(run)

    def store_run(self, run: RunReceived) -> Iterator[None]:
        """Store the events of a run together, or one by one if each is checked by itself."""
        groups = None
        if self.publisher is None and self.connection.namespace.meter is None:
            groups = yield from parse_valid_run(run, self.shapes)
        if groups is None:
            for delivered in run.deliveries():
                if self.link.attached:
                    yield from self.store(delivered)
                    yield
        elif self.link.attached:
            self.publish_run(run, groups)

    def publish_run(self, run: RunReceived, groups: list[EventGroup]) -> None:
        if self.partition is not None:
            shares = {self.partition: share_of_all(run, groups)}
        else:
            shares = share_out(run, groups, self.hub.choose)
        self.link.pending += len(run.payloads)
        outcome = RunOutcome(self, run, len(shares))
        for partition, share in shares.items():
            self.append(partition, Batch(share.groups), share.size, partial(outcome.add, share.ids))

    def finish_run(
        self, first_id: int, count: int, settled: bool, failures: dict[int, AmqpError]
    ) -> None:
        """Send the outcomes of a run."""
        if self.link.finish_delivery(count):
            self.connection.request_flush()
        if not failures:
            if not settled and self.link.attached:
                self.link.session.accept(first_id, first_id + count - 1)
                self.connection.request_flush()
            return
        for number in range(first_id, first_id + count):
            receipt = Delivered(self.link, number, SINGLE_FORMAT, settled, b"", 0)
            if (failure := failures.get(number)) is None:
                self.settle(receipt, None)
            else:
                self.reject(receipt, failure)

    def close_overrun(self) -> None:
        """Detach a producer that ignores its credit."""
        self.connection.warn_overrun(self)
        self.close(
            "amqp:link:transfer-limit-exceeded",
            f"{self.link.overrun} deliveries were sent without credit, at most {CREDIT_TOLERANCE} "
            "are accepted. Wait for credit, or for the outcomes of earlier deliveries.",
        )

    def check_keys(self, batch: Batch, publisher: str) -> None:
        for key in (batch.key, *(group.prefix.key for group in batch.groups)):
            if key not in (None, publisher):
                raise AmqpError(
                    "com.microsoft:argument-error",
                    f"The partition key '{key}' must match the publisher '{publisher}'.",
                )

    def reject(self, delivered: Delivered, failure: AmqpError | RemoteProtocolError) -> None:
        self.settle(delivered, as_error(failure, self.connection.guard, self.path))

    def settle(self, delivered: Delivered, error: Error | None) -> None:
        """Send the outcome of a delivery, unless the producer sent it settled."""
        if error is not None:
            self.hub.rejected[error.condition] += 1
        if delivered.settled or not self.link.attached:
            return
        session = self.link.session
        if error is None:
            session.accept(delivered.delivery_id)
        else:
            session.reject(delivered.delivery_id, error)
        self.connection.request_flush()

    def on_closed(self) -> None:
        self.hub.senders.discard(self)


def parse_valid_run(
    run: RunReceived, shapes: SectionShapes
) -> Generator[None, None, list[EventGroup] | None]:
    """The events of a run; None if one of them is malformed or refused."""
    with suppress(AmqpError, RemoteProtocolError):
        return (yield from parse_run(run.payloads, shapes))
    return None


def without_payload(delivered: Delivered) -> Delivered:
    """A copy of a delivery; `dataclasses.replace` takes several times as long."""
    return Delivered(
        delivered.link,
        delivered.delivery_id,
        delivered.message_format,
        delivered.settled,
        b"",
        delivered.size,
    )
