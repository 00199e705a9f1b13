"""The producer link: events go into a partition, and the outcome of each delivery goes back."""

from __future__ import annotations

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.annotations import Batch, check_growth, parse_payload
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
# full batch of empty events without a key, as the official clients make it, grows by 13 times that.
GROWTH_MAX = 32
SENDER_CREDIT = 300  # deliveries a producer may have in flight; each has up to 1 MiB


def open_producer_link(
    connection: LinkConnection, link: ReceiverLink, attach: Attach, address: Address
) -> ProducerLink:
    if address.kind == "receiver":
        raise AmqpError("amqp:not-allowed", f"Events cannot be sent to '{address.path}'.")
    if len(address.publisher) > PUBLISHER_CHARS_MAX:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"A publisher's name has at most {PUBLISHER_CHARS_MAX} characters, "
            f"found {len(address.publisher)}.",
        )
    hub = find_hub(connection, address)
    connection.guard.check(address.path, Claim.SEND)
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
        hub.senders.add(self)

    @property
    def send_scope(self) -> tuple[str, str]:
        return self.hub.name, self.partition.id if self.partition is not None else ""

    def on_delivery(self, delivered: Delivered) -> None:
        try:
            if delivered.oversize:
                raise too_large(delivered)
            self.publish(delivered)
        except (AmqpError, RemoteProtocolError) as failure:
            self.settle(delivered, as_error(failure))

    def publish(self, delivered: Delivered) -> None:
        namespace = self.connection.namespace
        batch = parse_payload(delivered.payload, delivered.message_format)
        check_growth(batch, self.publisher, GROWTH_MAX * namespace.message_bytes_max)
        if self.publisher is not None:
            self.check_keys(batch, self.publisher)
        if (meter := namespace.meter) is not None:
            meter.admit(batch.event_count, delivered.size, namespace.clock.monotonic())
        partition = self.partition or self.hub.choose(batch.key or self.publisher)

        def committed(failure: AmqpError | None) -> None:
            self.settle(delivered, None if failure is None else as_error(failure))

        namespace.publish(partition, batch, self.publisher, committed)

    def check_keys(self, batch: Batch, publisher: str) -> None:
        for key in (batch.key, *(group.prefix.key for group in batch.groups)):
            if key not in (None, publisher):
                raise AmqpError(
                    "com.microsoft:argument-error",
                    f"The partition key '{key}' must match the publisher '{publisher}'.",
                )

    def settle(self, delivered: Delivered, error: Error | None) -> None:
        """Send the outcome of a delivery, unless the producer sent it settled."""
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
