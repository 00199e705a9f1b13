"""Links between two connections: attach, credit, transfers of any size, detach."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.credit import WRAP, Limits
from pumphouse.amqp.events import AttachAsked, Attached, Delivered, Detached, Flowed
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.links import PIECE_OVERHEAD, ReceiverLink, SenderLink
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Detach,
    Error,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from pumphouse.errors import LocalProtocolError, RemoteProtocolError
from tests.amqp.connection_pair import Pair, Side, performatives_in, split_by

SMALL = Open(container_id="small", max_frame_size=512)


def sent_frames(side: Side, kind: type) -> list[object]:
    """The performatives of one type that a side has sent."""
    return [frame for frame in performatives_in(side.sent) if isinstance(frame, kind)]


def request_echo(pair: Pair, credit: int) -> Flow:
    """Send a flow with `echo` from the client; returns the response."""
    flow = Flow(
        next_incoming_id=0,
        incoming_window=1000,
        next_outgoing_id=0,
        outgoing_window=1000,
        handle=0,
        delivery_count=0,
        link_credit=credit,
        echo=True,
    )
    pair.feed(pair.server, encode_frame(flow))
    answer = performatives_in(pair.server.take())[-1]
    assert isinstance(answer, Flow)
    assert answer.handle == 0
    return answer


# -- attach ---------------------------------------------------------------------------------------


def test_attach_in_both_roles() -> None:
    pair = Pair()
    session = pair.begun()
    out, far_in = pair.sender(session)
    into, far_out = pair.receiver(session)
    assert out.attached
    assert into.attached
    assert far_in.attached
    assert far_out.attached
    assert [asked.attach.name for asked in pair.server.of(AttachAsked)] == ["out", "in"]
    assert [answer.link for answer in pair.client.of(Attached)] == [out, into]
    assert repr(far_in) == "<Link 'out' receiver handle=0 ATTACHED>"
    assert repr(far_out) == "<Link 'in' sender handle=1 ATTACHED>"


@pytest.mark.parametrize("roles", [(SENDER, RECEIVER), (RECEIVER, SENDER)])
def test_two_links_of_one_name_may_have_opposite_roles(roles: tuple[bool, bool]) -> None:
    """A name is unique per direction: request nodes are often attached so."""
    pair = Pair()
    session = pair.begun()
    links = [session.attach("$cbs", role) for role in roles]
    pair.talk()
    assert [link.attached for link in links] == [True, True]
    assert [answer.link for answer in pair.client.of(Attached)] == links


def test_a_refused_attach_is_an_attach_of_nulls_and_a_detach() -> None:
    pair = Pair()
    session = pair.begun()
    error = pair.refusals["no"] = Error(condition="amqp:not-found", description="nowhere")
    link = session.attach("no", RECEIVER, source=Source(address="a"), target=Target(address="b"))
    pair.talk()
    assert pair.client.last(Attached).attach == Attach(name="no", handle=0, role=SENDER)
    assert pair.client.of(Detached) == [Detached(link, error)]
    assert not session.links
    assert not pair.server.connection.sessions[0].links
    assert sent_frames(pair.client, Detach) == [Detach(handle=0, closed=True)]  # the response


def test_credit_right_after_an_attach_is_not_lost() -> None:
    """Attach and credit in one packet: the credit counts after the attach is answered."""
    pair = Pair()
    session = pair.begun()
    session.attach("in", RECEIVER, source=Source(address="a"), target=Target(address="b"))
    session.send_flow(0, None, 10)
    pair.talk()
    link = pair.server.last(Flowed).link
    assert (link.credit, link.sendable) == (10, 10)


def test_an_attach_and_its_detach_in_one_packet() -> None:
    pair = Pair()
    session = pair.begun()
    link = session.attach("in", RECEIVER, source=Source(address="a"))
    link.detach()
    pair.talk()
    assert [type(a) for a in performatives_in(pair.server.sent)[-2:]] == [Attach, Detach]
    assert link.state == "DETACHED"
    assert not session.links
    assert not session.requested


# -- credit ---------------------------------------------------------------------------------------


def test_credit_is_counted_down_and_granted_again() -> None:
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    into.grant(3)
    pair.talk()
    assert far_out.sendable == 3
    far_out.send(b"one")
    far_out.send(b"two")
    assert far_out.sendable == 1
    pair.talk()
    assert (into.credit, into.delivery_count) == (1, 2)
    into.grant(5)
    pair.talk()
    assert far_out.sendable == 5


def test_credit_granted_together_with_the_attach_has_no_delivery_count() -> None:
    """The delivery count of the peer is unknown until its attach arrives."""
    pair = Pair()
    into = pair.begun().attach("in", RECEIVER, source=Source(address="a"))
    assert isinstance(into, ReceiverLink)
    into.grant(3)
    pair.carry(pair.client, pair.server)
    [flow] = sent_frames(pair.client, Flow)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (None, 3)
    far_out = pair.server.last(AttachAsked).link
    assert isinstance(far_out, SenderLink)
    far_out.send(b"one")
    pair.talk()
    assert (into.credit, into.delivery_count, far_out.sendable) == (2, 1, 2)


def test_credit_that_crosses_with_deliveries_is_counted_once() -> None:
    """Two deliveries that crossed with the grant are subtracted from it."""
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    into.grant(3)
    pair.talk()
    far_out.send(b"one")
    far_out.send(b"two")
    into.grant(10)
    pair.talk()
    assert far_out.sendable == 8


def test_credit_works_across_the_wrap_of_the_counter() -> None:
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    into.delivery_count = far_out.delivery_count = WRAP - 1
    into.grant(3)
    pair.talk()
    for _ in range(3):
        far_out.send(b"")
    pair.talk()
    assert (far_out.sendable, far_out.delivery_count, into.delivery_count) == (0, 2, 2)


def test_keep_granting_renews_credit_at_half() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.keep_granting(10)
    pair.talk()
    for _ in range(100):
        assert out.sendable > 0
        out.send(b"x", settled=False)
        pair.talk()
    assert len(pair.server.of(Delivered)) == 100
    assert len(sent_frames(pair.server, Flow)) == 1 + 100 // 5


def test_a_drain_with_nothing_to_send_uses_up_the_credit() -> None:
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    into.grant(7, drain=True)
    pair.talk()
    assert far_out.draining
    far_out.answer_drain()
    pair.talk()
    answer = sent_frames(pair.server, Flow)[-1]
    assert isinstance(answer, Flow)
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (7, 0, True)
    assert (into.credit, into.delivery_count, far_out.sendable) == (0, 7, 0)
    far_out.answer_drain()  # a second call sends nothing
    assert pair.server.take() == b""


def test_an_echo_is_answered_with_our_counters() -> None:
    pair = Pair()
    _, far_out = pair.receiver(pair.begun())
    answer = request_echo(pair, credit=4)
    assert (answer.delivery_count, answer.link_credit) == (0, 4)
    far_out.send(b"")
    answer = request_echo(pair, credit=4)
    assert (answer.delivery_count, answer.link_credit) == (1, 3)


def test_a_sender_may_ask_for_an_echo() -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    far_in.grant(9)
    pair.talk()
    answer = request_echo(pair, credit=0)
    assert (answer.delivery_count, answer.link_credit) == (0, 9)


def test_a_sender_without_credit_is_tolerated() -> None:
    """The official client sends without credit; our count stays at zero."""
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    for _ in range(3):
        out.send(b"unasked", settled=False)
    pair.talk()
    assert len(pair.server.of(Delivered)) == 3
    answer = request_echo(pair, credit=0)
    assert (answer.delivery_count, answer.link_credit, far_in.credit) == (0, 0, 0)


# -- transfers ------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=3000), max_size=6),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_any_deliveries_round_trip_in_frames_of_512_bytes(
    payloads: list[bytes], settled: bool, seed: int
) -> None:
    pair = Pair(client_open=SMALL, server_open=SMALL, chunks=split_by(Random(seed)))
    session = pair.begun()
    out, far_in = pair.sender(session)
    into, far_out = pair.receiver(session)
    far_in.grant(100)
    into.grant(100)
    pair.talk()
    for payload in payloads:
        out.send(payload, message_format=7, settled=settled)
        far_out.send(payload, message_format=7, settled=settled)
    pair.talk()
    for side in (pair.client, pair.server):
        got = side.of(Delivered)
        assert [event.payload for event in got] == payloads
        assert [event.delivery_id for event in got] == list(range(len(payloads)))
        assert {event.settled for event in got} <= {settled}
        assert {event.message_format for event in got} <= {7}
        assert side.connection.held_bytes == 0
    assert far_in.delivery_count == into.delivery_count == len(payloads)


def test_frames_use_the_frame_size_of_the_peer() -> None:
    pair = Pair(server_open=SMALL)
    out, far_in = pair.sender(pair.begun())
    far_in.grant(1)
    pair.talk()
    before = len(pair.client.sent)
    out.send(bytes(1000))
    pair.talk()
    frames = performatives_in(pair.client.sent[before:])
    assert [frame.more for frame in frames] == [True, True, False]
    assert {(frame.delivery_id, frame.delivery_tag) for frame in frames} == {(0, b"\x00")}


def test_an_aborted_delivery_is_dropped_and_uses_credit() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.grant(5)
    pair.talk()
    part = Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True)
    pair.feed(pair.server, encode_frame(part, payload=b"x" * 1000))
    assert pair.server.connection.held_bytes >= 1000
    pair.feed(pair.server, encode_frame(Transfer(handle=0, aborted=True), payload=b"ignored"))
    assert pair.server.of(Delivered) == []
    assert pair.server.connection.held_bytes == 0
    assert (far_in.credit, far_in.delivery_count) == (4, 1)
    out.session.next_delivery_id = 1
    out.send(b"next")
    pair.talk()
    assert pair.server.last(Delivered).payload == b"next"


def test_the_last_frame_may_set_settled() -> None:
    pair = Pair()
    pair.sender(pair.begun())
    first = Transfer(handle=0, delivery_id=0, settled=False, more=True)
    pair.feed(pair.server, encode_frame(first, payload=b"a"))
    pair.feed(pair.server, encode_frame(Transfer(handle=0, settled=True), payload=b"b"))
    assert pair.server.last(Delivered).settled
    assert pair.server.last(Delivered).payload == b"ab"


@pytest.mark.parametrize(
    ("transfers", "problem"),
    [
        ([Transfer(handle=0)], "transfer.delivery-id on link 'out' is None, expected a number"),
        (
            [Transfer(handle=0, delivery_id=0, more=True), Transfer(handle=0, delivery_id=1)],
            "transfer.delivery-id on link 'out' is 1, expected 0",
        ),
    ],
)
def test_a_frame_without_a_delivery_is_refused(transfers: list[Transfer], problem: str) -> None:
    pair = Pair()
    pair.sender(pair.begun())
    pair.feed(pair.server, b"".join(map(encode_frame, transfers)))
    assert isinstance(pair.server.error, RemoteProtocolError)
    assert problem in str(pair.server.error)
    assert pair.server.error.condition == "amqp:invalid-field"


def test_an_oversize_delivery_is_counted_and_not_stored() -> None:
    pair = Pair(server_open=SMALL)
    out, far_in = pair.sender(pair.begun())
    far_in.size_max = 1000
    far_in.grant(2)
    pair.talk()
    out.send(bytes(1000))
    out.send(bytes(100_000))
    pair.talk()
    kept, large = pair.server.of(Delivered)
    assert (kept.size, kept.oversize, len(kept.payload)) == (1000, False, 1000)
    assert (large.size, large.oversize, large.payload) == (100_000, True, b"")
    assert pair.server.connection.held_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 400])
def test_incomplete_deliveries_are_bounded(size: int) -> None:
    """Empty frames count too, because storing them costs memory."""
    limit = 100_000
    pair = Pair(limits=Limits(held_bytes_max=limit))
    pair.sender(pair.begun())
    part = encode_frame(Transfer(handle=0, delivery_id=0, more=True), payload=bytes(size))
    # The open, the session and the link count too.
    room = limit - pair.server.connection.budget.held
    for _ in range(room // (size + PIECE_OVERHEAD)):
        pair.feed(pair.server, part)
    assert pair.server.error is None
    pair.feed(pair.server, part)
    assert isinstance(pair.server.error, RemoteProtocolError)
    assert pair.server.error.condition == "amqp:resource-limit-exceeded"


# -- detach ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_with_the_same_closed_flag(closed: bool) -> None:
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    pair.feed(pair.server, encode_frame(Detach(handle=0, closed=closed)))
    assert performatives_in(pair.server.take()) == [Detach(handle=0, closed=closed)]
    assert pair.server.of(Detached) == [Detached(far_out, None)]
    assert far_out.sendable == 0
    assert into.attached  # it has not received the detach


def test_both_sides_may_detach_at_once() -> None:
    pair = Pair()
    session = pair.begun()
    into, far_out = pair.receiver(session)
    into.detach()
    far_out.detach(Error(condition="amqp:link:stolen"))
    pair.talk()
    assert into.state == far_out.state == "DETACHED"
    assert not session.links
    assert not far_out.session.links
    assert len(sent_frames(pair.client, Detach)) == len(sent_frames(pair.server, Detach)) == 1


def test_frames_that_cross_our_detach_are_dropped() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.grant(5)
    pair.talk()
    out.send(b"crossing", settled=False)
    far_in.detach(Error(condition="amqp:link:detach-forced"))
    pair.talk()
    assert pair.server.of(Delivered) == []
    assert pair.server.connection.state == "OPENED"
    assert out.state == "DETACHED"


def test_a_handle_may_be_reused() -> None:
    pair = Pair()
    session = pair.begun()
    for number in range(3):
        link, _ = pair.receiver(session, f"reader {number}")
        assert link.handle == 0
        link.detach()
        pair.talk()
    assert len(pair.server.of(AttachAsked)) == 3


def test_the_lowest_free_handle_is_used_after_both_ends_have_detached() -> None:
    pair = Pair()
    session = pair.begun()
    links = [pair.receiver(session, f"reader {number}") for number in range(3)]
    links[1][0].detach()  # the server has not received it yet
    assert session.attach("another", RECEIVER).handle == 3
    pair.talk()
    links[0][1].detach()
    pair.talk()
    assert [session.attach(f"later {number}", RECEIVER).handle for number in range(3)] == [0, 1, 4]


def test_a_second_detach_raises_a_local_error() -> None:
    pair = Pair()
    into, _ = pair.receiver(pair.begun())
    into.detach()
    with pytest.raises(LocalProtocolError, match="link 'in' in state DETACH_SENT cannot send"):
        into.detach()
