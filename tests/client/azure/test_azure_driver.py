"""The azure driver alone; contract/ tests what both drivers share."""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from azure.eventhub._pyamqp import error as sdk
from azure.eventhub._pyamqp.constants import LinkState
from azure.eventhub.aio._client_base_async import EventHubSharedKeyCredential
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    EventDataSendError,
    EventHubError,
)

from pumphouse.amqp.types import Char, Float, Int, Symbol, Timestamp, UByte, UInt
from pumphouse.client.azure import link as azure_link
from pumphouse.client.azure.client import AzureClient, settings_for
from pumphouse.client.azure.errors import translate_error
from pumphouse.client.azure.events import event_data, sdk_position, typed_value
from pumphouse.client.azure.reader import AzureReader
from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.routes import route_for
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    EventTooLarge,
    HubNotFound,
    HubUntrusted,
    OptionError,
    PumphouseError,
    ReaderEvicted,
)
from pumphouse.events import EARLIEST, LATEST, Event, Position
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub

DEADLINE_S = 60.0

# The official SDK leaves broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# -- errors ---------------------------------------------------------------------------------------


def raised(kind: type[EventHubError], inner: Exception) -> EventHubError:
    """An error of the AMQP layer as the SDK wraps it."""
    return kind(str(inner), inner)  # type: ignore[arg-type]


def denied(status: int, description: bytes) -> Exception:
    """A refusal of $cbs."""
    return sdk.TokenAuthFailure(status, description)  # type: ignore[no-untyped-call]


STOLEN = b"New receiver 'nil' with higher epoch of '8' is created hence current receiver ..."
BUSY = b"com.microsoft:server-busy"


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (TimeoutError(), ConnectionFailed, "there did not respond in time"),
        (OSError("no route"), ConnectionFailed, "there: no route"),
        (AttributeError(), ConnectionFailed, "there: AttributeError"),
        (ImportError("install aiohttp"), OptionError, r"aiohttp; pip install 'pumphouse\[azure\]'"),
        (sdk.AMQPLinkError(b"amqp:link:stolen", description=STOLEN), ReaderEvicted, "epoch of '8'"),
        (sdk.AMQPLinkError(sdk.ErrorCondition.NotFound, description=b"gone"), HubNotFound, "gone"),
        (sdk.AMQPLinkError(sdk.ErrorCondition.UnauthorizedAccess), AuthError, "unauthorized"),
        (sdk.AMQPLinkError(BUSY, description=b"wait"), AmqpError, "wait .com.microsoft:server-bus"),
        (sdk.AMQPConnectionError(sdk.ErrorCondition.SocketError), ConnectionFailed, "socket-error"),
        (sdk.AMQPConnectionError(b"amqp:connection:forced"), AmqpError, "amqp:connection:forced"),
        (denied(401, b"bad signature"), AuthError, "does not accept .*bad signature"),
        (denied(404, b"no such hub"), HubNotFound, "no such hub"),
        (denied(500, b"oh"), ConnectionFailed, "there returned status 500: oh"),
        (raised(EventDataSendError, sdk.MessageException(BUSY)), AmqpError, "server-busy"),
        (
            raised(
                EventDataSendError,
                sdk.MessageSendFailed(
                    sdk.ErrorCondition.LinkMessageSizeExceeded, description="big"
                ),
            ),
            EventTooLarge,
            "big",
        ),
        (raised(AuthenticationError, denied(401, b"bad")), AuthError, "bad"),
        (
            raised(ConnectionLostError, sdk.AMQPLinkError(b"amqp:link:stolen", description=STOLEN)),
            ReaderEvicted,
            "'8'",
        ),
        (
            raised(
                ConnectError,
                sdk.AMQPConnectionError(
                    sdk.ErrorCondition.UnknownError,
                    description="Management request error. Status code: 400, Description: None",
                ),
            ),
            AmqpError,
            "no reason given .com.microsoft:argument-out-of-range",
        ),
        (
            raised(
                ConnectError,
                sdk.AMQPConnectionError(
                    sdk.ErrorCondition.NotFound,
                    description="Management connection failed. Status code: 404, Description: 'x'",
                ),
            ),
            HubNotFound,
            r"there could not be found \(x\)",
        ),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), HubUntrusted, "self-signed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_of_the_sdk_is_translated(
    failure: Exception, kind: type[PumphouseError], text: str
) -> None:
    why = translate_error(failure, "there")
    assert type(why) is kind
    with pytest.raises(kind, match=text):
        raise why


def test_our_own_errors_are_not_translated() -> None:
    ours = OptionError("no")
    assert translate_error(ours, "there") is ours


def test_an_eviction_has_the_epoch_of_the_other_reader() -> None:
    why = translate_error(sdk.AMQPLinkError(b"amqp:link:stolen", description=STOLEN), "there")
    assert isinstance(why, ReaderEvicted)
    assert why.epoch == 8


# -- events and positions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, None),
        (True, True),
        (b"x", b"x"),
        (UUID(int=5), UUID(int=5)),
        (7, {"TYPE": "LONG", "VALUE": 7}),
        (Int(7), {"TYPE": "INT", "VALUE": 7}),
        (UByte(255), {"TYPE": "UBYTE", "VALUE": 255}),
        (Timestamp(-1), {"TYPE": "TIMESTAMP", "VALUE": -1}),
        (0.5, {"TYPE": "DOUBLE", "VALUE": 0.5}),
        (Float(0.5), {"TYPE": "FLOAT", "VALUE": 0.5}),
        ("x", {"TYPE": "STRING", "VALUE": "x"}),
        (Symbol("x"), {"TYPE": "SYMBOL", "VALUE": "x"}),
    ],
)
def test_a_property_is_sent_with_its_type(value: Any, sent: Any) -> None:
    converted = typed_value("n", value)
    assert converted == sent
    assert type(converted) is type(sent)


@pytest.mark.parametrize("value", [UByte(-1), UByte(256), UInt(2**32), 2**63, -(2**63) - 1])
def test_a_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(OptionError, match=f"property 'n' is {int(value)}, out of range of AMQP"):
        typed_value("n", value)


@pytest.mark.parametrize("value", [Char("x"), [1], {"a": 1}, object()])
def test_a_type_that_the_sdk_cannot_send_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=f"of type {type(value).__name__}.*native driver can"):
        typed_value("n", value)


def test_a_key_is_set_on_the_event_only_when_sent_to_a_partition() -> None:
    event = Event(b"x", partition_key="k")
    assert event_data(event).raw_amqp_message.annotations == {}
    noted = event_data(event, to_partition=True).raw_amqp_message.annotations
    assert noted == {b"x-opt-partition-key": "k"}


@pytest.mark.parametrize(
    ("position", "start"),
    [
        (EARLIEST, ("-1", False)),
        (LATEST, ("@latest", False)),
        (Position("offset", "12", True), ("12", True)),
        (Position("sequence", "12"), (12, False)),
    ],
)
def test_positions_for_the_sdk(position: Position, start: Any) -> None:
    assert sdk_position(position) == start
    assert type(sdk_position(position)[0]) is type(start[0])


@pytest.mark.parametrize("ms", [0, 1_700_000_000_123, -1, -(10**17), 10**17])
def test_time_positions_are_limited_to_the_range_of_datetime(ms: int) -> None:
    from azure.eventhub._utils import event_position_selector

    moment, _ = sdk_position(Position("time", str(ms)))
    limited_ms = min(max(ms, -62135596800000), 253402300799999)
    assert f"'{limited_ms}'".encode() in event_position_selector(moment)


# -- settings -------------------------------------------------------------------------------------

KEYS = "SharedAccessKeyName=a;SharedAccessKey=b"


@pytest.mark.parametrize(
    ("endpoint", "options", "custom"),
    [
        ("sb://ns.net", {}, None),
        ("sb://ns.net", {"transport": "websocket"}, None),
        ("sb://ns.net:9000", {}, "sb://ns.net:9000"),
        ("sb://ns.net:9000", {"transport": "websocket"}, "sb://ns.net:9000"),
        ("sb://ns.net", {"endpoint": "gate:77"}, "sb://gate:77"),
        ("sb://[::1]:9000", {}, "sb://[::1]:9000"),
    ],
)
def test_the_route_as_arguments_of_the_sdk(
    endpoint: str, options: dict[str, Any], custom: str | None
) -> None:
    connection = parse_connection_string(f"Endpoint={endpoint};{KEYS}")
    route = route_for(connection, **options)
    settings = settings_for(connection, route, options.get("endpoint"), None)
    assert settings.get("custom_endpoint_address") == custom
    assert settings["use_tls"] is True


def test_a_missing_sdk_raises_an_error_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.eventhub", None)
    with pytest.raises(
        OptionError, match=r"needs azure-eventhub.*pip install 'pumphouse\[azure\]'"
    ):
        AzureClient(f"Endpoint=sb://ns;{KEYS}", "eh")


def test_repr_shows_no_secret() -> None:
    client = AzureClient("Endpoint=sb://ns;SharedAccessKeyName=a;SharedAccessKey=hush", "eh")
    assert repr(client) == "<AzureClient ns:5671 eh>"


# -- against a hub --------------------------------------------------------------------------------


@pytest.fixture
def sdk_client(hub: EmbeddedHub) -> AzureClient:
    retry = RetryOptions(attempts=3, first_s=0.01, most_s=30.0)
    return AzureClient(hub.connection_string("eh"), retry=retry)


async def azure_reader(client: AzureClient, **options: Any) -> AzureReader:
    reader = await client.reader(ReaderOptions("0", **options))
    assert isinstance(reader, AzureReader)
    return reader


def test_the_sdk_constant_for_an_attached_link() -> None:
    assert LinkState.ATTACHED.value == azure_link.ATTACHED


async def test_a_closed_reader_leaves_no_socket(hub: EmbeddedHub, sdk_client: AzureClient) -> None:
    async with sdk_client as client:
        reader = await azure_reader(client)
        transport = reader._link._consumer._handler._connection._transport
        hub.drop_connections()
        async with asyncio.timeout(DEADLINE_S):
            while transport.writer is not None:
                await reader.receive(1, 0.01)


async def test_a_link_that_breaks_after_every_attach_uses_up_the_retries(
    hub: EmbeddedHub, sdk_client: AzureClient
) -> None:
    async with sdk_client as client:
        sender = await client.sender("0")
        await sender.send([Event(b"x")])
        hub.faults.detach()  # on every first event
        reader = await azure_reader(client)
        with pytest.raises(ConnectionFailed, match=r"4 times in a row.*Detached on purpose\."):
            await reader.receive(1, DEADLINE_S)


async def test_buffered_bytes_are_limited(hub: EmbeddedHub, sdk_client: AzureClient) -> None:
    async with sdk_client as client:
        sender = await client.sender("0")
        await sender.send([Event(b"x" * 300_000)] * 20)
        reader = await azure_reader(client, prefetch_bytes_max=1_000_000)
        received = 0
        while received < 20:
            events = await reader.receive(2, DEADLINE_S)
            received += len(events)
            assert reader._bytes <= 1_000_000 + 301_000


async def test_an_event_in_many_frames_is_read(
    hub: EmbeddedHub, sdk_client: AzureClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service sends frames of at most 64 KiB; the embedded hub sends larger ones."""
    monkeypatch.setattr("azure.eventhub._pyamqp.client.MAX_FRAME_SIZE_BYTES", 4096)
    async with sdk_client as client:
        sent = [Event(bytes([number]) * size) for number, size in enumerate((50_000, 9, 9_000, 0))]
        await (await client.sender("0")).send(sent)
        reader = await azure_reader(client, prefetch=2)
        received: list[Event] = []
        while len(received) < 4:
            received += await reader.receive(4, DEADLINE_S)
        assert [event.body for event in received] == [event.body for event in sent]


async def test_duplicates_are_recognised_by_their_sequence_number(
    hub: EmbeddedHub, sdk_client: AzureClient
) -> None:
    async with sdk_client as client:
        await (await client.sender("0")).send([Event(b"%d" % number) for number in range(3)])
        reader = await azure_reader(client)
        async with asyncio.timeout(DEADLINE_S):
            while len(reader._waiting) < 3:
                await reader._wakeup.wait()
                await asyncio.sleep(0)
        again = list(reader._waiting)[:2]
        assert [event.sequence for event in await reader.receive(3, DEADLINE_S)] == [0, 1, 2]
        for payload in again:
            reader._arrived(payload)
        assert await reader.receive(3, 0.05) == []


async def test_a_key_always_uses_the_same_producer(sdk_client: AzureClient) -> None:
    async with sdk_client as client:
        sender: Any = await client.sender()
        lanes = {key: sender._slot_for(key) for key in ("a", "b", "c", "d", "e")}
        assert all(sender._slot_for(key) is lane for key, lane in lanes.items())
        assert len({id(lane) for lane in lanes.values()}) > 1
        async with sender._slots[0].turn:
            assert sender._slot_for(None) is sender._slots[1]
        assert sender._slot_for(None) is sender._slots[0]
        single: Any = await client.sender("0")
        assert len(single._slots) == 1


async def test_a_batch_that_exceeds_its_deadline_is_sent_again(
    hub: EmbeddedHub, sdk_client: AzureClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sdk_client as client:
        sender: Any = await client.sender()
        first = sender._slots[0].producer
        monkeypatch.setattr("pumphouse.client.azure.calls.RESPONSE_S", 2.0)
        hub.faults.delay(5.0, times=1)
        assert await sender.send([Event(b"x", {"n": 1})]) == 1
        assert sender._slots[0].producer is not first


async def test_the_token_type_of_a_credential_is_kept(hub: EmbeddedHub) -> None:
    key = hub.find_rule(ROOT_RULE, None).key
    credential = EventHubSharedKeyCredential(ROOT_RULE, key)
    text = f"Endpoint=sb://127.0.0.1:{hub.port};UseDevelopmentEmulator=true"
    async with AzureClient(text, "eh", credential=credential) as client:
        assert (await client.properties()).name == "eh"


async def test_an_event_that_cannot_be_encoded_raises_option_error(sdk_client: AzureClient) -> None:
    async with sdk_client as client:
        sender = await client.sender("0")
        with pytest.raises(OptionError, match="cannot be encoded"):
            await sender.send([Event(b"x", {"n": "\ud800"})])


async def test_a_float_property_is_rounded_to_32_bits(sdk_client: AzureClient) -> None:
    async with sdk_client as client:
        await (await client.sender("0")).send([Event(b"x", {"f": Float(0.1)})])
        reader = await azure_reader(client)
        [event] = await reader.receive(1, DEADLINE_S)
        assert event.properties == {"f": struct.unpack(">f", struct.pack(">f", 0.1))[0]}
