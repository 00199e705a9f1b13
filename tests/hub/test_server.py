"""The hub on a real socket, judged by a scripted peer: who gets in, and what others are told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.frames import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    encode_frame,
)
from pumphouse.amqp.messages import Message, Properties, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
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
from pumphouse.amqp.types import Int, Symbol
from pumphouse.errors import AuthError, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.amqp.pair import said
from tests.hub.conftest import Connect
from tests.hub.peer import (
    HUB,
    READ_FROM,
    SEND_TO,
    Clock,
    Peer,
    Refused,
    event,
    rejection,
    root_key,
    say_raw,
)

ANONYMOUS = Login()
INIT = encode_frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME)


# -- protocol headers and the login ---------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [TLS_HEADER, b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.0\r\n\r\n", bytes(8)]
)
async def test_another_protocol_is_answered_with_ours(hub: EmbeddedHub, start: bytes) -> None:
    assert await say_raw(hub, start) == SASL_HEADER


async def test_amqp_without_a_login(hub: EmbeddedHub) -> None:
    """Let in, as anonymous: what it may do is decided by the tokens it puts."""
    answers = said(
        await say_raw(
            hub, AMQP_HEADER + encode_frame(Open(container_id="c")) + encode_frame(Close())
        )
    )
    assert answers[0] == AMQP_HEADER
    assert isinstance(answers[1], Open)
    assert answers[2:] == [Close()]


async def test_what_the_hub_says_of_itself(hub: EmbeddedHub, connect: Connect) -> None:
    remote = (await connect()).amqp.remote
    assert remote is not None
    assert (remote.max_frame_size, remote.channel_max, remote.idle_time_out) == (
        65536,
        4999,
        240000,
    )


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "MSSBCBS"])
async def test_a_login_that_waits_for_tokens(connect: Connect, mechanism: str) -> None:
    peer = await connect(Login(mechanism))
    with pytest.raises(Refused) as refused:
        await peer.sender()
    assert refused.value.error.condition == "amqp:unauthorized-access"


async def test_plain_opens_everything_its_rule_allows(hub: EmbeddedHub, connect: Connect) -> None:
    hub.create_rule("listen", [Claim.LISTEN], key="listen-key")
    peer = await connect(Login("PLAIN", plain_response("listen", "listen-key")))
    await peer.receiver()
    with pytest.raises(Refused) as refused:
        await peer.sender()
    assert refused.value.error.condition == "amqp:unauthorized-access"
    assert "'Send' claim(s) are required" in str(refused.value.error.description)


@pytest.mark.parametrize("password", ["wrong", "", "é"])
async def test_plain_with_a_wrong_key(hub: EmbeddedHub, password: str) -> None:
    with pytest.raises(AuthError):
        await Peer.connect(hub, Login("PLAIN", plain_response(ROOT_RULE, password)))


@pytest.mark.parametrize("mechanism", ["DIGEST-MD5", ""])
async def test_an_unknown_mechanism(hub: EmbeddedHub, mechanism: str) -> None:
    init = encode_frame(SaslInit(mechanism=mechanism), kind=SASL_FRAME)
    assert said(await say_raw(hub, SASL_HEADER + init)) == [
        SASL_HEADER,
        SaslMechanisms(mechanisms=MECHANISMS),
        SaslOutcome(code=1),
    ]


async def test_everything_in_one_packet(hub: EmbeddedHub) -> None:
    """Login, header, open, begin, two attaches and a close, and no waiting in between."""
    begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    to_cbs = Attach(name="a", handle=0, role=SENDER, target=Target(address="$cbs"))
    from_cbs = Attach(name="b", handle=1, role=RECEIVER, source=Source(address="$cbs"))
    frames = (Open(container_id="c"), begin, to_cbs, from_cbs, Close())
    data = SASL_HEADER + INIT + AMQP_HEADER + b"".join(map(encode_frame, frames))
    kinds = [type(answer).__name__ for answer in said(await say_raw(hub, data))]
    assert kinds[:5] == ["bytes", "SaslMechanisms", "SaslOutcome", "bytes", "Open"]
    assert kinds[5:] == ["Begin", "Attach", "Flow", "Attach", "Close"]


# -- $cbs -----------------------------------------------------------------------------------------


def status(reply: Message) -> tuple[Any, Any]:
    return reply.application["status-code"], reply.application["status-description"]


async def test_a_token_opens_what_it_was_put_for(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    assert status(await peer.put_token(hub, HUB)) == (202, "Accepted")
    out = await peer.sender()
    assert await peer.send(out, event(b"let in")) == Accepted()
    into = await peer.receiver(credit=1)
    await peer.until(lambda: peer.bodies(into) == [b"let in"])


async def test_a_token_for_one_group_does_not_open_another(
    hub: EmbeddedHub, connect: Connect
) -> None:
    hub.create_group(HUB, "second")
    peer = await connect(ANONYMOUS)
    await peer.put_token(hub, f"{HUB}/ConsumerGroups/second")
    await peer.receiver(f"{HUB}/ConsumerGroups/second/Partitions/0")
    for attach in (peer.receiver, peer.sender):
        with pytest.raises(Refused) as refused:
            await attach(name="other")
        assert refused.value.error.condition == "amqp:unauthorized-access"


async def test_a_wrong_token_is_told_and_nothing_else(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    reply = await peer.put_token(hub, HUB, key="another key")
    code, text = status(reply)
    assert code == 401
    assert isinstance(code, Int)  # the official client looks at the type
    assert "InvalidSignature" in text
    assert "error-condition" not in reply.application  # with it, it loses code and text
    assert root_key(hub) not in text


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        ({}, None),
        ({"operation": "put-token"}, "token"),
        ({"operation": "delete-token", "name": "n", "type": "t"}, "token"),
        ({"operation": "put-token", "name": 1, "type": "t"}, "token"),
        ({"operation": "put-token", "name": "n", "type": "t"}, None),
        ({"operation": ["put-token"], "name": {}, "type": []}, "token"),
        ({"operation": "put-token", "name": "n", "type": "jwt"}, "no.jwt.at.all"),
        ({"operation": "put-token", "name": "n", "type": "t" * 5000}, "token"),
        ({Symbol("operation"): "put-token", "name": "n", "type": "jwt"}, ""),
    ],
)
async def test_requests_to_cbs_that_are_wrong(
    connect: Connect, asked: dict[Any, Any], value: Any
) -> None:
    peer = await connect(ANONYMOUS)
    code, text = status(await peer.ask("$cbs", asked, value=value))
    assert code in (400, 401)
    assert len(text) < 500


async def test_a_request_without_a_way_back(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender("$cbs")
    error = rejection(await peer.send(out, encode_message(Message())))
    assert error.condition == "amqp:precondition-failed"
    error = rejection(await peer.send(out, b"\xff\xff"))
    assert error.condition == "amqp:decode-error"
    await peer.send(out, b"\xff\xff", settled=True)
    await peer.sync()
    assert peer.outcome(2) is None  # settled: nobody wants to know


@pytest.mark.parametrize(
    ("message_id", "back"),
    [
        (UUID(int=5), UUID(int=5)),
        ("text", "text"),
        (b"bytes", b"bytes"),
        (7, 7),
        ([[[]]], None),
        ({"a": 1}, None),
    ],
)
async def test_a_reply_carries_the_id_in_its_own_type(
    connect: Connect, message_id: Any, back: Any
) -> None:
    peer = await connect()
    into = await peer.receiver("$management", credit=1)
    out = await peer.sender("$management")
    request = Message(properties=Properties(message_id=message_id))
    assert await peer.send(out, encode_message(request)) == Accepted()
    await peer.until(lambda: peer.deliveries(into))
    (reply,) = peer.messages(into)
    assert reply.properties is not None
    assert reply.properties.correlation_id == back
    assert type(reply.properties.correlation_id) is type(back)


@pytest.mark.parametrize("node", ["$cbs", "$management"])
async def test_a_drain_where_no_reply_waits(connect: Connect, node: str) -> None:
    peer = await connect()
    into = await peer.receiver(node)
    into.grant(5, drain=True)
    await peer.until(lambda: into.credit == 0, "the drain")
    assert into.delivery_count == 5


# -- $management ----------------------------------------------------------------------------------

READ_HUB = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB}
READ_PARTITION = {**READ_HUB, "type": "com.microsoft:partition", "partition": "0"}


async def test_what_management_tells_of_a_hub_and_a_partition(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    peer = await connect()
    told = (await peer.ask("$management", READ_HUB)).value
    assert (told["name"], told["partition_count"]) == (HUB, 2)
    assert told["partition_ids"].items == ("0", "1")
    out = await peer.sender()
    await peer.send(out, event(b"x"))
    told = (await peer.ask(f"{HUB}/$management", READ_PARTITION)).value
    assert told["last_enqueued_sequence_number"] == 0
    assert told["last_enqueued_offset"] == "0"
    assert told["last_enqueued_time_utc"] == clock.time * 1000
    assert told["is_partition_empty"] is False


@pytest.mark.parametrize(
    ("asked", "code", "condition"),
    [
        ({}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": "WRITE"}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": ["READ"]}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "type": {"a": []}}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": "x" * 100_000}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "name": "nowhere"}, 404, "amqp:not-found"),
        ({**READ_HUB, "name": ""}, 400, "com.microsoft:argument-error"),
        ({**READ_HUB, "name": [1]}, 400, "com.microsoft:argument-error"),
        ({**READ_PARTITION, "partition": "2"}, 400, "com.microsoft:argument-out-of-range"),
        ({**READ_PARTITION, "partition": "²"}, 400, "com.microsoft:argument-out-of-range"),
        ({**READ_PARTITION, "partition": 0}, 400, "com.microsoft:argument-error"),
        (
            {**READ_HUB, "security_token": "SharedAccessSignature sr=x&sig=y&se=1&skn=z"},
            401,
            "amqp:unauthorized-access",
        ),
    ],
)
async def test_management_refuses(
    connect: Connect, asked: dict[Any, Any], code: int, condition: str
) -> None:
    peer = await connect()
    reply = await peer.ask("$management", asked)
    assert reply.application["status-code"] == code
    assert reply.application["error-condition"] == condition
    assert reply.value is None


async def test_management_asks_for_a_token(connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    reply = await peer.ask("$management", READ_HUB)
    assert reply.application["status-code"] == 401


# -- attaches that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "address", "condition"),
    [
        (SENDER, "nowhere", "amqp:not-found"),
        (SENDER, f"{HUB}/Partitions/2", "com.microsoft:argument-out-of-range"),
        (SENDER, READ_FROM, "amqp:not-allowed"),
        (SENDER, None, "amqp:invalid-field"),
        (SENDER, 5, "amqp:invalid-field"),
        (SENDER, "", "com.microsoft:argument-error"),
        (SENDER, f"{HUB}/Publishers/{'p' * 257}", "com.microsoft:argument-error"),
        (RECEIVER, HUB, "amqp:not-allowed"),
        (RECEIVER, f"{HUB}/ConsumerGroups/nobody/Partitions/0", "amqp:not-found"),
        (RECEIVER, f"{HUB}/ConsumerGroups/$Default/Partitions/9", "com.microsoft:argument-out"),
        (RECEIVER, "nowhere/ConsumerGroups/$Default/Partitions/0", "amqp:not-found"),
    ],
)
async def test_an_address_that_leads_nowhere(
    connect: Connect, role: bool, address: Any, condition: str
) -> None:
    peer = await connect()
    ends = {"source": Source(address=address), "target": Target(address=address)}
    with pytest.raises(Refused) as refused:
        await peer.attach("lost", role, **ends)
    assert refused.value.error.condition.startswith(condition)
    await peer.sender()  # the session lives on


@pytest.mark.parametrize(
    ("role", "terminus"),
    [
        (SENDER, Source(address=SEND_TO)),
        (RECEIVER, Target(address=READ_FROM)),
        *[(role, odd) for role in (SENDER, RECEIVER) for odd in (None, "text", Accepted(), [1])],
    ],
)
async def test_an_end_of_the_wrong_kind(connect: Connect, role: bool, terminus: Any) -> None:
    """A source where a target belongs, and the like: refused, whatever it is."""
    peer = await connect()
    ends = {"target": terminus} if role == SENDER else {"source": terminus}
    with pytest.raises(Refused) as refused:
        await peer.attach("odd", role, **ends)
    assert refused.value.error.condition == "amqp:invalid-field"


async def test_a_refusal_fits_into_the_frames_of_the_peer(connect: Connect) -> None:
    """It quotes an address that came in one large frame; the answer goes out in a small one."""
    peer = await connect(max_frame_size=512)
    with pytest.raises(Refused) as refused:
        await peer.sender("/Partitions/" * 3000)
    assert len(refused.value.error.description or "") > 200


async def test_an_attach_that_cannot_be_answered(hub: EmbeddedHub, connect: Connect) -> None:
    """The answer repeats the name, which the peer's own frames cannot hold: its own fault."""
    hub.create_group(HUB, "other")
    peer = await connect(max_frame_size=512)
    peer.session.attach(
        "n" * 600,
        RECEIVER,
        source=Source(address=READ_FROM),
        target=Target(address="here"),
        properties={Symbol("com.microsoft:epoch"): 1},
    )
    error = await peer.until_gone()
    assert error is not None
    assert error.condition == "amqp:internal-error"
    await peer.drop()
    again = await connect()
    await again.receiver()  # nobody of a higher epoch is left there


async def test_the_protocol_broken_is_told_and_hung_up_on(connect: Connect) -> None:
    peer = await connect()
    peer.writer.write(encode_frame(Open(container_id="again")))
    error = await peer.until_gone()
    assert error is not None
    assert error.condition == "amqp:illegal-state"


async def test_frames_that_are_too_large(connect: Connect) -> None:
    peer = await connect()
    peer.writer.write((65537).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    error = await peer.until_gone()
    assert error is not None
    assert error.condition == "amqp:connection:framing-error"
    assert RemoteProtocolError.condition == error.condition
