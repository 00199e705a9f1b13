"""Error texts end as those of the service do."""

from __future__ import annotations

import re

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.performatives import Rejected
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.tracking import tracked
from tests.hub.conftest import Connect
from tests.hub.peer import HUB, Refused, event

ENDING = re.compile(
    r" TrackingId:[0-9a-f-]{36}_G0, SystemTracker:(?P<tracker>\S+), "
    r"Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"
)


def test_a_tracked_text() -> None:
    assert tracked("It failed.", "an-id", "host:hub", 1_700_000_000.7) == (
        "It failed. TrackingId:an-id_G0, SystemTracker:host:hub, Timestamp:2023-11-14T22:13:20"
    )


async def test_a_refused_link(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(Login())
    with pytest.raises(Refused) as refused:
        await peer.sender()
    assert ENDING.search(refused.value.error.description or "")


async def test_a_rejected_event(connect: Connect) -> None:
    peer = await connect()
    outcome = await peer.send(await peer.sender(), b"\xff")
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    ending = ENDING.search(outcome.error.description or "")
    assert ending is not None
    assert ending["tracker"].endswith(f":{HUB}/Partitions/0")


async def test_two_errors_have_two_ids(connect: Connect) -> None:
    peer = await connect()
    link = await peer.sender()
    texts = {str(await peer.send(link, b"\xff")) for _ in range(3)}
    assert len(texts) == 3
    assert await peer.send(link, event(b"good"))
