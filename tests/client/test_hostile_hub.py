"""Our clients against a hub that breaks the rules: a clear error in time, with bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.frames import SASL_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.links import Link, ReceiverLink
from pumphouse.amqp.messages import Message, Properties
from pumphouse.amqp.performatives import (
    Attach,
    Close,
    Error,
    Flow,
    Rejected,
    SaslMechanisms,
)
from pumphouse.amqp.types import Symbol, Timestamp, array_of
from pumphouse.client.bulk.client import BulkClient
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    PumphouseError,
    RemoteProtocolError,
)
from tests.client.hostile_calls import (
    bulk,
    check_error,
    faults,
    groups,
    names,
    native,
    partition,
    properties,
    send,
)
from tests.client.hostile_hub import PARTITION, PoliteHub

FRAME = struct.Struct(">IBBH")


# -- before the session ---------------------------------------------------------------------------


class Silent(PoliteHub):
    ends_by_deadline = True

    def run(self) -> None:
        self.wait()


class EndlessHeader(PoliteHub):
    def run(self) -> None:
        self.send_until_closed(b"AMQP" * 1000)


class HugeSaslFrame(PoliteHub):
    def run(self) -> None:
        self.send(SASL_HEADER + FRAME.pack(0xFFFFFFFF, 2, 1, 0))
        self.wait()


class SlowBytes(PoliteHub):
    """One byte after the other, for much longer than the deadline."""

    ends_by_deadline = True

    def run(self) -> None:
        offer = SASL_HEADER + encode_frame(
            SaslMechanisms(mechanisms=("ANONYMOUS",) * 1000), kind=SASL_FRAME
        )
        for byte in offer:
            self.send(bytes([byte]))
            if self.stop.wait(0.05):
                return


class EndlessMechanisms(PoliteHub):
    """Every offer asks for a login, which this hub does not read."""

    ends_by_deadline = True

    def run(self) -> None:
        self.send(SASL_HEADER)
        offer = encode_frame(SaslMechanisms(mechanisms=("ANONYMOUS",)), kind=SASL_FRAME)
        self.send_until_closed(offer * 1000)


class GarbageAfterOpen(PoliteHub):
    def flush(self) -> None:
        super().flush()
        if self.amqp.sessions:
            self.send(b"\xde\xad\xbe\xef" * 100)


class Redirect(PoliteHub):
    def flush(self) -> None:
        super().flush()
        if self.amqp.sessions:
            info = {Symbol("network-host"): "evil.example", Symbol("port"): 5671}
            error = Error(condition="amqp:connection:redirect", description="go there", info=info)
            self.send(encode_frame(Close(error=error)))
            self.wait()


class LongReason(PoliteHub):
    def flush(self) -> None:
        super().flush()
        if self.amqp.sessions:
            error = Error(condition="amqp:internal-error", description="x\x1b" * 400_000)
            self.send(encode_frame(Close(error=error)))
            self.wait()


OPENING = [
    (Silent, r"did not open the connection (within|in) 1 s"),
    (EndlessHeader, "sent invalid AMQP"),
    (HugeSaslFrame, "sent invalid AMQP: .*frame of 4294967295 bytes"),
    (SlowBytes, r"did not open the connection (within|in) 1 s"),
    (EndlessMechanisms, "did not open the connection|does not read|accepted no bytes|broke"),
    (GarbageAfterOpen, "sent invalid AMQP: .*frame of 3735928559 bytes"),
    (Redirect, "closed the connection: go there"),
    (LongReason, "closed the connection: x"),
]


@pytest.mark.parametrize(("hub", "sentence"), OPENING, ids=names)
async def test_a_hub_that_does_not_open_properly(hub: type[PoliteHub], sentence: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        await native(hub, properties)
    check_error(failed.value, sentence)


@pytest.mark.parametrize(("hub", "sentence"), OPENING, ids=names)
def test_a_hub_that_does_not_open_properly_to_a_bulk_client(
    hub: type[PoliteHub], sentence: str
) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        bulk(hub)
    check_error(failed.value, sentence)


# -- links and requests ---------------------------------------------------------------------------


class NoAttach(PoliteHub):
    ends_by_deadline = True

    def on_attach(self, link: Link, attach: Attach) -> None:
        """No response."""


class NoReply(PoliteHub):
    ends_by_deadline = True

    def on_request(self, node: str, request: Message) -> None:
        """No reply."""


class WrongReplies(PoliteHub):
    """Replies to requests that were not made."""

    ends_by_deadline = True

    def on_request(self, node: str, request: Message) -> None:
        if node == "$cbs":
            super().on_request(node, request)
            return
        for wrong in ("other", 7, b"1"):
            self.reply(node, Message(properties=Properties(message_id=wrong)), {"status-code": 200})


class EchoFlood(PoliteHub):
    """Asks for flows without an end, and reads none of them."""

    ends_by_deadline = True

    def on_attach(self, link: Link, attach: Attach) -> None:
        super().on_attach(link, attach)
        self.flush()
        flow = Flow(next_incoming_id=0, incoming_window=100, next_outgoing_id=0,
                    outgoing_window=100, echo=True)  # fmt: skip
        self.send_until_closed(encode_frame(flow, link.session.channel) * 1000)


class AttachFlood(PoliteHub):
    """Attaches and detaches links of its own without an end."""

    ends_by_deadline = True

    def on_attach(self, link: Link, attach: Attach) -> None:
        channel = link.session.channel
        for number in range(1, 5000):
            own = Attach(name=f"{number}", handle=number, role=True)
            self.send(encode_frame(own, channel))
        self.wait()


class EndlessPartitions(PoliteHub):
    def reply_value(self, request: Message) -> Any:
        ids = array_of(str, ["0"] * 200_000)
        return {"name": "eh", "created_at": Timestamp(0), "partition_ids": ids}


class OddReply(PoliteHub):
    def reply_value(self, request: Message) -> Any:
        if "partition" in request.application:
            return PARTITION | {"last_enqueued_sequence_number": float("inf")}
        return {"name": "eh", "created_at": float("nan"), "partition_ids": {"0": "1"}}


class OddProperties(PoliteHub):
    """Properties that no hub has. `changed` is replaced in them."""

    changed: ClassVar[dict[str, Any]] = {}

    def reply_value(self, request: Message) -> Any:
        hub = {"name": "eh", "created_at": Timestamp(0), "partition_ids": array_of(str, ["0"])}
        return (PARTITION if "partition" in request.application else hub) | self.changed


def odd(**changed: Any) -> type[OddProperties]:
    return type("OddProperties", (OddProperties,), {"changed": changed})


class RefusedToken(PoliteHub):
    def on_request(self, node: str, request: Message) -> None:
        text = "y" * 900_000
        self.reply(node, request, {"status-code": 401, "status-description": text})


CALLS = [
    (NoAttach, properties, ConnectionFailed, r"did not respond to an attach (within|in) 0\.5 s"),
    (NoReply, properties, ConnectionFailed, r"did not respond .*0\.5 s"),
    (WrongReplies, properties, ConnectionFailed, r"did not respond .*0\.5 s"),
    (EchoFlood, properties, ConnectionFailed, "does not read|accepted no bytes|did not respond"),
    (AttachFlood, properties, ConnectionFailed, "4096 links|did not respond to an attach"),
    (EndlessPartitions, properties, RemoteProtocolError, "200000 partitions"),
    (OddReply, properties, RemoteProtocolError, "invalid reply of .*management"),
    (OddReply, partition, RemoteProtocolError, "invalid reply of .*management"),
    (OddReply, groups, RemoteProtocolError, "invalid reply of .*management"),
    (OddReply, faults, RemoteProtocolError, "invalid reply of .*management"),
    *(
        (odd(partition_ids=ids), properties, RemoteProtocolError, "invalid reply of .*management")
        for ids in ([], ["0", "0"], [""], ["0/../1"], ["\x1b[31m"], ["0" * 65], [None], [0])
    ),
    *(
        (odd(created_at=Timestamp(ms)), properties, RemoteProtocolError, "invalid reply of")
        for ms in (2**62, -(2**62))
    ),
    (odd(last_enqueued_time_utc=Timestamp(2**62)), partition, RemoteProtocolError, "invalid reply"),
    (odd(begin_sequence_number=-7), partition, RemoteProtocolError, "invalid reply"),
    (odd(last_enqueued_offset="1" * 2000), partition, RemoteProtocolError, "invalid reply"),
    (RefusedToken, properties, AuthError, "does not accept the"),
]


@pytest.mark.parametrize(("hub", "call", "kind", "sentence"), CALLS, ids=names)
async def test_a_hub_that_does_not_respond_properly(
    hub: type[PoliteHub], call: Callable[..., Any], kind: type[PumphouseError], sentence: str
) -> None:
    with pytest.raises(kind) as failed:
        await native(hub, call)
    check_error(failed.value, sentence)


def bulk_properties(client: BulkClient) -> Any:
    return client.properties()


def bulk_partition(client: BulkClient) -> Any:
    return client.partition_properties("0")


BULK_CALLS = {properties: bulk_properties, partition: bulk_partition}


@pytest.mark.parametrize(
    ("hub", "call", "kind", "sentence"),
    [case for case in CALLS if case[1] in BULK_CALLS],
    ids=names,
)
def test_a_hub_that_does_not_respond_properly_to_a_bulk_client(
    hub: type[PoliteHub], call: Callable[..., Any], kind: type[PumphouseError], sentence: str
) -> None:
    with pytest.raises(kind) as failed:
        bulk(hub, BULK_CALLS[call])
    check_error(failed.value, sentence)


# -- sending --------------------------------------------------------------------------------------


class NoCredit(PoliteHub):
    ends_by_deadline = True

    def on_attach(self, link: Link, attach: Attach) -> None:
        super().on_attach(link, attach)
        if isinstance(link, ReceiverLink) and not attach.target.address.startswith("$"):
            link.grant(0)


class NeverSettles(PoliteHub):
    ends_by_deadline = True

    def on_batch(self, delivered: Delivered) -> None:
        """No outcome."""


class SettlesEverythingElse(PoliteHub):
    """Settles all ids but the one that was sent."""

    ends_by_deadline = True

    def on_batch(self, delivered: Delivered) -> None:
        after = delivered.delivery_id + 1
        session = delivered.link.session
        session.dispose(after, after + 0x7FFFFFF0, Rejected())


class RejectsWithoutReason(PoliteHub):
    def on_batch(self, delivered: Delivered) -> None:
        delivery_id = delivered.delivery_id
        delivered.link.session.dispose(delivery_id, delivery_id, Rejected(error=None))


class HugeLimit(PoliteHub):
    """Announces a message size that does not exist."""

    def answer(self, link: Link, attach: Attach, **fields: Any) -> None:
        super().answer(link, attach, max_message_size=(1 << 64) - 1)


@pytest.mark.parametrize(
    ("hub", "kind", "sentence"),
    [
        (NoCredit, ConnectionFailed, "did not make room for a batch"),
        (NeverSettles, ConnectionFailed, "did not acknowledge a batch"),
        (SettlesEverythingElse, ConnectionFailed, "did not acknowledge a batch"),
        (RejectsWithoutReason, PumphouseError, ""),
    ],
    ids=names,
)
async def test_a_hub_that_does_not_take_events(
    hub: type[PoliteHub], kind: type[PumphouseError], sentence: str
) -> None:
    with pytest.raises(kind) as failed:
        await native(hub, send)
    if sentence:
        check_error(failed.value, sentence)


async def test_a_limit_beyond_every_tier_is_not_used() -> None:
    async def size_max(client: NativeClient) -> int:
        return (await client.sender("0")).size_max

    assert await native(HugeLimit, size_max) == 20 << 20
