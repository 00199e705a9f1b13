"""Sessions between two connections: begin and end, windows, and frames without a link."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.events import (
    AttachAsked,
    Begun,
    Delivered,
    Ended,
    Flowed,
    WindowOpened,
)
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from pumphouse.amqp.session import HANDLE_MAX, INCOMING_WINDOW, Session
from pumphouse.errors import RemoteProtocolError
from tests.amqp.connection_pair import (
    Chunks,
    Pair,
    performatives_in,
    performatives_of_stream,
    split_by,
    unsplit,
)

SMALL = Open(container_id="small", max_frame_size=512)


def send_from_client(pair: Pair, *frames: object, channel: int = 0) -> list[object]:
    """Send given frames from the client; returns the response of the server."""
    for frame in frames:
        pair.feed(pair.server, encode_frame(frame, channel))  # type: ignore[arg-type]
    return performatives_in(pair.server.take())


def window_of(frames: int, seen: int) -> Flow:
    """A flow of the client that opens its window and names no link."""
    return Flow(
        next_incoming_id=seen, incoming_window=frames, next_outgoing_id=0, outgoing_window=100
    )


def far_session(pair: Pair, channel: int = 0) -> Session:
    return pair.server.connection.sessions[channel]


# -- begin and end --------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_sessions_begin_and_end(seed: int) -> None:
    pair = Pair(chunks=split_by(Random(seed))).opened()
    first, second = pair.client.connection.begin(), pair.client.connection.begin()
    pair.talk()
    assert [first.channel, second.channel] == [0, 1]
    assert pair.client.of(Begun) == [Begun(first), Begun(second)]
    assert first.state == far_session(pair).state == "MAPPED"
    pair.sender(second)
    first.end()
    pair.talk()
    assert first.state == "UNMAPPED"
    assert pair.client.of(Ended) == [Ended(first, None, ())]
    assert list(pair.server.connection.sessions) == [1]
    third = pair.client.connection.begin()
    pair.talk()
    assert third.channel == 0  # free again
    assert third.state == "MAPPED"


def test_the_end_of_a_session_names_its_links() -> None:
    """The caller must see the end of every link."""
    pair = Pair()
    session = pair.begun()
    near = [pair.sender(session)[0], pair.receiver(session)[0]]
    far = [asked.link for asked in pair.server.of(AttachAsked)]
    error = Error(condition="amqp:internal-error", description="sorry")
    session.end(error)
    pair.talk()
    assert pair.server.of(Ended) == [Ended(pair.server.last(Ended).session, error, tuple(far))]
    assert pair.client.of(Ended) == [Ended(session, None, tuple(near))]
    assert {link.state for link in near + far} == {"DETACHED"}


def test_late_frames_on_an_ended_channel_are_ignored() -> None:
    """The official client detaches its links after ending their session."""
    pair = Pair()
    pair.receiver(pair.begun())
    assert send_from_client(pair, End()) == [End()]
    late = [
        Detach(handle=0, closed=True),
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True),
        Transfer(handle=0, delivery_id=0),
        Disposition(role=True, first=0),
        End(),
    ]
    assert send_from_client(pair, *late) == []
    assert pair.server.error is None
    assert send_from_client(pair, Close()) == [Close()]


def test_nothing_is_sent_on_a_session_that_we_ended() -> None:
    pair = Pair()
    session = pair.begun()
    _, far_in = pair.sender(session)
    far_in.keep_granting(2)
    pair.talk()
    far_session(pair).end()
    pair.server.take()
    echo = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True)
    transfers = [Transfer(handle=0, delivery_id=number) for number in range(5)]
    assert (
        send_from_client(
            pair, echo, *transfers, Detach(handle=9), Attach(name="x", handle=1, role=True)
        )
        == []
    )
    assert send_from_client(pair, End()) == []
    assert pair.server.of(Delivered) == []
    assert pair.server.connection.sessions == {}


def test_both_sides_may_end_a_session_at_once() -> None:
    pair = Pair()
    session = pair.begun()
    far_session(pair).end()
    session.end()
    pair.talk()
    assert pair.client.connection.sessions == pair.server.connection.sessions == {}


# -- frames without a link ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        Transfer(handle=5, delivery_id=0),
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=5, link_credit=1),
        Detach(handle=5),
    ],
    ids=["transfer", "flow", "detach"],
)
def test_an_unattached_handle_ends_the_session(frame: object) -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    part = Transfer(handle=0, delivery_id=0, more=True)
    pair.feed(pair.server, encode_frame(part, payload=bytes(1000)))
    (end,) = send_from_client(pair, frame)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == "amqp:session:unattached-handle"
    assert end.error.description == "No link is attached to handle 5 on channel 0."
    assert pair.server.last(Ended).links == (far_in,)
    assert pair.server.connection.held_bytes == 0
    # Frames on this channel are dropped until the client has answered.
    assert send_from_client(pair, frame, Attach(name="x", handle=1, role=True)) == []
    assert send_from_client(pair, End()) == []
    assert pair.server.connection.sessions == {}
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    assert [type(answer) for answer in send_from_client(pair, begin)] == [Begin]


def test_a_transfer_to_a_sending_link_ends_the_session() -> None:
    pair = Pair()
    pair.receiver(pair.begun())
    (end,) = send_from_client(pair, Transfer(handle=0, delivery_id=0))
    assert isinstance(end, End)


def test_a_handle_in_use_ends_the_session() -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    (end,) = send_from_client(pair, Attach(name="other", handle=0, role=True))
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == "amqp:session:handle-in-use"
    assert pair.server.last(Ended).links == (far_in,)


def test_a_handle_beyond_the_limit_closes_the_connection() -> None:
    pair = Pair()
    pair.begun()
    send_from_client(pair, Attach(name="far", handle=HANDLE_MAX + 1, role=True))
    assert isinstance(pair.server.error, RemoteProtocolError)
    assert str(pair.server.error) == "attach.handle is 262144, at most 262143"


# -- windows --------------------------------------------------------------------------------------


def test_our_window_opens_again_at_half() -> None:
    pair = Pair()
    pair.sender(pair.begun())
    part = encode_frame(Transfer(handle=0, delivery_id=0, more=True, aborted=True))
    for _ in range(INCOMING_WINDOW // 2 - 1):
        pair.feed(pair.server, part)
    assert pair.server.take() == b""
    pair.feed(pair.server, part)
    (flow,) = performatives_in(pair.server.take())
    assert flow.next_incoming_id == INCOMING_WINDOW // 2
    assert flow.incoming_window == INCOMING_WINDOW


def test_the_window_of_the_peer_limits_sending() -> None:
    pair = Pair()
    into, far_out = pair.receiver(pair.begun())
    into.grant(100)
    pair.talk()
    send_from_client(pair, window_of(3, seen=0))
    assert far_out.sendable == 3
    for _ in range(3):
        far_out.send(b"x")
    assert far_out.sendable == 0
    send_from_client(pair, window_of(2, seen=1))  # it has received one of the three
    assert far_out.sendable == 0
    send_from_client(pair, window_of(2, seen=3))
    assert far_out.sendable == 2
    assert pair.server.last(WindowOpened).session is far_out.session


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.binary(max_size=6000))
@settings(max_examples=40)
def test_a_long_delivery_waits_for_the_window(windows: list[int], payload: bytes) -> None:
    """Frames of 512 bytes through a window of a few frames: never one frame too many."""
    pair = Pair(client_open=SMALL)
    into, far_out = pair.receiver(pair.begun())
    send_from_client(pair, window_of(0, seen=0))
    into.grant(10)
    pair.carry(pair.client, pair.server)
    pair.server.take()
    send_from_client(pair, window_of(0, seen=0))
    far_out.send(payload)
    got: list[tuple[Transfer, bytes]] = []
    for window in [*windows, *[7] * 20]:
        pair.feed(pair.server, encode_frame(window_of(window, seen=len(got))))
        frames = performatives_of_stream(pair.server.take())
        assert len(frames) <= window
        got += frames
    assert [transfer.more for transfer, _ in got] == [True] * (len(got) - 1) + [False]
    assert b"".join(piece for _, piece in got) == payload
    assert far_out.sendable == min(9, far_out.session.remote_window)


def test_a_delivery_interrupted_by_the_window_arrives_complete() -> None:
    pair = Pair(client_open=SMALL)
    into, far_out = pair.receiver(pair.begun())
    into.grant(10)
    pair.talk()
    far_out.session.remote_window = 2
    payload = bytes(range(256)) * 20
    far_out.send(payload)
    far_out.session.resume()  # no window yet: nothing happens
    assert far_out.sendable == 0
    pair.talk()
    assert pair.client.of(Delivered) == []
    into.session.send_flow()
    pair.talk()
    assert [event.payload for event in pair.client.of(Delivered)] == [payload]
    assert far_out.sendable == 9


def test_a_drain_waits_for_the_incomplete_delivery() -> None:
    pair = Pair(client_open=SMALL)
    into, far_out = pair.receiver(pair.begun())
    into.grant(10, drain=True)
    pair.talk()
    far_out.session.remote_window = 1
    far_out.send(bytes(2000))
    far_out.answer_drain()
    assert far_out.draining
    into.session.send_flow()
    pair.talk()
    far_out.answer_drain()
    pair.talk()
    assert (far_out.draining, into.credit, into.delivery_count) == (False, 0, 10)
    assert pair.server.of(Flowed)


def test_a_detached_link_drops_its_waiting_frames() -> None:
    pair = Pair(client_open=SMALL)
    into, far_out = pair.receiver(pair.begun())
    into.grant(10)
    pair.talk()
    far_out.session.remote_window = 1
    far_out.send(bytes(5000))
    pair.server.take()
    far_out.detach(Error(condition="amqp:link:stolen"))
    answers = send_from_client(pair, window_of(100, seen=1))
    assert [type(answer) for answer in answers] == [Detach]
    assert far_out.session.stalled == {}


# -- any division of the bytes --------------------------------------------------------------------


def converse(chunks: Chunks) -> list[str]:
    """A long exchange in small frames; returns all events of both sides, in order."""
    pair = Pair(client_open=SMALL, server_open=SMALL, chunks=chunks)
    session = pair.begun()
    out, far_in = pair.sender(session)
    into, far_out = pair.receiver(session)
    far_in.keep_granting(4)
    into.grant(3)
    pair.talk()
    for number in range(6):
        out.send(b"%d" % number * 700, settled=number % 2 == 0)
        pair.talk()
        if number % 2:
            far_in.session.accept(number)
    far_out.send(b"one")
    far_out.send(b"two" * 400)
    pair.talk()
    into.grant(5, drain=True)
    pair.talk()
    far_out.answer_drain()
    pair.refusals["no"] = Error(condition="amqp:not-allowed", description="no")
    session.attach("no", role=True)
    pair.talk()
    into.detach()
    far_out.detach(Error(condition="amqp:link:stolen"))
    pair.talk()
    other = pair.client.connection.begin()
    pair.talk()
    session.end()
    far_session(pair, other.channel).end(Error(condition="amqp:internal-error"))
    pair.talk()
    pair.server.connection.close(Error(condition="amqp:connection:forced"))
    pair.talk()
    assert pair.client.error is pair.server.error is None
    assert pair.client.connection.state == pair.server.connection.state == "END"
    assert pair.client.connection.held_bytes == pair.server.connection.held_bytes == 0
    assert (into.credit, into.delivery_count, far_in.delivery_count) == (0, 7, 6)
    return [f"client {e}" for e in pair.client.events] + [f"server {e}" for e in pair.server.events]


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_the_division_of_the_bytes_makes_no_difference(seed: int) -> None:
    assert converse(split_by(Random(seed))) == converse(unsplit)
