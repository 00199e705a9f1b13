"""Links: one-way channels for deliveries within a session, for both ends.

A sending link counts the credit that the peer granted. A receiving link assembles the frames of a
delivery and grants credit. Links do no IO: frames leave through the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pumphouse.amqp import credit, states
from pumphouse.amqp.columnar.repeated_transfers import NumberedRun
from pumphouse.amqp.events import Delivered, Detached, Flowed, RunDelivered, RunReceived
from pumphouse.amqp.frames import check_response_fits, encode_frame
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Detach,
    Error,
    Flow,
    Transfer,
)
from pumphouse.errors import RemoteProtocolError

if TYPE_CHECKING:
    from pumphouse.amqp.session import Session

NO_LIMIT = 1 << 63
FRAME_OVERHEAD = 64  # upper bound of what a transfer frame adds to its payload
PIECE_OVERHEAD = 64  # memory of a stored piece besides its bytes


class Link:
    """The common part of both ends: a name, two handles and a state."""

    role: bool

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle  # ours
        self.has_own_handle = False  # we have requested it: the handle is free after the link
        self.remote_handle: int | None = None
        self.state = "DETACHED"
        self.bytes_held = 0  # memory of the link without deliveries, in the connection's budget
        self.user: Any = None  # the object of the caller that handles this link

    def __repr__(self) -> str:
        end = "sender" if self.role == SENDER else "receiver"
        return f"<Link {self.name!r} {end} handle={self.handle} {self.state}>"

    @property
    def attached(self) -> bool:
        return self.state == "ATTACHED"

    def step(self, action: str) -> None:
        self.state = states.step(states.LINK, "link", self.name, self.state, action)

    def send_attach(self, attach: Attach) -> None:
        """Send our attach, as a request or in response to the attach of the peer."""
        self.step("send attach")
        if self.remote_handle is None:
            self.session.send(attach)
            return
        # A response repeats values of the peer's attach, such as the name. With them it may exceed
        # the frame size limit of the peer.
        frame = encode_frame(attach, self.session.channel)
        request = f"the attach of link {self.name!r:.80}"
        self.session.write(check_response_fits(frame, self.session.frame_max, request))

    def refuse(self, error: Error) -> None:
        """Refuse an attach: an attach without source or target, then a detach with the reason."""
        self.send_attach(Attach(name=self.name, handle=self.handle, role=self.role))
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link."""
        self.drop()
        self.step("send detach")
        shortened = self.session.connection.shorten(error)
        self.session.send(Detach(handle=self.handle, closed=True, error=shortened))

    def on_detach(self, detach: Detach) -> None:
        respond = self.state == "ATTACHED"
        if respond or self.state == "DETACH_SENT":
            self.step("receive detach")
        if respond:
            self.step("send detach")
            self.session.send(Detach(handle=self.handle, closed=detach.closed))
        self.session.forget(self)
        self.session.emit(Detached(self, detach.error))

    def on_flow(self, flow: Flow) -> None:
        """Handle a flow that names this link."""
        raise NotImplementedError

    def drop(self) -> None:
        """Discard the incomplete delivery."""
        raise NotImplementedError

    def send_flow(self, delivery_count: int | None, link_credit: int, drain: bool = False) -> None:
        self.session.send_flow(self.handle, delivery_count, link_credit, drain)


class SenderLink(Link):
    """A link on which we send."""

    role = SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        self.delivery_count = 0
        self.draining = False
        self._unsent: deque[bytes] = deque()  # frames that wait for the session window
        self._unsent_bytes = 0  # bytes of these frames
        self._counted_bytes = 0  # those that are counted in the budget of the connection

    @property
    def sendable(self) -> int:
        """The number of single-frame deliveries that may be sent now."""
        if not self.attached or self._unsent:
            return 0
        return min(self.credit, self.session.remote_window)

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            # A receiver that has not received our attach sends no delivery count: it is zero.
            seen = flow.delivery_count if flow.delivery_count is not None else 0
            self.credit = credit.allowed(seen, flow.link_credit, self.delivery_count)
        self.draining = flow.drain
        if flow.echo:
            self.send_flow(self.delivery_count, self.credit, self.draining)
        self.session.emit(Flowed(self))

    def answer_drain(self) -> None:
        """Respond to a drain request when nothing is left to send: use up the credit."""
        if not self.draining or not self.attached or self._unsent:
            return
        self.delivery_count = credit.advance(self.delivery_count, self.credit)
        self.credit = 0
        self.draining = False
        self.send_flow(self.delivery_count, 0, drain=True)

    def sent(self, deliveries: int) -> None:
        """Count sent deliveries against the credit."""
        self.delivery_count = credit.advance(self.delivery_count, deliveries)
        self.credit -= deliveries

    def send_ready(self, frames: bytes | bytearray, deliveries: int) -> None:
        """Send encoded transfer frames, one per delivery, with ids of `session.delivery_ids`."""
        self.sent(deliveries)
        self.session.sent_frames(deliveries)
        self.session.write(frames)

    def send(
        self,
        payload: bytes,
        *,
        tag: bytes = b"\0",
        message_format: int = 0,
        settled: bool = True,
    ) -> int:
        """Send one delivery, split by the frame size limit of the peer; returns its id.

        Frames that exceed the session window wait until it opens.
        """
        delivery_id = self.session.delivery_ids(1)
        room = self.session.frame_max - FRAME_OVERHEAD - len(tag)
        pieces = [payload[at : at + room] for at in range(0, len(payload), room)] or [b""]
        for number, piece in enumerate(pieces):
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery_id,
                delivery_tag=tag,
                message_format=message_format,
                settled=settled,
                more=number < len(pieces) - 1,
            )
            frame = encode_frame(transfer, self.session.channel, piece)
            self._unsent.append(frame)
            self._unsent_bytes += len(frame)
        self.sent(1)
        self.push()
        return delivery_id

    def push(self) -> None:
        """Send waiting frames, as many as the session window allows."""
        while self._unsent and self.session.remote_window > 0:
            frame = self._unsent.popleft()
            self._unsent_bytes -= len(frame)
            self.session.write(frame)
            self.session.sent_frames(1)
        if self._unsent:
            self.session.stalled[self] = None
        self.count_unsent()

    def count_unsent(self) -> None:
        """Count the waiting frames in the budget.

        Its limit is checked when the peer next sends something that is counted.
        """
        if self._unsent_bytes != self._counted_bytes:
            self.session.connection.budget.hold(self._unsent_bytes - self._counted_bytes)
            self._counted_bytes = self._unsent_bytes

    def drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        self.count_unsent()
        self.session.stalled.pop(self, None)
        self.session.blocked.pop(self, None)


class ReceiverLink(Link):
    """A link on which we receive."""

    role = RECEIVER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.size_max = NO_LIMIT
        self.credit = 0
        self.credit_full = 0  # granted again when half is used; 0: the caller grants explicitly
        self.pending = 0  # received deliveries that the caller has not finished; they use credit
        self.overrun = 0  # deliveries beyond the credit, since the last grant
        self.delivery_count = 0
        self.takes_runs = self.takes_numbered_runs = False
        self._first: Transfer | None = None  # the first transfer of the incomplete delivery
        self._pieces: list[bytes] = []
        self._size = 0
        self._held_bytes = 0

    def on_flow(self, flow: Flow) -> None:
        if flow.delivery_count is not None:
            self.delivery_count = flow.delivery_count
        if flow.drain:
            self.credit = 0
        if flow.echo:
            self.send_flow(self.delivery_count, self.credit)

    def grant(self, amount: int, drain: bool = False) -> None:
        """Allow the peer to send `amount` deliveries from now on."""
        self.credit = amount
        self.overrun = 0
        # Before the attach of the peer its delivery count is unknown, and left out.
        seen = None if self.remote_handle is None else self.delivery_count
        self.send_flow(seen, amount, drain)

    def keep_granting(self, full: int) -> None:
        """Grant `full` now, and again whenever half of it is used."""
        self.credit_full = full
        self.grant(full)

    def finish_delivery(self, count: int = 1) -> bool:
        """End deliveries that were added to `pending`; True if this has granted credit."""
        self.pending -= count
        return self.top_up()

    def top_up(self) -> bool:
        """Grant again if half of the credit is used; True if it is granted."""
        in_use = self.credit + self.pending
        if not self.credit_full or not credit.needs_topping_up(in_use, self.credit_full):
            return False
        if self.attached:
            self.grant(self.credit_full - self.pending)
        return self.attached

    def take_runs(self) -> None:
        """Report consecutive settled deliveries together, as a RunDelivered event.

        For a link that grants its credit explicitly and has no size limit.
        """
        self.takes_runs = True
        self.session.connection.learn_templates(numbered=False)

    def take_numbered_runs(self) -> None:
        """Report several deliveries of single messages together, as a RunReceived event."""
        self.takes_numbered_runs = True
        self.session.connection.learn_templates(numbered=True)

    @property
    def between_deliveries(self) -> bool:
        return self._first is None

    def on_run(self, payloads: Sequence[bytes]) -> None:
        """Handle complete deliveries that match the template of an earlier one."""
        self.delivery_count = credit.advance(self.delivery_count, len(payloads))
        self.credit = max(0, self.credit - len(payloads))
        self.session.emit(RunDelivered(self, payloads))

    def on_numbered_run(self, run: NumberedRun, settled: bool) -> None:
        """The same, with delivery ids; a run of one is a single delivery."""
        if len(run.payloads) == 1:
            payload = run.payloads[0]
            size = len(payload)
            self.session.emit(Delivered(self, run.first_id, 0, settled, payload, size))
            self.count_delivery()
            return
        count = len(run.payloads)
        self.delivery_count = credit.advance(self.delivery_count, count)
        self.credit -= count  # runs are not longer than the credit
        self.session.emit(RunReceived(self, run.first_id, settled, run.payloads))

    def on_transfer(self, transfer: Transfer, piece: bytes) -> None:
        first = self._first or transfer
        if transfer.aborted:
            self.drop()
            self.count_delivery()
            return
        if first.delivery_id is None or transfer.delivery_id not in (None, first.delivery_id):
            raise RemoteProtocolError(
                f"transfer.delivery-id on link {self.name!r:.80} is {transfer.delivery_id}, "
                + ("expected a number" if first is transfer else f"expected {first.delivery_id}"),
                "amqp:invalid-field",
            )
        self._first = first
        self.collect(piece)
        if not transfer.more:
            self.deliver(first, transfer)

    def collect(self, piece: bytes) -> None:
        """Store one piece of a delivery; only count it if the delivery exceeds its limit."""
        self._size += len(piece)
        if self._size > self.size_max:
            self.release_pieces()
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece) + PIECE_OVERHEAD
        self.session.hold_piece(len(piece) + PIECE_OVERHEAD)

    def release_pieces(self) -> None:
        self.session.hold_piece(-self._held_bytes)
        self._held_bytes = 0
        self._pieces.clear()

    def drop(self) -> None:
        self.release_pieces()
        self._first, self._size = None, 0

    def deliver(self, first: Transfer, last: Transfer) -> None:
        payload = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        size = self._size
        self.drop()
        delivery_id = first.delivery_id
        assert delivery_id is not None  # checked by on_transfer
        settled = bool(first.settled or last.settled)
        message_format = first.message_format or 0
        self.session.emit(Delivered(self, delivery_id, message_format, settled, payload, size))
        self.count_delivery()

    def count_delivery(self) -> None:
        """Count a complete delivery: use one credit, and grant again when half is used."""
        self.delivery_count = credit.advance(self.delivery_count)
        if self.credit:
            self.credit -= 1
        else:
            self.overrun += 1  # the official client also sends without credit
        self.top_up()
