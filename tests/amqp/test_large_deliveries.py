"""Deliveries of many frames: their common performative is decoded once."""

from dataclasses import replace

import pytest

from pumphouse.amqp.connection import SERVER, Connection
from pumphouse.amqp.events import AttachAsked, Delivered
from pumphouse.amqp.frames import AMQP_HEADER, HEAD, SASL_HEADER, encode_frame
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import (
    SENDER,
    Attach,
    Begin,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.sasl import ANONYMOUS
from pumphouse.errors import RemoteProtocolError

MORE = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0, more=True)


@pytest.fixture
def server() -> Connection:
    """A server with two links, handles 0 and 1, on which a client sends."""
    server = Connection(SERVER, Open(container_id="server"))
    login = SASL_HEADER + encode_frame(SaslInit(mechanism=ANONYMOUS), kind=1) + AMQP_HEADER
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    list(server.receive(login + encode_frame(Open(container_id="client")) + encode_frame(begin)))
    for handle in (0, 1):
        attach = Attach(
            name=f"link {handle}",
            handle=handle,
            role=SENDER,
            source=Source(address="here"),
            target=Target(address="there"),
            initial_delivery_count=0,
        )
        for event in server.receive(encode_frame(attach)):
            if isinstance(event, AttachAsked):
                event.link.send_attach(replace(attach, role=event.link.role))
                assert isinstance(event.link, ReceiverLink)
                event.link.grant(10)
    return server


def deliveries(server: Connection, *frames: bytes) -> list[tuple[str, int, bytes]]:
    return [
        (event.link.name, event.delivery_id, event.payload)
        for event in server.receive(b"".join(frames))
        if isinstance(event, Delivered)
    ]


def test_the_frames_of_a_delivery_are_joined(server: Connection) -> None:
    frames = [encode_frame(MORE, 0, piece) for piece in (b"a", b"bc", b"", b"d")]
    last = encode_frame(replace(MORE, more=False), 0, b"e")
    assert deliveries(server, *frames, last) == [("link 0", 0, b"abcde")]


def test_alternating_deliveries_of_two_links_do_not_mix(server: Connection) -> None:
    other = replace(MORE, handle=1, delivery_id=1, delivery_tag=b"1")
    transfers = [(MORE, b"a"), (other, b"1"), (MORE, b"b"), (other, b"2")]
    transfers += [(replace(other, more=False), b"3"), (replace(MORE, more=False), b"c")]
    frames = [encode_frame(transfer, 0, piece) for transfer, piece in transfers]
    assert deliveries(server, *frames) == [("link 1", 1, b"123"), ("link 0", 0, b"abc")]


def test_a_cached_performative_does_not_match_past_the_end_of_a_frame(server: Connection) -> None:
    fields = b"\x43\x43\xa0\x010\x43\x42\x41\x50\x00"  # the last is rcv-settle-mode, zero
    body = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 7)) + fields
    unsplit = HEAD.pack(8 + len(body), 2, 0, 0) + body
    assert deliveries(server, unsplit) == []
    # One byte short; the missing byte is the first of the next frame.
    short = HEAD.pack(7 + len(body), 2, 0, 0) + body[:-1]
    with pytest.raises(RemoteProtocolError, match="passes the end"):
        deliveries(server, short, unsplit)
