"""Links: one-way streets for deliveries within a session, seen from either end.

A link on which we send counts the credit the peer gave; a link on which we receive puts the frames
of a delivery together and grants credit. Neither does any IO: frames go out through the session.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pumphouse.amqp import credit, states
from pumphouse.amqp.events import Delivered, Detached, Flowed, RunDelivered
from pumphouse.amqp.frames import encode_frame
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
FRAME_OVERHEAD = 64  # what a transfer frame adds to its payload, generously
PIECE_OVERHEAD = 64  # what keeping a piece of a delivery costs besides its bytes


class Link:
    """What both ends have in common: a name, two handles and a state."""

    role: bool

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle  # ours
        self.remote_handle: int | None = None
        self.state = "DETACHED"
        self.user: Any = None  # whatever the room above wants to find again

    def __repr__(self) -> str:
        end = "sender" if self.role == SENDER else "receiver"
        return f"<Link {self.name!r} {end} handle={self.handle} {self.state}>"

    @property
    def attached(self) -> bool:
        return self.state == "ATTACHED"

    def step(self, action: str) -> None:
        self.state = states.step(states.LINK, f"link {self.name!r}", self.state, action)

    def answer(self, attach: Attach) -> None:
        """Send our attach: as the first word, or in answer to the peer's."""
        self.step("send attach")
        self.session.send(attach)

    def refuse(self, error: Error) -> None:
        """Say no: an attach without source or target, then at once the detach that says why."""
        self.answer(Attach(name=self.name, handle=self.handle, role=self.role))
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link from our side."""
        self.drop()
        self.step("send detach")
        cut = self.session.connection.cut(error)
        self.session.send(Detach(handle=self.handle, closed=True, error=cut))

    def on_detach(self, detach: Detach) -> None:
        answer = self.state == "ATTACHED"
        if answer or self.state == "DETACH_SENT":
            self.step("receive detach")
        if answer:
            self.step("send detach")
            self.session.send(Detach(handle=self.handle, closed=detach.closed))
        self.session.forget(self)
        self.session.emit(Detached(self, detach.error))

    def on_flow(self, flow: Flow) -> None:
        """A flow that names this link."""
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the delivery that is under way."""
        raise NotImplementedError

    def send_flow(self, delivery_count: int, link_credit: int, drain: bool = False) -> None:
        self.session.send_flow(self.handle, delivery_count, link_credit, drain)


class SenderLink(Link):
    """A link on which we send."""

    role = SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        self.delivery_count = 0
        self.draining = False
        self._unsent: deque[bytes] = deque()  # frames for which the session has no window

    @property
    def sendable(self) -> int:
        """Deliveries of one frame each that may be sent now."""
        if not self.attached or self._unsent:
            return 0
        return min(self.credit, self.session.remote_window)

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            # A receiver that has not seen our attach yet knows no delivery count: it means zero.
            seen = flow.delivery_count if flow.delivery_count is not None else 0
            self.credit = credit.allowed(seen, flow.link_credit, self.delivery_count)
        self.draining = flow.drain
        if flow.echo:
            self.send_flow(self.delivery_count, self.credit, self.draining)
        self.session.emit(Flowed(self))

    def answer_drain(self) -> None:
        """Nothing is left to send: if the receiver drains, use up the credit and say so."""
        if not self.draining or not self.attached or self._unsent:
            return
        self.delivery_count = credit.advance(self.delivery_count, self.credit)
        self.credit = 0
        self.draining = False
        self.send_flow(self.delivery_count, 0, drain=True)

    def sent(self, deliveries: int) -> None:
        self.delivery_count = credit.advance(self.delivery_count, deliveries)
        self.credit -= deliveries

    def send_ready(self, frames: bytes | bytearray, deliveries: int) -> None:
        """Send finished transfer frames, one per delivery, numbered by `session.delivery_ids`."""
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
        """Send one delivery, in as many frames as the peer's limit asks for; returns its id.

        Frames for which the session has no window wait, and leave when it opens.
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
            self._unsent.append(encode_frame(transfer, self.session.channel, piece))
        self.sent(1)
        self.push()
        return delivery_id

    def push(self) -> None:
        """Send the waiting frames, as many as the window lets through."""
        while self._unsent and self.session.remote_window > 0:
            self.session.write(self._unsent.popleft())
            self.session.sent_frames(1)
        if self._unsent:
            self.session.stalled[self] = None

    def drop(self) -> None:
        self._unsent.clear()
        self.session.stalled.pop(self, None)


class ReceiverLink(Link):
    """A link on which we receive."""

    role = RECEIVER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.size_max = NO_LIMIT
        self.credit = 0
        self.credit_full = 0  # what we top up to; 0: the user grants by hand
        self.delivery_count = 0
        self.takes_runs = False
        self._first: Transfer | None = None  # of the delivery whose frames are arriving
        self._pieces: list[bytes] = []
        self._size = 0
        self._held = 0

    def on_flow(self, flow: Flow) -> None:
        if flow.delivery_count is not None:
            self.delivery_count = flow.delivery_count
        if flow.drain:
            self.credit = 0
        if flow.echo:
            self.send_flow(self.delivery_count, self.credit)

    def grant(self, amount: int, drain: bool = False) -> None:
        """Allow the peer so many deliveries from here on."""
        self.credit = amount
        self.send_flow(self.delivery_count, amount, drain)

    def keep_granting(self, full: int) -> None:
        """Grant `full` now and again whenever half of it is used."""
        self.credit_full = full
        self.grant(full)

    def take_runs(self) -> None:
        """From now on, settled deliveries that come together may be told of together.

        For a link that grants its credit by hand and has no limit of size.
        """
        self.takes_runs = True
        self.session.connection.learn_likenesses()

    @property
    def between_deliveries(self) -> bool:
        return self._first is None

    def on_run(self, payloads: list[bytes]) -> None:
        """Whole deliveries, which the connection has found to be like one that came before."""
        self.delivery_count = credit.advance(self.delivery_count, len(payloads))
        self.credit = max(0, self.credit - len(payloads))
        self.session.emit(RunDelivered(self, payloads))

    def on_transfer(self, transfer: Transfer, piece: bytes) -> None:
        first = self._first or transfer
        if transfer.aborted:
            self.drop()
            self.count_one()
            return
        if first.delivery_id is None or transfer.delivery_id not in (None, first.delivery_id):
            raise RemoteProtocolError(
                f"transfer.delivery-id on link {self.name!r:.80} is {transfer.delivery_id}, "
                + ("expected a number" if first is transfer else f"after {first.delivery_id}"),
                "amqp:invalid-field",
            )
        self._first = first
        self.collect(piece)
        if not transfer.more:
            self.deliver(first, transfer)

    def collect(self, piece: bytes) -> None:
        """Keep a piece, unless the delivery has outgrown the limit: then only count."""
        self._size += len(piece)
        if self._size > self.size_max:
            self.release_pieces()
            return
        self._pieces.append(piece)
        self._held += len(piece) + PIECE_OVERHEAD
        self.session.hold(len(piece) + PIECE_OVERHEAD)

    def release_pieces(self) -> None:
        self.session.hold(-self._held)
        self._held = 0
        self._pieces.clear()

    def drop(self) -> None:
        self.release_pieces()
        self._first, self._size = None, 0

    def deliver(self, first: Transfer, last: Transfer) -> None:
        payload = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        size = self._size
        self.drop()
        delivery_id = first.delivery_id
        assert delivery_id is not None  # on_transfer saw to it
        settled = bool(first.settled or last.settled)
        kind = first.message_format or 0
        self.session.emit(Delivered(self, delivery_id, kind, settled, payload, size))
        self.count_one()

    def count_one(self) -> None:
        """A delivery is over: one credit is used, and perhaps it is time for more."""
        self.delivery_count = credit.advance(self.delivery_count)
        self.credit = max(0, self.credit - 1)  # the official client sends without any, too
        if self.credit_full and credit.needs_topping_up(self.credit, self.credit_full):
            self.grant(self.credit_full)
