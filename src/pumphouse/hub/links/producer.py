"""A producer's end of a partition: events come in, and what became of them goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.annotations import Batch, check_growth, parse_payload
from pumphouse.hub.links.link import Node, answer, as_error, find_hub, too_large
from pumphouse.hub.namespace import EventHub, Partition
from pumphouse.hub.routing import Address

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation

PUBLISHER_CHARS_MAX = 256  # it is written onto every event
# What annotations may make of a batch, in largest messages. A full batch of empty events without a
# key, as the official clients make it, becomes thirteen of them.
GROWTH_MAX = 32
SENDER_CREDIT = 300  # deliveries a producer may have under way; one of them is up to 1 MiB


def open_intake(talk: Conversation, link: ReceiverLink, attach: Attach, address: Address) -> Intake:
    if address.kind == "receiver":
        raise AmqpError("amqp:not-allowed", f"Events cannot be sent to '{address.path}'.")
    if len(address.publisher) > PUBLISHER_CHARS_MAX:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"A publisher's name has at most {PUBLISHER_CHARS_MAX} characters, "
            f"found {len(address.publisher)}.",
        )
    hub = find_hub(talk, address)
    talk.guard.check(address.path, Claim.SEND)
    partition = hub.partition(address.partition) if address.kind == "partition" else None
    link.size_max = talk.namespace.message_bytes_max
    answer(
        link,
        attach,
        source=attach.source,
        target=attach.target,
        max_message_size=link.size_max,
        properties=attach.properties,
    )
    link.keep_granting(SENDER_CREDIT)
    return Intake(talk, link, hub, address, partition)


class Intake(Node):
    """A producer's link: events go into a partition, and the outcome comes back."""

    link: ReceiverLink
    claim = Claim.SEND

    def __init__(
        self,
        talk: Conversation,
        link: ReceiverLink,
        hub: EventHub,
        address: Address,
        partition: Partition | None,
    ) -> None:
        super().__init__(talk, link)
        self.hub = hub
        self.path = address.path
        self.partition = partition
        self.publisher = address.publisher or None
        hub.senders.add(self)

    def on_delivery(self, delivered: Delivered) -> None:
        try:
            if delivered.oversize:
                raise too_large(delivered)
            self.publish(delivered)
        except (AmqpError, RemoteProtocolError) as wrong:
            self.settle(delivered, as_error(wrong))

    def publish(self, delivered: Delivered) -> None:
        batch = parse_payload(delivered.payload, delivered.message_format)
        check_growth(batch, self.publisher, GROWTH_MAX * self.talk.namespace.message_bytes_max)
        if self.publisher is not None:
            self.check_keys(batch, self.publisher)
        if (meter := self.talk.namespace.meter) is not None:
            meter.admit(batch.event_count, delivered.size, self.talk.namespace.clock.monotonic())
        partition = self.partition or self.hub.choose(batch.key or self.publisher)

        def committed(failed: AmqpError | None) -> None:
            self.settle(delivered, None if failed is None else as_error(failed))

        self.talk.namespace.publish(partition, batch, self.publisher, committed)

    def check_keys(self, batch: Batch, publisher: str) -> None:
        for key in (batch.key, *(group.prefix.key for group in batch.groups)):
            if key not in (None, publisher):
                raise AmqpError(
                    "com.microsoft:argument-error",
                    f"The partition key '{key}' must match the publisher '{publisher}'.",
                )

    def settle(self, delivered: Delivered, error: Error | None) -> None:
        """Say what became of a delivery, unless the producer did not want to know."""
        if delivered.settled or not self.link.attached:
            return
        session = self.link.session
        if error is None:
            session.accept(delivered.delivery_id)
        else:
            session.reject(delivered.delivery_id, error)
        self.talk.wake_writer()

    def closed(self) -> None:
        self.hub.senders.discard(self)
