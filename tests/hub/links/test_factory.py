"""Attaches that are refused, by their address or their terminus."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Source,
    Target,
)
from pumphouse.amqp.types import Symbol
from pumphouse.hub.embedded import EmbeddedHub
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
        await peer.sender("/Partitions/" * 3000)
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
    assert error.condition == "amqp:internal-error"
    await peer.drop()
    again = await connect()
    await again.receiver()  # no reader with an epoch is left
