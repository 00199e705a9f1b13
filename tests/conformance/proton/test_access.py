"""Access with Proton: SASL logins, tokens on $cbs, requests to $management, refusals."""

from __future__ import annotations

import hmac
import time
from base64 import b64encode
from typing import Any
from urllib.parse import quote_plus

import pytest

from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.conformance.proton.peer import (
    HUB,
    Message,
    Option,
    connected,
    proton,
    reader,
    reader_address,
    send,
    sender,
    utils,
)

NO_LOGIN: dict[str, Any] = {"user": None, "password": None}


def test_a_wrong_password_is_refused(hub: EmbeddedHub) -> None:
    with (
        pytest.raises(proton.ConnectionException, match="uthentication failed"),
        connected(hub, password="wrong"),
    ):
        pytest.fail("the connection was accepted")


def test_a_login_gives_what_its_rule_allows(hub: EmbeddedHub) -> None:
    hub.create_rule("listener", [Claim.LISTEN])
    with connected(hub, rule="listener") as connection:
        reader(connection)
        with pytest.raises(utils.LinkDetached) as refused:
            sender(connection)
        assert refused.value.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("options", [{"allowed_mechs": "ANONYMOUS"}, {"sasl_enabled": False}])
@pytest.mark.parametrize("attach", [sender, reader])
def test_a_client_without_credentials_is_refused(
    hub: EmbeddedHub, options: dict[str, Any], attach: Any
) -> None:
    with connected(hub, **NO_LOGIN, **options) as connection:
        with pytest.raises(utils.LinkDetached) as refused:
            attach(connection)
        assert refused.value.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("nowhere", "amqp:not-found"),
        (f"{HUB}/Partitions/9", "com.microsoft:argument-out-of-range"),
        (reader_address(), "amqp:not-allowed"),
    ],
)
def test_an_invalid_target_address_is_refused(
    hub: EmbeddedHub, address: str, condition: str
) -> None:
    with connected(hub) as connection:
        with pytest.raises(utils.LinkDetached) as refused:
            sender(connection, address)
        assert refused.value.condition == condition
        sender(connection).send(Message(body="the session is still open"))


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        (reader_address(9), "com.microsoft:argument-out-of-range"),
        (reader_address(0, "strangers"), "amqp:not-found"),
        (HUB, "amqp:not-allowed"),
    ],
)
def test_an_invalid_source_address_is_refused(
    hub: EmbeddedHub, address: str, condition: str
) -> None:
    with connected(hub) as connection:
        with pytest.raises(utils.LinkDetached) as refused:
            connection.create_receiver(address)
        assert refused.value.condition == condition


# -- $cbs and $management -------------------------------------------------------------------------


def test_a_token_on_cbs_opens_the_hub(hub: EmbeddedHub) -> None:
    resource = f"sb://{hub.authority}/{HUB}"
    with connected(hub, **NO_LOGIN, allowed_mechs="ANONYMOUS") as connection:
        reply = ask(
            connection,
            "$cbs",
            signed(resource, hub.find_rule(ROOT_RULE, HUB).key),
            operation="put-token",
            type="servicebus.windows.net:sastoken",
            name=resource,
        )
        assert reply.properties["status-code"] == 202
        sender(connection).send(Message(body="accepted"))


def signed(resource: str, key: str) -> str:
    """A shared access signature, as the documentation of the service describes it."""
    expiry = int(time.time()) + 600
    audience = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{audience}\n{expiry}".encode(), "sha256")
    signature = quote_plus(b64encode(digest))
    return f"SharedAccessSignature sr={audience}&sig={signature}&se={expiry}&skn={ROOT_RULE}"


def test_hub_properties_have_the_types_of_the_service(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        reply = ask(
            connection, "$management", operation="READ", type="com.microsoft:eventhub", name=HUB
        )
    assert reply.properties["status-code"] == 200
    assert type(reply.properties["status-code"]) is proton.int32
    properties = reply.body
    assert properties["name"] == HUB
    assert type(properties["partition_count"]) is proton.int32
    assert list(properties["partition_ids"].elements) == ["0", "1", "2", "3"]
    assert type(properties["created_at"]) is proton.timestamp


def test_partition_properties_have_the_types_of_the_service(hub: EmbeddedHub) -> None:
    send(hub, "a", "b")
    with connected(hub) as connection:
        properties = ask(
            connection,
            "$management",
            operation="READ",
            type="com.microsoft:partition",
            name=HUB,
            partition="0",
        ).body
    assert (properties["begin_sequence_number"], properties["last_enqueued_sequence_number"]) == (
        0,
        1,
    )
    assert type(properties["last_enqueued_sequence_number"]) is int  # a long
    assert type(properties["last_enqueued_offset"]) is str
    assert type(properties["last_enqueued_time_utc"]) is proton.timestamp
    assert properties["is_partition_empty"] is False


def ask(connection: Any, node: str, body: Any = None, **properties: Any) -> Any:
    """Send a request to a node, over one link each way, and wait for its reply."""
    replies = "my-replies"
    receiver = connection.create_receiver(
        node, credit=10, options=Option(lambda link: setattr(link.target, "address", replies))
    )
    question = Message(id="q-1", reply_to=replies, body=body, properties=properties)
    sender(connection, node).send(question)
    reply = receiver.receive()
    assert reply.correlation_id == "q-1"
    return reply
