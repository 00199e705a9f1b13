"""Attaches that are refused, by their address or their terminus."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp import events as amqp_events
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Source,
    Target,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import HubNotFound
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.namespace import EventHub, Namespace
from tests.hub.conftest import Connect
from tests.hub.peer import (
    HUB,
    READ_FROM,
    SEND_TO,
    Refused,
)


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
async def test_an_invalid_address_is_refused(
    connect: Connect, role: bool, address: Any, condition: str
) -> None:
    peer = await connect()
    ends = {"source": Source(address=address), "target": Target(address=address)}
    with pytest.raises(Refused) as refused:
        await peer.attach("lost", role, **ends)
    assert refused.value.error.condition.startswith(condition)
    await peer.sender()  # the session is still usable


async def test_the_cost_of_a_refusal_does_not_depend_on_the_number_of_hubs(
    hub: EmbeddedHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may request thousands of unknown hubs of a namespace with thousands of hubs."""
    for number in range(20):
        hub.create_hub(f"other-{number}", 1)
    peer = await connect()

    def all_hubs(namespace: Namespace) -> list[EventHub]:
        raise AssertionError("all hubs are looked at")

    monkeypatch.setattr(Namespace, "hubs", property(all_hubs))
    with pytest.raises(Refused, match="amqp:not-found"):
        await peer.sender("nowhere")
    with pytest.raises(HubNotFound) as failure:
        hub.namespace.hub("nowhere")
    assert str(failure.value).count("other-") == 9  # and the first hub


@pytest.mark.parametrize(
    ("role", "terminus"),
    [
        (SENDER, Source(address=SEND_TO)),
        (RECEIVER, Target(address=READ_FROM)),
        *[(role, odd) for role in (SENDER, RECEIVER) for odd in (None, "text", Accepted(), [1])],
    ],
)
async def test_a_terminus_of_the_wrong_type_is_refused(
    connect: Connect, role: bool, terminus: Any
) -> None:
    """For example a source in place of a target."""
    peer = await connect()
    ends = {"target": terminus} if role == SENDER else {"source": terminus}
    with pytest.raises(Refused) as refused:
        await peer.attach("odd", role, **ends)
    assert refused.value.error.condition == "amqp:invalid-field"


async def test_a_refusal_fits_the_frame_limit_of_the_peer(connect: Connect) -> None:
    """The error quotes an address that arrived in one large frame."""
    peer = await connect(max_frame_size=512)
    with pytest.raises(Refused) as refused:
        await peer.sender("/Partitions/" * 80)
    assert len(refused.value.error.description or "") > 200


async def test_an_attach_whose_response_cannot_be_encoded_closes_the_connection(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """The response repeats the name, which does not fit the peer's frame limit."""
    hub.create_group(HUB, "other")
    peer = await connect(max_frame_size=512)
    peer.session.attach(
        "n" * 600,
        RECEIVER,
        source=Source(address=READ_FROM),
        target=Target(address="here"),
        properties={Symbol("com.microsoft:epoch"): 1},
    )
    error = await peer.until_closed()
    assert error is not None
    assert error.condition == "amqp:frame-size-too-small"
    await peer.drop()
    again = await connect()
    await again.receiver()  # no reader with an epoch is left


async def test_a_long_address_is_refused_and_not_quoted(connect: Connect) -> None:
    peer = await connect()
    for attach in (peer.sender, peer.receiver):
        with pytest.raises(Refused) as refused:
            await attach("a:" * 30_000)
        assert refused.value.error.condition == "amqp:invalid-field"
        assert "The address has 60000 characters; at most 1024" in str(refused.value.error)
    await peer.sender()


async def test_a_long_name_of_a_link_ends_the_session(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    await peer.sender(name="n" * 1024)
    peer.session.attach("n" * 1025, SENDER, target=Target(address=SEND_TO))
    await peer.until(lambda: peer.of(amqp_events.Ended), "the end of the session")
    error = peer.of(amqp_events.Ended)[0].error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert "The name of the link has 1025 characters; at most 1024" in (error.description or "")
    await other.sender()


async def test_a_long_name_of_a_reader_is_refused(connect: Connect) -> None:
    peer = await connect()
    name = Symbol("com.microsoft:receiver-name")
    await peer.receiver(properties={name: "n" * 256})
    with pytest.raises(Refused) as refused:
        await peer.receiver(name="other", properties={name: "n" * 257})
    assert refused.value.error.condition == "amqp:invalid-field"
