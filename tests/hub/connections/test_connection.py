"""Connections on a real socket: protocol headers, logins and protocol errors."""

from __future__ import annotations

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.frames import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    encode_frame,
)
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
)
from pumphouse.amqp.sasl import MECHANISMS, plain_response
from pumphouse.errors import AuthError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.amqp.connection_pair import performatives_in
from tests.hub.conftest import Connect
from tests.hub.peer import (
    Peer,
    Refused,
    send_raw,
)

ANONYMOUS = Login()
INIT = encode_frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME)


# -- protocol headers and the login ---------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [TLS_HEADER, b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.0\r\n\r\n", bytes(8)]
)
async def test_another_protocol_gets_our_protocol_header(hub: EmbeddedHub, start: bytes) -> None:
    assert await send_raw(hub, start) == SASL_HEADER


async def test_amqp_without_sasl_is_anonymous(hub: EmbeddedHub) -> None:
    """Accepted as anonymous: its tokens decide about access."""
    responses = performatives_in(
        await send_raw(
            hub, AMQP_HEADER + encode_frame(Open(container_id="c")) + encode_frame(Close())
        )
    )
    assert responses[0] == AMQP_HEADER
    assert isinstance(responses[1], Open)
    assert responses[2:] == [Close()]


async def test_the_open_frame_of_the_hub_has_its_limits(hub: EmbeddedHub, connect: Connect) -> None:
    remote = (await connect()).amqp.remote
    assert remote is not None
    assert (remote.max_frame_size, remote.channel_max, remote.idle_time_out) == (
        65536,
        4999,
        240000,
    )


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "MSSBCBS"])
async def test_a_login_without_a_key_has_no_access_before_a_token(
    connect: Connect, mechanism: str
) -> None:
    peer = await connect(Login(mechanism))
    with pytest.raises(Refused) as refused:
        await peer.sender()
    assert refused.value.error.condition == "amqp:unauthorized-access"


async def test_plain_gives_the_claims_of_its_rule(hub: EmbeddedHub, connect: Connect) -> None:
    hub.create_rule("listen", [Claim.LISTEN], key="listen-key")
    peer = await connect(Login("PLAIN", plain_response("listen", "listen-key")))
    await peer.receiver()
    with pytest.raises(Refused) as refused:
        await peer.sender()
    assert refused.value.error.condition == "amqp:unauthorized-access"
    assert "'Send' claim(s) are required" in str(refused.value.error.description)


@pytest.mark.parametrize("password", ["wrong", "", "é"])
async def test_plain_with_a_wrong_key_is_refused(hub: EmbeddedHub, password: str) -> None:
    with pytest.raises(AuthError):
        await Peer.connect(hub, Login("PLAIN", plain_response(ROOT_RULE, password)))


@pytest.mark.parametrize("mechanism", ["DIGEST-MD5", ""])
async def test_an_unknown_mechanism_is_refused(hub: EmbeddedHub, mechanism: str) -> None:
    init = encode_frame(SaslInit(mechanism=mechanism), kind=SASL_FRAME)
    assert performatives_in(await send_raw(hub, SASL_HEADER + init)) == [
        SASL_HEADER,
        SaslMechanisms(mechanisms=MECHANISMS),
        SaslOutcome(code=1),
    ]


async def test_a_whole_session_may_arrive_in_one_packet(hub: EmbeddedHub) -> None:
    """Login, header, open, begin, two attaches and a close, without waiting in between."""
    begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    to_cbs = Attach(name="a", handle=0, role=SENDER, target=Target(address="$cbs"))
    from_cbs = Attach(name="b", handle=1, role=RECEIVER, source=Source(address="$cbs"))
    frames = (Open(container_id="c"), begin, to_cbs, from_cbs, Close())
    data = SASL_HEADER + INIT + AMQP_HEADER + b"".join(map(encode_frame, frames))
    kinds = [type(response).__name__ for response in performatives_in(await send_raw(hub, data))]
    assert kinds[:5] == ["bytes", "SaslMechanisms", "SaslOutcome", "bytes", "Open"]
    assert kinds[5:] == ["Begin", "Attach", "Flow", "Attach", "Close"]


# -- protocol errors ------------------------------------------------------------------------------


async def test_a_protocol_violation_closes_the_connection_with_an_error(connect: Connect) -> None:
    peer = await connect()
    peer.writer.write(encode_frame(Open(container_id="again")))
    error = await peer.until_closed()
    assert error is not None
    assert error.condition == "amqp:illegal-state"


async def test_a_frame_above_the_limit_closes_the_connection(connect: Connect) -> None:
    peer = await connect()
    peer.writer.write((65537).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    error = await peer.until_closed()
    assert error is not None
    assert error.condition == "amqp:connection:framing-error"
    assert RemoteProtocolError.condition == error.condition
