"""A session: a numbered two-way stream of frames on a connection, with its links."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from pumphouse.amqp import credit, states
from pumphouse.amqp.columnar.repeated_transfers import TransferTemplate, take_numbered, take_run
from pumphouse.amqp.composites import Composite
from pumphouse.amqp.events import AttachAsked, Attached, Begun, Disposed, Ended, Event, WindowOpened
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Rejected,
    Transfer,
)
from pumphouse.errors import RemoteProtocolError

if TYPE_CHECKING:
    from pumphouse.amqp.connection import Connection

INCOMING_WINDOW = 65536  # frames; granted again at half, so the peer does not have to wait
OUTGOING_WINDOW = 0x7FFFFFFF
HANDLE_MAX = 262143
# Memory of our objects for a session and for a link, besides the bytes that the peer has sent.
SESSION_BYTES, LINK_BYTES = 1024, 2048
RUN_MAX = 128  # deliveries of a numbered run, so that one takes about a millisecond
NAME_CHARS_MAX = 1024  # of a link, container or host; names of official clients have 36 to 300
ACCEPTED = Accepted()


def check_name(field: str, name: str) -> None:
    """RemoteProtocolError if a peer has sent a name that is too long."""
    if len(name) > NAME_CHARS_MAX:
        raise RemoteProtocolError(
            f"{field} has {len(name)} characters, at most {NAME_CHARS_MAX} are allowed",
            "amqp:invalid-field",
        )


class Session:
    """Our end of one session."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel  # ours; the peer's frames come on `remote_channel`
        self.remote_channel: int | None = None
        self.state = "UNMAPPED"
        self.links: dict[int, Link] = {}  # by the peer's handle
        # Our attaches without a response, by name and our role.
        self.requested: dict[tuple[str, bool], Link] = {}
        # Links with encoded frames that wait until the peer accepts more frames on the session.
        self.stalled: dict[SenderLink, None] = {}
        # The same for links whose user has something to send that is not encoded yet.
        self.blocked: dict[Link, None] = {}
        self.next_handle = 0
        self.free_handles: list[int] = []  # of links that we requested and that are gone; a heap
        self.next_outgoing_id = 0
        self.next_delivery_id = 0
        self.remote_window = 0
        self.next_incoming_id: int | None = None
        self.incoming_window = INCOMING_WINDOW
        self._accepted: list[int] = []  # first and last id of the pending disposition

    def __repr__(self) -> str:
        return f"<Session channel={self.channel} {self.state} {len(self.links)} links>"

    # -- sending ----------------------------------------------------------------------------------

    @property
    def frame_max(self) -> int:
        return self.connection.remote_frame_max

    def step(self, action: str) -> None:
        self.state = states.step(states.SESSION, "session", self.channel, self.state, action)

    def emit(self, event: Event) -> None:
        self.connection.emit(event)

    def hold_piece(self, amount: int) -> None:
        """Count bytes of incomplete deliveries on the connection."""
        self.connection.hold_piece(amount)

    def send(self, performative: Composite) -> None:
        self.connection.send(performative, self.channel)

    def write(self, frames: bytes | bytearray) -> None:
        self.connection.write(frames)

    def begin(self) -> None:
        self.step("send begin")
        self.send(
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self.next_outgoing_id,
                incoming_window=self.incoming_window,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=HANDLE_MAX,
            )
        )

    def end(self, error: Error | None = None) -> None:
        self.flush()
        self.step("send end with error" if error else "send end")
        self.send(End(error=self.connection.shorten(error)))

    def attach(self, name: str, role: bool, **fields: Any) -> Link:
        """Request a link; the response of the peer is an Attached event."""
        cls = SenderLink if role == SENDER else ReceiverLink
        link = cls(self, name, self.take_handle())
        link.has_own_handle = True
        self.requested[name, role] = link
        link.send_attach(Attach(name=name, handle=link.handle, role=role, **fields))
        return link

    def take_handle(self) -> int:
        """The lowest handle that is not in use."""
        if self.free_handles:
            return heappop(self.free_handles)
        self.next_handle += 1
        return self.next_handle - 1

    def delivery_ids(self, count: int) -> int:
        """Reserve `count` delivery ids; returns the first."""
        first = self.next_delivery_id
        self.next_delivery_id = credit.advance(first, count)
        return first

    def sent_frames(self, count: int) -> None:
        self.next_outgoing_id = credit.advance(self.next_outgoing_id, count)
        self.remote_window -= count

    def send_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool = False,
    ) -> None:
        """Send our windows, and the credit of a link if `handle` is given."""
        self.incoming_window = INCOMING_WINDOW
        self.send(
            Flow(
                next_incoming_id=self.next_incoming_id,
                incoming_window=self.incoming_window,
                next_outgoing_id=self.next_outgoing_id,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=link_credit,
                drain=drain,
            )
        )

    def accept(self, first: int, last: int | None = None) -> None:
        """Settle received deliveries as accepted. Consecutive deliveries share one frame."""
        last = first if last is None else last
        if self._accepted and first in (self._accepted[1], credit.advance(self._accepted[1])):
            self._accepted[1] = last
            return
        self.flush()
        self._accepted = [first, last]
        self.connection.unflushed[self] = None

    def reject(self, delivery_id: int, error: Error) -> None:
        self.flush()
        self.dispose(delivery_id, delivery_id, Rejected(error=self.connection.shorten(error)))

    def flush(self) -> None:
        """Send the pending disposition."""
        if self._accepted and self.state == "MAPPED":
            first, last = self._accepted
            self.dispose(first, last, ACCEPTED)
        self._accepted = []
        self.connection.unflushed.pop(self, None)

    def dispose(self, first: int, last: int, state: Composite) -> None:
        self.send(Disposition(role=RECEIVER, first=first, last=last, settled=True, state=state))

    def forget(self, link: Link) -> None:
        link.drop()
        link.state = "DETACHED"  # also if the session ended without a detach
        if link.remote_handle is not None and self.links.get(link.remote_handle) is link:
            del self.links[link.remote_handle]
            self.connection.link_count -= 1
        self.requested.pop((link.name, link.role), None)
        if link.has_own_handle:
            link.has_own_handle = False
            heappush(self.free_handles, link.handle)
        self.connection.hold(-link.bytes_held)
        link.bytes_held = 0

    def discard(self) -> None:
        """Drop all links after the end of the connection."""
        for link in (*self.links.values(), *self.requested.values()):
            link.drop()
            link.state = "DETACHED"
            link.user = None
        self.links.clear()
        self.requested.clear()
        self.blocked.clear()

    # -- receiving --------------------------------------------------------------------------------

    def on_begin(self, begin: Begin) -> None:
        self.connection.hold(SESSION_BYTES)
        self.step("receive begin")
        self.next_incoming_id = begin.next_outgoing_id
        self.remote_window = begin.incoming_window
        if self.state == "BEGIN_RCVD":
            self.begin()
        self.emit(Begun(self))

    def on_end(self, end: End) -> None:
        self.step("receive end")
        if self.state == "END_RCVD":
            self.step("send end")
            self.send(End())
        self.connection.forget(self)
        self.lose_links(end.error)

    def lose_links(self, error: Error | None) -> None:
        """Forget all links and emit the end of the session."""
        links = tuple(self.links.values())
        for link in links:
            self.forget(link)
        self.emit(Ended(self, error, links))

    def on_frame(self, performative: Composite, payload: bytes) -> None:
        """Handle a frame on this channel after begin."""
        if self.state != "MAPPED" and not isinstance(performative, End):
            return  # sent before the peer received our end
        match performative:
            case Transfer():
                self.on_transfer(performative, payload)
            case Flow():
                self.on_flow(performative)
            case Disposition():
                self.on_disposition(performative)
            case Attach():
                self.on_attach(performative)
            case Detach():
                self.on_detach(performative)
            case End():
                self.on_end(performative)
            case _:
                raise RemoteProtocolError(
                    f"{performative.NAME} is not expected on channel {self.channel}"
                )

    def take_run(self, template: TransferTemplate, data: bytes, pos: int) -> int:
        """Take the transfers at `pos` that match a template; returns the position after them."""
        link, frame_max = self.links.get(template.handle), self.connection.limits.max_frame_size
        if not isinstance(link, ReceiverLink) or self.state != "MAPPED":
            return pos
        if not link.attached or not link.between_deliveries:
            return pos
        if link.takes_runs and template.settled:
            payloads, end = take_run(data, pos, template, frame_max)
            if payloads:
                self.received_frames(len(payloads))
                link.on_run(payloads)
            return end
        if link.takes_numbered_runs and link.size_max >= frame_max:
            count_max = min(RUN_MAX, link.credit)
            run = take_numbered(data, pos, template, frame_max, count_max)
            if run.payloads:
                self.received_frames(len(run.payloads))
                link.on_numbered_run(run, template.settled)
            return run.end
        return pos

    def received_frames(self, count: int) -> None:
        """Count transfers against our window, and open it again at half."""
        if self.next_incoming_id is not None:
            self.next_incoming_id = credit.advance(self.next_incoming_id, count)
        self.incoming_window -= count
        if credit.needs_topping_up(self.incoming_window, INCOMING_WINDOW):
            self.send_flow()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self.received_frames(1)
        link = self.links.get(transfer.handle)
        if isinstance(link, ReceiverLink):
            # Frames sent before the peer received our detach are dropped.
            if link.attached:
                link.on_transfer(transfer, payload)
            return
        self.end_unattached(transfer.handle)

    def on_flow(self, flow: Flow) -> None:
        # A peer that has not received our begin counts from zero.
        seen = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        before = self.remote_window
        self.remote_window = credit.allowed(seen, flow.incoming_window, self.next_outgoing_id)
        if flow.handle is None:
            if flow.echo:
                self.send_flow()
        elif (link := self.links.get(flow.handle)) is None:
            self.end_unattached(flow.handle)
        elif link.attached:
            link.on_flow(flow)
        if before <= 0 < self.remote_window:
            self.resume()

    def resume(self) -> None:
        """Continue after the window was closed, first with incomplete deliveries."""
        stalled, self.stalled = self.stalled, {}
        for link in stalled:
            link.push()
        self.emit(WindowOpened(self))

    def on_disposition(self, disposition: Disposition) -> None:
        last = disposition.first if disposition.last is None else disposition.last
        self.emit(
            Disposed(
                self,
                disposition.role,
                disposition.first,
                last,
                disposition.settled,
                disposition.state,
            )
        )

    def on_attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise RemoteProtocolError(f"attach.handle is {attach.handle}, at most {HANDLE_MAX}")
        if len(attach.name) > NAME_CHARS_MAX:
            # End the session: a refusal of the link would have to repeat the name.
            problem = f"The name of the link has {len(attach.name)} characters"
            self.fail("amqp:invalid-field", f"{problem}; at most {NAME_CHARS_MAX} are allowed.")
            return
        if attach.handle in self.links:
            self.fail("amqp:session:handle-in-use", f"Handle {attach.handle} is in use.")
            return
        link = self.requested.pop((attach.name, not attach.role), None)
        is_response = link is not None
        if link is None:
            self.connection.check_room()
            # Our handle is the handle of the peer, which is unique among the links it requests.
            cls = SenderLink if attach.role == RECEIVER else ReceiverLink
            link = cls(self, attach.name, attach.handle)
        link.bytes_held = LINK_BYTES + self.connection.frame_bytes
        self.connection.hold(link.bytes_held)
        link.remote_handle = attach.handle
        link.step("receive attach")
        if isinstance(link, ReceiverLink):
            link.delivery_count = attach.initial_delivery_count or 0
        self.links[attach.handle] = link
        self.connection.link_count += 1
        self.emit(Attached(link, attach) if is_response else AttachAsked(link, attach))

    def on_detach(self, detach: Detach) -> None:
        link = self.links.get(detach.handle)
        if link is None:
            self.end_unattached(detach.handle)
        else:
            link.on_detach(detach)

    def end_unattached(self, handle: int) -> None:
        """End the session because a frame names a handle without a link."""
        self.fail(
            "amqp:session:unattached-handle",
            f"No link is attached to handle {handle} on channel {self.channel}.",
        )

    def fail(self, condition: str, description: str) -> None:
        """End the session because the peer violated its rules."""
        self.end(Error(condition=condition, description=description))
        self.lose_links(None)
