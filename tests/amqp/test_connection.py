"""Two AMQP connections: login, open, close and protocol violations."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp import sasl
from pumphouse.amqp.composites import Composite
from pumphouse.amqp.connection import CLIENT, SERVER, Connection, Login
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.events import Begun, Closed, Ended, Opened
from pumphouse.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    encode_frame,
)
from pumphouse.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from pumphouse.errors import AuthError, LocalProtocolError, MalformedBytes, RemoteProtocolError
from tests.amqp.connection_pair import Pair, performatives_in, split_by

BEGIN = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)


class Peer:
    """A server connection, driven by the test."""

    def __init__(self, **options: Any) -> None:
        self.server = Connection(SERVER, Open(container_id="s"), **options)
        self.sent_frames = b""

    def feed(self, *frames: bytes | Composite, channel: int = 0) -> list[Any]:
        """Send bytes or frames; returns the decoded response."""
        data = b"".join(
            piece if isinstance(piece, bytes) else encode_frame(piece, channel) for piece in frames
        )
        try:
            list(self.server.receive(data))
        finally:
            answer = b"".join(self.server.data_to_send())
            self.sent_frames += answer
        return performatives_in(answer)

    def fails(self, *frames: bytes | Composite, channel: int = 0) -> tuple[str, list[Any]]:
        """Send invalid frames; returns the error condition and the response."""
        with pytest.raises(RemoteProtocolError) as caught:
            self.feed(*frames, channel=channel)
        answers = performatives_in(self.sent_frames)
        assert self.server.state == "END"
        assert self.feed(EMPTY_FRAME) == []  # later bytes are ignored
        return caught.value.condition, answers


def opened(**options: Any) -> Peer:
    peer = Peer(**options)
    peer.feed(AMQP_HEADER, Open(container_id="c"))
    peer.sent_frames = b""
    return peer


def close_error(answers: list[Any]) -> Error:
    last = answers[-1]
    assert isinstance(last, Close)
    assert last.error is not None
    return last.error


# -- opening --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_open_and_close(seed: int) -> None:
    pair = Pair(chunks=split_by(Random(seed))).opened()
    assert pair.server.of(Opened) == [Opened(Open(container_id="c", hostname="localhost"))]
    assert pair.client.of(Opened) == [Opened(Open(container_id="s"))]
    pair.client.connection.close()
    pair.talk()
    assert pair.server.of(Closed) == pair.client.of(Closed) == [Closed(None)]
    assert pair.server.connection.state == pair.client.connection.state == "END"
    assert (
        performatives_in(pair.client.sent)[-1] == performatives_in(pair.server.sent)[-1] == Close()
    )


def test_login_and_open_have_these_bytes() -> None:
    pair = Pair().opened()
    assert performatives_in(pair.client.sent) == [
        SASL_HEADER,
        SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="localhost"),
        AMQP_HEADER,
        Open(container_id="c", hostname="localhost"),
    ]
    assert performatives_in(pair.server.sent) == [
        SASL_HEADER,
        SaslMechanisms(mechanisms=sasl.MECHANISMS),
        SaslOutcome(code=0),
        AMQP_HEADER,
        Open(container_id="s"),
    ]


def test_a_client_may_pipeline_everything() -> None:
    """Login, header, open and begin without waiting, as the official client does."""
    answers = Peer().feed(
        SASL_HEADER,
        encode_frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME),
        AMQP_HEADER,
        Open(container_id="c"),
        BEGIN,
    )
    assert [type(a) for a in answers[1:3]] == [SaslMechanisms, SaslOutcome]
    assert answers[3:5] == [AMQP_HEADER, Open(container_id="s")]
    assert [type(a) for a in answers[5:]] == [Begin]


def test_a_client_may_omit_the_login() -> None:
    assert Peer().feed(AMQP_HEADER, Open(container_id="c")) == [AMQP_HEADER, Open(container_id="s")]


@pytest.mark.parametrize(
    ("start", "answer"),
    [
        (TLS_HEADER, [SASL_HEADER]),
        (b"AMQP\x00\x02\x00\x00", [SASL_HEADER]),
        (b"AMQP\x00\x00\x09\x01", [SASL_HEADER]),
        (b"GET / HTTP/1.1\r\n\r\n", [SASL_HEADER]),
        (b"\x16\x03\x01\x02\x00\x01\x00", [SASL_HEADER]),
    ],
)
def test_an_unknown_protocol_header_is_answered_with_ours(
    start: bytes, answer: list[bytes]
) -> None:
    condition, answers = Peer().fails(start)
    assert (condition, answers) == ("amqp:connection:framing-error", answer)


def test_a_second_login_is_refused() -> None:
    init = encode_frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME)
    _, answers = Peer().fails(SASL_HEADER, init, SASL_HEADER)
    assert answers[-1] == AMQP_HEADER


@pytest.mark.parametrize("header", [AMQP_HEADER, TLS_HEADER])
def test_a_server_without_sasl_is_refused(header: bytes) -> None:
    client = Connection(CLIENT, Open(container_id="c"))
    client.start()
    with pytest.raises(RemoteProtocolError, match="is not supported"):
        list(client.receive(header))
    assert client.state == "END"


# -- the login ------------------------------------------------------------------------------------


def check_key(init: SaslInit) -> None:
    if init.mechanism == sasl.PLAIN and sasl.parse_plain(init.initial_response) != ("u", "right"):
        raise AuthError("wrong key")


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "MSSBCBS"])
def test_mechanisms_without_a_password_are_accepted(mechanism: str) -> None:
    Pair(login=Login(mechanism), authenticate=check_key).opened()


def test_plain_with_the_right_key_is_accepted() -> None:
    login = Login(sasl.PLAIN, sasl.plain_response("u", "right"))
    Pair(login=login, authenticate=check_key).opened()


@pytest.mark.parametrize(
    "init",
    [
        SaslInit(mechanism="PLAIN", initial_response=sasl.plain_response("u", "wrong")),
        SaslInit(mechanism="PLAIN", initial_response=b"no zeros"),
        SaslInit(mechanism="PLAIN", initial_response=b"\x00\xff\x00\xfe"),
        SaslInit(mechanism="PLAIN", initial_response=b"\x00u\x00right\x00more"),
        SaslInit(mechanism="PLAIN"),
        SaslInit(mechanism="SCRAM-SHA-256", initial_response=b"n,,"),
        SaslInit(mechanism=""),
    ],
)
def test_a_failed_login_closes_the_connection(init: SaslInit) -> None:
    peer = Peer(authenticate=check_key)
    condition, answers = peer.fails(SASL_HEADER, encode_frame(init, kind=SASL_FRAME), AMQP_HEADER)
    assert condition == "amqp:unauthorized-access"
    assert answers[-1] == SaslOutcome(code=1)


def test_a_client_raises_when_its_login_fails() -> None:
    client = Connection(CLIENT, Open(container_id="c"))
    client.start()
    refusal = encode_frame(SaslOutcome(code=1), kind=SASL_FRAME)
    with pytest.raises(AuthError, match="code 1"):
        list(client.receive(SASL_HEADER + refusal))
    assert client.state == "END"


def test_a_client_raises_when_its_mechanism_is_not_offered() -> None:
    client = Connection(CLIENT, Open(container_id="c"), login=Login("PLAIN", b""))
    client.start()
    offer = SaslMechanisms(mechanisms=("EXTERNAL",))
    with pytest.raises(RemoteProtocolError, match="does not offer SASL PLAIN; it offers EXTERNAL"):
        list(client.receive(SASL_HEADER + encode_frame(offer, kind=SASL_FRAME)))


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(Open(container_id="c")),  # an AMQP frame
        encode_frame(Open(container_id="c"), kind=SASL_FRAME),
        encode_frame(SaslOutcome(code=0), kind=SASL_FRAME),  # a frame that only servers send
        encode_frame(SaslMechanisms(), kind=SASL_FRAME),
        b"\x00\x00\x00\x08\x02\x01\x00\x00",  # an empty one
    ],
)
def test_an_invalid_login_frame_is_refused(frame: bytes) -> None:
    _, answers = Peer().fails(SASL_HEADER, frame)
    assert [type(a) for a in answers] == [bytes, SaslMechanisms]


# -- protocol violations --------------------------------------------------------------------------

ATTACH = Attach(name="l", handle=0, role=False)
FLOW = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)


@pytest.mark.parametrize(
    ("what", "condition"),
    [
        ([Open(container_id="again")], "amqp:illegal-state"),
        ([ATTACH], "amqp:illegal-state"),
        ([FLOW], "amqp:illegal-state"),
        ([Transfer(handle=0)], "amqp:illegal-state"),
        ([Disposition(role=True, first=0)], "amqp:illegal-state"),
        ([Detach(handle=0)], "amqp:illegal-state"),
        ([End()], "amqp:illegal-state"),
        ([BEGIN, BEGIN], "amqp:connection:framing-error"),
        ([replace(BEGIN, remote_channel=9)], "amqp:connection:framing-error"),
        ([Accepted()], "amqp:illegal-state"),
        ([BEGIN, Open(container_id="again")], "amqp:illegal-state"),
        ([SaslInit(mechanism="ANONYMOUS")], "amqp:illegal-state"),
        ([BEGIN, SaslInit(mechanism="ANONYMOUS")], "amqp:connection:framing-error"),
        ([BEGIN, Accepted()], "amqp:connection:framing-error"),
        ([b"\x00\x00\x00\x04\x02\x00\x00\x00"], "amqp:connection:framing-error"),
        ([b"\x00\x00\x00\x09\x02\x00\x00\x00\x40"], "amqp:decode-error"),
        ([b"\x00\x00\x00\x0b\x02\x00\x00\x00\x00\x53\x99"], "amqp:decode-error"),
        ([encode_frame(BEGIN, kind=SASL_FRAME)], "amqp:connection:framing-error"),
        ([encode_frame(BEGIN, kind=7)], "amqp:connection:framing-error"),
    ],
)
def test_a_protocol_violation_is_answered_with_a_close(what: list[Any], condition: str) -> None:
    condition_raised, answers = opened().fails(*what)
    assert close_error(answers).condition == condition_raised == condition


def test_an_error_before_the_open_sends_open_and_close() -> None:
    """The peer would not understand a close without our open."""
    for wrong in (BEGIN, Close(), Open(container_id="c", max_frame_size=511)):
        _, answers = Peer().fails(AMQP_HEADER, wrong)
        assert answers[:2] == [AMQP_HEADER, Open(container_id="s")]
        assert close_error(answers)


def test_an_open_with_too_small_frames_names_the_field() -> None:
    peer = Peer()
    with pytest.raises(RemoteProtocolError, match=r"max-frame-size is 511, the minimum is 512"):
        peer.feed(AMQP_HEADER, Open(container_id="c", max_frame_size=511))


def test_events_before_an_error_are_yielded_first() -> None:
    """The caller must see the end of every link and session."""
    server = opened().server
    frames = (BEGIN, End(), ATTACH, Open(container_id="again"))
    events = server.receive(b"".join(map(encode_frame, frames)))
    assert isinstance(next(events), Begun)
    assert isinstance(next(events), Ended)
    with pytest.raises(RemoteProtocolError):
        next(events)  # the attach after it is not decoded


def test_events_that_were_not_consumed_are_yielded_later() -> None:
    server = Peer().server
    data = AMQP_HEADER + encode_frame(Open(container_id="c")) + encode_frame(BEGIN)
    for event in server.receive(data):
        assert isinstance(event, Opened)
        break
    assert [type(event) for event in server.receive(b"")] == [Begun]


def test_an_error_is_shortened_to_the_frame_size_of_the_peer() -> None:
    """Frames of 512 bytes, and an error that quotes a name of 60,000."""
    peer = Peer()
    peer.feed(AMQP_HEADER, Open(container_id="c", max_frame_size=512), BEGIN)
    peer.sent_frames = b""
    named = Attach(name="n" * 60000, handle=2**20, role=False)
    _, answers = peer.fails(named)
    assert close_error(answers).condition == "amqp:connection:framing-error"
    assert len(peer.sent_frames) <= 512


@pytest.mark.parametrize("text", ["x" * 60000, "é" * 60000, "\U0001f600" * 60000])
def test_a_long_error_of_ours_is_shortened_too(text: str) -> None:
    peer = Peer()
    peer.feed(AMQP_HEADER, Open(container_id="c", max_frame_size=512))
    peer.server.close(Error(condition="amqp:internal-error", description=text))
    frame = b"".join(peer.server.data_to_send())
    assert 300 < len(frame) <= 512
    (close,) = performatives_in(frame)
    assert close.error.description in text


def test_a_frame_above_the_limit_of_the_peer_is_refused() -> None:
    """It is an error of the caller: a shortened attach would be another attach."""
    pair = Pair(server_open=Open(container_id="s", max_frame_size=512))
    session = pair.begun()
    with pytest.raises(LocalProtocolError, match="the limit of the peer is 512"):
        session.attach("n" * 600, role=True)


# -- closing --------------------------------------------------------------------------------------


def test_a_close_carries_its_error() -> None:
    pair = Pair().opened()
    error = Error(condition="amqp:connection:forced", description="The hub is shutting down.")
    pair.server.connection.close(error)
    pair.talk()
    assert pair.client.of(Closed) == [Closed(error)]
    assert pair.server.of(Closed) == [Closed(None)]


def test_a_second_close_sends_nothing() -> None:
    pair = Pair().opened()
    pair.client.connection.close()
    pair.client.connection.close()
    assert performatives_in(pair.client.take()) == [Close()]


def test_both_sides_may_close_at_once() -> None:
    pair = Pair().opened()
    pair.client.connection.close()
    pair.server.connection.close()
    pair.talk()
    assert pair.client.connection.state == pair.server.connection.state == "END"
    assert (
        performatives_in(pair.client.sent).count(Close())
        == performatives_in(pair.server.sent).count(Close())
        == 1
    )


def test_nothing_is_sent_after_our_close() -> None:
    """Late frames of the peer get no response, and later calls send nothing."""
    peer = opened()
    peer.feed(BEGIN)
    peer.server.close()
    peer.server.heartbeat()
    peer.server.sessions[0].send_flow()
    assert [type(s) for s in performatives_in(b"".join(peer.server.data_to_send()))] == [Close]
    echo = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True)
    late = b"".join(map(encode_frame, (echo, ATTACH, End())))
    assert list(peer.server.receive(late)) == []
    assert peer.feed(Close()) == []
    assert peer.server.state == "END"


def test_bytes_after_the_end_are_dropped() -> None:
    peer = opened()
    peer.feed(Close())
    for _ in range(100):
        assert list(peer.server.receive(bytes(10_000))) == []
    assert peer.server._reader.pending == 0


def test_a_heartbeat_gets_no_response() -> None:
    assert opened().feed(EMPTY_FRAME * 3) == []


def test_a_heartbeat_is_only_sent_on_an_open_connection() -> None:
    peer = Peer()
    peer.server.heartbeat()
    assert peer.server.data_to_send() == []
    peer.feed(AMQP_HEADER, Open(container_id="c"))
    peer.server.heartbeat()
    assert peer.server.data_to_send() == [EMPTY_FRAME]


def test_a_channel_above_the_limit_is_refused() -> None:
    peer = opened(limits=Limits(channel_max=5))
    assert [type(a) for a in peer.feed(BEGIN, channel=5)] == [Begin]
    condition, _ = peer.fails(BEGIN, channel=6)
    assert condition == "amqp:connection:framing-error"


def test_a_link_above_the_limit_is_refused() -> None:
    """The limit counts the links of all sessions."""
    peer = opened(limits=Limits(links_max=4))
    for channel in (0, 1):
        peer.feed(BEGIN, channel=channel)
        for handle in (0, 1):
            peer.feed(Attach(name=f"{handle}", handle=handle, role=True), channel=channel)
    condition, answers = peer.fails(Attach(name="2", handle=2, role=True), channel=1)
    assert condition == "amqp:resource-limit-exceeded"
    assert close_error(answers).condition == condition


def test_a_frame_above_the_limit_is_refused() -> None:
    peer = opened(limits=Limits(max_frame_size=600))
    peer.feed(BEGIN)
    condition, answers = peer.fails(Attach(name="n" * 600, handle=0, role=True))
    assert condition == "amqp:connection:framing-error"
    assert "the limit is 600" in str(close_error(answers))


def test_malformed_bytes_are_reported_with_their_position() -> None:
    peer = opened()
    with pytest.raises(MalformedBytes, match=r"open.container-id is mandatory"):
        peer.feed(b"\x00\x00\x00\x0f\x02\x00\x00\x00\x00\x53\x10\xc0\x02\x01\x40")
    assert "open.container-id is mandatory" in str(close_error(performatives_in(peer.sent_frames)))


def test_the_repr_of_a_connection_shows_its_state() -> None:
    pair = Pair()
    pair.begun()
    assert repr(pair.server.connection) == "<Connection server OPENED 1 sessions>"
    assert repr(pair.server.connection.sessions[0]) == "<Session channel=0 MAPPED 0 links>"
