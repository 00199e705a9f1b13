"""Dispositions: consecutive outcomes share a frame."""

from __future__ import annotations

from pumphouse.amqp.credit import WRAP
from pumphouse.amqp.events import Disposed
from pumphouse.amqp.performatives import (
    RECEIVER,
    Accepted,
    Disposition,
    Error,
    Rejected,
)
from tests.amqp.connection_pair import Pair, Side, performatives_in


def sent_frames(side: Side, kind: type) -> list[object]:
    """The performatives of one type that a side has sent."""
    return [frame for frame in performatives_in(side.sent) if isinstance(frame, kind)]


def test_consecutive_outcomes_share_a_frame() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.grant(10)
    pair.talk()
    for _ in range(6):
        out.send(b"x", settled=False)
    pair.carry(pair.client, pair.server)
    error = Error(condition="amqp:decode-error", description="no message")
    for delivery_id in (0, 1, 2, 4, 5):
        far_in.session.accept(delivery_id)
        if delivery_id == 2:
            far_in.session.reject(3, error)
    pair.talk()
    assert sent_frames(pair.server, Disposition) == [
        Disposition(role=RECEIVER, first=0, last=2, settled=True, state=Accepted()),
        Disposition(role=RECEIVER, first=3, last=3, settled=True, state=Rejected(error=error)),
        Disposition(role=RECEIVER, first=4, last=5, settled=True, state=Accepted()),
    ]
    assert [(d.first, d.last, d.state) for d in pair.client.of(Disposed)] == [
        (0, 2, Accepted()),
        (3, 3, Rejected(error=error)),
        (4, 5, Accepted()),
    ]


def test_consecutive_outcomes_share_a_frame_across_the_wrap() -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    for delivery_id in (WRAP - 2, WRAP - 1, 0, 1):
        far_in.session.accept(delivery_id)
    pair.talk()
    (said_once,) = pair.client.of(Disposed)
    assert (said_once.first, said_once.last) == (WRAP - 2, 1)


def test_pending_outcomes_are_sent_before_the_session_ends() -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    far_in.session.accept(0)
    far_in.session.end()
    pair.talk()
    assert [type(s).__name__ for s in performatives_in(pair.server.sent)[-2:]] == [
        "Disposition",
        "End",
    ]
