"""The node $management: replies about hubs and partitions, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.hub.embedded import EmbeddedHub
from tests.hub.conftest import Connect
from tests.hub.peer import (
    HUB,
    Clock,
    event,
)

ANONYMOUS = Login()

READ_HUB = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB}
READ_PARTITION = {**READ_HUB, "type": "com.microsoft:partition", "partition": "0"}


async def test_management_describes_a_hub_and_a_partition(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    peer = await connect()
    description = (await peer.request("$management", READ_HUB)).value
    assert (description["name"], description["partition_count"]) == (HUB, 2)
    assert description["partition_ids"].items == ("0", "1")
    out = await peer.sender()
    await peer.send(out, event(b"x"))
    description = (await peer.request(f"{HUB}/$management", READ_PARTITION)).value
    assert description["last_enqueued_sequence_number"] == 0
    assert description["last_enqueued_offset"] == "0"
    assert description["last_enqueued_time_utc"] == clock.time * 1000
    assert description["is_partition_empty"] is False


@pytest.mark.parametrize(
    ("fields", "code", "condition"),
    [
        ({}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": "WRITE"}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": ["READ"]}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "type": {"a": []}}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": "x" * 1024}, 400, "amqp:not-implemented"),
        ({**READ_HUB, "operation": "x" * 1025}, 400, "amqp:invalid-field"),
        ({**READ_HUB, "name": "a://" * 10_000}, 400, "amqp:invalid-field"),
        ({**READ_HUB, "x" * 1025: 1}, 400, "amqp:invalid-field"),
        ({**READ_HUB, "security_token": "x" * 65_537}, 400, "amqp:invalid-field"),
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
async def test_management_refuses_invalid_requests(
    connect: Connect, fields: dict[Any, Any], code: int, condition: str
) -> None:
    peer = await connect()
    reply = await peer.request("$management", fields)
    assert reply.application["status-code"] == code
    assert reply.application["error-condition"] == condition
    assert reply.value is None


async def test_management_requires_a_token(connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    reply = await peer.request("$management", READ_HUB)
    assert reply.application["status-code"] == 401
