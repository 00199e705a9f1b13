"""The blocking connection: replies that belong to no request."""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import Mock

import pytest

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.messages import Message, Properties, encode_message
from pumphouse.client.bulk.blocking_connection import BlockingConnection
from pumphouse.client.routes import Route


@pytest.mark.parametrize("correlation_id", [[1], {"a": 1}, 7, b"1", None, "another request"])
def test_a_reply_with_an_unknown_correlation_id_is_ignored(correlation_id: Any) -> None:
    """Lists and maps are not valid ids, but a peer can send them."""
    payload = encode_message(Message(properties=Properties(correlation_id=correlation_id)))
    with socket.socket() as unconnected:
        connection = BlockingConnection(unconnected, Route("127.0.0.1", 1, "localhost"))
        connection.on_reply(Delivered(Mock(), 0, 0, True, payload, len(payload)))
    assert not connection.has_reply("1")
