"""A native connection to peers that fail in every way."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pumphouse.amqp.connection import SERVER
from pumphouse.amqp.connection import Connection as AmqpConnection
from pumphouse.amqp.events import AttachAsked
from pumphouse.amqp.frames import SASL_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.performatives import Error, Open, SaslMechanisms, SaslOutcome
from pumphouse.client.native import connection as connection
from pumphouse.client.native.connection import Connection, ConnectionOptions, connect
from pumphouse.client.native.requests import RequestClient
from pumphouse.client.routes import Route
from pumphouse.errors import AuthError, ConnectionFailed, PumphouseError

DEADLINE_S = 10.0
SHORT = ConnectionOptions(connect_s=0.2, answer_s=0.2, close_s=0.1)


def to(port: int, host: str = "127.0.0.1") -> Route:
    return Route(host, port, host)


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[int]:
    """A port served by a given coroutine."""

    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await peer(reader, writer)
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            writer.close()
            ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
    finally:
        server.close()


async def failure(peer: Peer, options: ConnectionOptions = SHORT) -> tuple[PumphouseError, str]:
    """The error of connecting to a peer, and its address."""
    async with listening(peer) as port:
        with pytest.raises(PumphouseError) as failed:
            await connect(to(port), options)
        return failed.value, f"127.0.0.1:{port}"


async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(100):
        pass


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def refuse_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SASL_HEADER)
    writer.write(encode_frame(SaslMechanisms(mechanisms=("ANONYMOUS",)), kind=SASL_FRAME))
    writer.write(encode_frame(SaslOutcome(code=1), kind=SASL_FRAME))
    await reader.read(1000)


async def offer_plain_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SASL_HEADER)
    writer.write(encode_frame(SaslMechanisms(mechanisms=("PLAIN",)), kind=SASL_FRAME))
    await reader.read(1000)


async def open_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A hub that is shutting down."""
    amqp = AmqpConnection(SERVER, Open(container_id="peer"))
    while data := await reader.read(1000):
        if list(amqp.receive(data)):
            amqp.close(Error(condition="amqp:connection:forced", description="Closing time."))
        writer.writelines(amqp.data_to_send())


async def respond_to_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Opens the connection and the session, and responds to nothing else."""
    amqp = AmqpConnection(SERVER, Open(container_id="peer"))
    while data := await reader.read(1000):
        list(amqp.receive(data))
        writer.writelines(amqp.data_to_send())


@pytest.mark.parametrize(
    ("peer", "kind", "sentence"),
    [
        (be_silent, ConnectionFailed, r"did not open the connection within 0\.2 s"),
        (hang_up, ConnectionFailed, "broke; the peer closed it"),
        (speak_http, ConnectionFailed, "sent invalid AMQP.*HTTP"),
        (offer_plain_only, ConnectionFailed, "does not offer SASL ANONYMOUS; it offers PLAIN"),
        (refuse_login, AuthError, "refused the SASL login"),
        (open_and_close, ConnectionFailed, r"closed the connection: Closing time\."),
    ],
)
async def test_a_failed_connection_reports_address_and_cause(
    peer: Peer, kind: type[PumphouseError], sentence: str
) -> None:
    failed, expected_address = await failure(peer)
    assert isinstance(failed, kind)
    assert expected_address in str(failed)
    assert re.search(sentence, str(failed))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_reports_what_to_do(host: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionFailed) as failed:
        await connect(to(port, host), SHORT)
    assert str(failed.value) == (
        f"cannot connect to {host}:{port}: connection refused; "
        "check that the hub is running (`pumphouse up` starts one)"
    )


@asynccontextmanager
async def unresponsive_connection(options: ConnectionOptions = SHORT) -> AsyncIterator[Connection]:
    async with listening(respond_to_nothing) as port:
        connection = await connect(to(port), options)
        try:
            yield connection
        finally:
            await connection.close()


async def test_an_attach_without_a_response_has_a_deadline() -> None:
    async with unresponsive_connection() as connection:
        with pytest.raises(ConnectionFailed, match=r"did not respond to an attach within 0\.2 s"):
            await RequestClient.open(connection, "$cbs")
        assert repr(connection) == f"<Connection {connection.address} OPENED>"


async def test_waiting_for_an_attach_can_be_cancelled() -> None:
    async with unresponsive_connection(ConnectionOptions(close_s=0.1)) as connection:
        opening = asyncio.create_task(RequestClient.open(connection, "$cbs"))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert connection.failure is None


async def test_a_silent_hub_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TICK_S", 0.01)
    async with unresponsive_connection(
        ConnectionOptions(answer_s=5, idle_s=0.1, close_s=0.1)
    ) as unresponsive:
        with pytest.raises(ConnectionFailed, match=r"for 0\.1 s; the connection counts as dead"):
            await RequestClient.open(unresponsive, "$cbs")
        assert repr(unresponsive) == f"<Connection {unresponsive.address} broken>"


async def test_heartbeats_are_sent_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TICK_S", 0.01)
    beats = asyncio.Event()

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        amqp = AmqpConnection(SERVER, Open(container_id="peer", idle_time_out=60))
        while data := await reader.read(1000):
            if amqp.state == "OPENED" and data == b"\x00\x00\x00\x08\x02\x00\x00\x00":
                beats.set()
            list(amqp.receive(data))
            writer.writelines(amqp.data_to_send())

    async with listening(impatient) as port:
        connected = await connect(to(port), SHORT)
        async with asyncio.timeout(5):
            await beats.wait()
        await connected.close()


async def test_an_attach_of_the_hub_is_refused() -> None:
    refused = asyncio.Event()

    async def pushy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        amqp = AmqpConnection(SERVER, Open(container_id="peer"))
        asked = False
        while data := await reader.read(1000):
            events = list(amqp.receive(data))
            assert not any(isinstance(event, AttachAsked) for event in events)
            if amqp.sessions and not asked:
                asked = True
                session = next(iter(amqp.sessions.values()))
                session.attach("mine", False, initial_delivery_count=0)
            if asked and any(type(event).__name__ == "Detached" for event in events):
                refused.set()
            writer.writelines(amqp.data_to_send())

    async with listening(pushy) as port:
        connected = await connect(to(port), SHORT)
        async with asyncio.timeout(5):
            await refused.wait()
        assert connected.failure is None
        await connected.close()
