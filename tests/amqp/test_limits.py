"""Limits on what a peer sends, checked by the connection before anything else uses it."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.connection import QUIET_FRAMES, SERVER, Connection
from pumphouse.amqp.events import AttachAsked, FramesHandled
from pumphouse.amqp.frames import AMQP_HEADER, EMPTY_FRAME, HEAD, ByteReader, encode_frame
from pumphouse.amqp.performatives import Attach, Begin, Error, Flow, Open
from pumphouse.amqp.session import Session
from pumphouse.errors import RemoteProtocolError
from tests.amqp.connection_pair import Pair, performatives_in
from tests.growth import assert_linear


@pytest.mark.parametrize("field", ["container_id", "hostname"])
def test_an_open_with_a_long_name_is_refused(field: str) -> None:
    for length, allowed in ((1024, True), (1025, False)):
        server = Connection(SERVER, Open(container_id="s"))
        names: dict[str, Any] = {"container_id": "c", field: "n" * length}
        events = server.receive(AMQP_HEADER + encode_frame(Open(**names)))
        if allowed:
            assert list(events)
            continue
        with pytest.raises(RemoteProtocolError, match="has 1025 characters, at most 1024") as error:
            list(events)
        assert error.value.condition == "amqp:invalid-field"


# --- Cost of many links, sessions and small pieces -----------------------------------------------


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_a_frame_in_small_pieces_is_read_in_linear_time(piece: int) -> None:
    def read(data: bytes) -> None:
        reader = ByteReader(len(data))
        for start in range(0, len(data), piece):
            reader.feed(data[start : start + piece])
            frame = reader.frame()
        assert frame is not None
        assert frame.data[frame.start : frame.end] == data[8:]
        assert reader.pending == 0

    assert_linear(read, lambda size: HEAD.pack(size, 2, 0, 0) + bytes(size - 8), 100_000)


def test_links_are_counted() -> None:
    pair = Pair()
    for _ in range(2):
        session = pair.begun()
        for number in range(5):
            pair.sender(session, f"out {number}")
            into, _ = pair.receiver(session, f"in {number}")
        into.detach()
        pair.talk()
        assert_counted(pair)
    session.end()
    pair.talk()
    assert_counted(pair)
    assert pair.server.connection.link_count == 9


def assert_counted(pair: Pair) -> None:
    for side in (pair.client, pair.server):
        links = sum(len(session.links) for session in side.connection.sessions.values())
        assert side.connection.link_count == links


def test_only_sessions_with_an_outcome_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    sessions = [pair.begun() for _ in range(20)]
    out, _ = pair.sender(sessions[3])
    out.session.connection.data_to_send()
    flushed: list[Session] = []
    flush = Session.flush

    def record(self: Session) -> None:
        flushed.append(self)
        flush(self)

    monkeypatch.setattr(Session, "flush", record)
    server = pair.server.connection
    session = server.sessions[sessions[3].channel]
    session.accept(5)
    assert len(performatives_in(b"".join(server.data_to_send()))) == 1
    assert set(flushed) == {session}
    server.data_to_send()
    assert len(flushed) == 2  # one for the new range of ids, one to send it
    assert server.unflushed == {}


def test_frames_without_an_event_let_the_caller_run_others() -> None:
    server = Connection(SERVER, Open(container_id="s"))
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9)
    begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    opening = AMQP_HEADER + encode_frame(Open(container_id="c")) + encode_frame(begin)
    list(server.receive(opening))
    for quiet in (EMPTY_FRAME, encode_frame(flow)):
        events = list(server.receive(quiet * (10 * QUIET_FRAMES)))
        assert events == [FramesHandled()] * 10


def test_a_response_above_the_limit_of_the_peer_is_an_error_of_the_peer() -> None:
    """It has sent a long name, and accepts frames of 512 bytes only."""
    server = Connection(SERVER, Open(container_id="s"))
    opening = Open(container_id="c", max_frame_size=512)
    begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    list(server.receive(AMQP_HEADER + encode_frame(opening) + encode_frame(begin)))
    (request,) = server.receive(encode_frame(Attach(name="n" * 600, handle=0, role=True)))
    assert isinstance(request, AttachAsked)
    with pytest.raises(RemoteProtocolError, match=r"needs a frame of \d+ bytes.* is 512") as error:
        request.link.refuse(Error(condition="amqp:not-found", description="not here"))
    assert error.value.condition == "amqp:frame-size-too-small"
