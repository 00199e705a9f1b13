"""A consumer's end of a partition: events go out, as credit and windows allow."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.performatives import SETTLED, Attach, Source
from pumphouse.clock import now_ms
from pumphouse.errors import AmqpError
from pumphouse.hub import epochs
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.filters import position_from_filter
from pumphouse.hub.links.delivery import (
    RUNTIME_METRIC,
    messages,
    patch,
    runtime_metric,
    whole,
    with_metric,
)
from pumphouse.hub.links.link import Node, answer, find_hub, not_found
from pumphouse.hub.namespace import Partition
from pumphouse.hub.routing import Address
from pumphouse.hub.storage.memory_log import Run

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation

SLICE_BYTES = 512 * 1024  # what one reader gets before others have their turn

reader_ids = count(1)


def open_outlet(talk: Conversation, link: SenderLink, attach: Attach, address: Address) -> Outlet:
    if address.kind != "receiver":
        raise AmqpError(
            "amqp:not-allowed",
            f"Events are read from 'hub/ConsumerGroups/group/Partitions/id', not '{address.path}'.",
        )
    hub = find_hub(talk, address)
    talk.guard.check(address.path, Claim.LISTEN)
    group = address.group.lower()
    if group not in hub.groups:
        raise not_found(talk, f"{hub.name}/ConsumerGroups/{address.group}")
    partition = hub.partition(address.partition)
    start = position_from_filter(attach.source.filter)
    sequence = partition.log.locate(start.position)
    outlet = Outlet(talk, link, hub.name, partition, group, sequence, attach)
    outlet.path = address.path
    partition.admit(group, outlet)
    link.user = outlet  # known from here on: it must leave even if the answer cannot be sent
    answer_reader(talk, link, attach, dict(start.honoured))
    return outlet


def answer_reader(
    talk: Conversation, link: SenderLink, attach: Attach, honoured: dict[Any, Any]
) -> None:
    source = Source(
        address=attach.source.address,
        filter=honoured or None,
        outcomes=attach.source.outcomes,
        default_outcome=attach.source.default_outcome,
    )
    metric = tuple(name for name in attach.desired_capabilities if name == RUNTIME_METRIC)
    answer(
        link,
        attach,
        snd_settle_mode=SETTLED,
        source=source,
        target=attach.target,
        initial_delivery_count=0,
        max_message_size=talk.namespace.message_bytes_max,
        offered_capabilities=metric,
        properties=attach.properties,
    )


class Outlet(Node):
    """A consumer's link: events of one partition go out, as credit and windows allow."""

    link: SenderLink
    claim = Claim.LISTEN

    def __init__(
        self,
        talk: Conversation,
        link: SenderLink,
        hub_name: str,
        partition: Partition,
        group: str,
        sequence: int,
        attach: Attach,
    ) -> None:
        super().__init__(talk, link)
        self.partition = partition
        self.group = group
        self.next_sequence = sequence
        self.hub_name = hub_name
        self.spared = False  # a fault has had its turn with what is sent next
        self.reader = reader_of(attach)
        self.lingers = self.reader.epoch is not None
        self.wants_metric = RUNTIME_METRIC in attach.desired_capabilities
        self._held_back = False  # by the throughput units, for a moment

    @property
    def client(self) -> str:
        remote = self.talk.amqp.remote
        return remote.container_id if remote is not None else ""

    def wake(self) -> None:
        if self.link.credit:
            self.talk.schedule(self)

    def pump(self) -> bool:
        """Send one slice of events; True if there is more to send and credit for it."""
        if self.talk.server.faults and self.has_events and self.talk.befall_outlet(self):
            return False
        if self.talk.namespace.meter is not None and self.hold_back():
            return False
        try:
            run = self.partition.log.read(self.next_sequence, self.link.sendable, SLICE_BYTES)
        except AmqpError as damaged:
            self.close(damaged.condition, damaged.description)
            return False
        if run is not None:
            self.send(run)
            self.count(run)
        if self.at_end:
            self.link.answer_drain()
            return False
        return self.link.sendable > 0

    def send(self, run: Run) -> None:
        """Send a run whole if it may go out as it is stored, otherwise event by event."""
        session, events = self.link.session, len(run.starts)
        if self.wants_metric or whole(run, session.frame_max) < events:
            self.send_singly(run)
            return
        frames = patch(run, session.channel, self.link.handle, session.delivery_ids(events))
        self.link.send_ready(frames, events)
        self.next_sequence = run.sequence + events

    def count(self, run: Run) -> None:
        """Note what of a run has been sent."""
        events = max(0, self.next_sequence - run.sequence)
        self.partition.events_sent += events
        if (meter := self.talk.namespace.meter) is not None:
            meter.sent(events, len(run.frames) * events // len(run.starts))

    def hold_back(self) -> bool:
        """Whether the throughput units make this reader wait; it is then woken in time."""
        namespace = self.talk.namespace
        if namespace.meter is None or self.at_end:
            return False
        wait_s = namespace.meter.hold_back_s(namespace.clock.monotonic())
        if wait_s > 0 and not self._held_back:
            self._held_back = True
            self.talk.server.loop.call_later(wait_s, self.go_on)
        return wait_s > 0

    def go_on(self) -> None:
        self._held_back = False
        if self.link.attached:
            self.wake()

    @property
    def has_events(self) -> bool:
        return self.link.sendable > 0 and not self.at_end

    @property
    def at_end(self) -> bool:
        return self.next_sequence >= self.partition.log.next_sequence

    def send_singly(self, run: Run) -> None:
        """The general way: each event by itself, in as many frames as it needs."""
        log = self.partition.log
        metric = (
            runtime_metric(log, now_ms(self.talk.namespace.clock)) if self.wants_metric else b""
        )
        for number, message in enumerate(messages(run), run.sequence):
            if not self.link.sendable:
                return
            self.link.send(with_metric(message, metric))
            self.next_sequence = number + 1

    def closed(self) -> None:
        self.partition.leave(self.group, self)


def reader_of(attach: Attach) -> epochs.Reader:
    """Who reads, as the epoch rules see it."""
    properties = attach.properties or {}
    epoch = properties.get("com.microsoft:epoch")
    name = properties.get("com.microsoft:receiver-name")
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0):
        raise AmqpError(
            "com.microsoft:argument-error", f"The epoch must be a whole number, found '{epoch}'."
        )
    return epochs.Reader(
        id=next(reader_ids),
        name=name if isinstance(name, str) and name else None,
        epoch=None if epoch is None else int(epoch),
    )
