"""The node $cbs: valid and invalid tokens, and the form of its replies."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.messages import Message, Properties, encode_message
from pumphouse.amqp.performatives import (
    Accepted,
)
from pumphouse.amqp.types import Int, Symbol
from pumphouse.hub.embedded import EmbeddedHub
from tests.hub.conftest import Connect
from tests.hub.peer import (
    HUB,
    Refused,
    event,
    rejection,
    root_key,
)

ANONYMOUS = Login()


def status(reply: Message) -> tuple[Any, Any]:
    return reply.application["status-code"], reply.application["status-description"]


async def test_a_token_gives_access_to_its_path(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    assert status(await peer.put_token(hub, HUB)) == (202, "Accepted")
    out = await peer.sender()
    assert await peer.send(out, event(b"let in")) == Accepted()
    into = await peer.receiver(credit=1)
    await peer.until(lambda: peer.bodies(into) == [b"let in"])


async def test_a_token_for_one_group_gives_no_access_to_another(
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


async def test_a_token_for_a_hub_that_does_not_exist_is_refused(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect(ANONYMOUS)
    for path in ("nowhere", "nowhere/ConsumerGroups/$Default", "nowhere/$management"):
        code, text = status(await peer.put_token(hub, path))
        assert code == 404
        resource = f"sb://{hub.server.authority}/nowhere"
        assert text.startswith(f"The messaging entity '{resource}' could not be found.")
        assert f"SystemTracker:{hub.server.authority}:nowhere" in text
    hub.create_hub("nowhere", 1)
    assert status(await peer.put_token(hub, "nowhere")) == (202, "Accepted")


async def test_only_a_valid_token_shows_which_hubs_exist(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect(ANONYMOUS)
    code, text = status(await peer.put_token(hub, "nowhere", key="another key"))
    assert code == 401
    assert "could not be found" not in text


async def test_an_invalid_token_is_refused_without_showing_a_key(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect(ANONYMOUS)
    reply = await peer.put_token(hub, HUB, key="another key")
    code, text = status(reply)
    assert code == 401
    assert isinstance(code, Int)  # the official client checks the type
    assert "InvalidSignature" in text
    assert (
        "error-condition" not in reply.application
    )  # with it, the official client drops code and text
    assert root_key(hub) not in text


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, None),
        ({"operation": "put-token"}, "token"),
        ({"operation": "delete-token", "name": "n", "type": "t"}, "token"),
        ({"operation": "put-token", "name": 1, "type": "t"}, "token"),
        ({"operation": "put-token", "name": "n", "type": "t"}, None),
        ({"operation": ["put-token"], "name": {}, "type": []}, "token"),
        ({"operation": "put-token", "name": "n", "type": "jwt"}, "no.jwt.at.all"),
        ({"operation": "put-token", "name": "n", "type": "t" * 5000}, "token"),
        ({"operation": "put-token", "name": "sb://" * 300, "type": "jwt"}, "token"),
        ({"operation": "put-token", "name": "n", "type": "jwt", "x" * 1025: 1}, "token"),
        ({Symbol("operation"): "put-token", "name": "n", "type": "jwt"}, ""),
    ],
)
async def test_invalid_requests_to_cbs_are_refused(
    connect: Connect, fields: dict[Any, Any], value: Any
) -> None:
    peer = await connect(ANONYMOUS)
    code, text = status(await peer.request("$cbs", fields, value=value))
    assert code in (400, 401)
    assert len(text) < 500


async def test_a_request_without_a_reply_link_is_rejected(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender("$cbs")
    error = rejection(await peer.send(out, encode_message(Message())))
    assert error.condition == "amqp:precondition-failed"
    error = rejection(await peer.send(out, b"\xff\xff"))
    assert error.condition == "amqp:decode-error"
    await peer.send(out, b"\xff\xff", settled=True)
    await peer.sync()
    assert peer.outcome(2) is None  # settled: no outcome is sent


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
async def test_a_reply_carries_the_request_id_with_its_type(
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
async def test_a_drain_without_waiting_replies_uses_up_the_credit(
    connect: Connect, node: str
) -> None:
    peer = await connect()
    into = await peer.receiver(node)
    into.grant(5, drain=True)
    await peer.until(lambda: into.credit == 0, "the drain")
    assert into.delivery_count == 5


@pytest.mark.parametrize("ids", [{"message_id": "i" * 1025}, {"reply_to": "r" * 1025},
                                 {"message_id": b"i" * 1025}])  # fmt: skip
async def test_a_request_with_a_long_id_is_rejected(connect: Connect, ids: dict[str, Any]) -> None:
    """Its reply would repeat the id."""
    peer = await connect()
    out, _ = await peer.sender("$cbs"), await peer.receiver("$cbs", credit=1)
    message = Message(properties=Properties(**ids))
    error = rejection(await peer.send(out, encode_message(message)))
    assert error.condition == "amqp:invalid-field"
    assert "has 1025 characters; at most 1024 are allowed" in (error.description or "")
