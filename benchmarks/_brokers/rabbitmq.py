"""RabbitMQ: Debian's rabbitmq-server with streams and the plugin for AMQP 1.0.

Streams, with rstream, write to files and acknowledge without a sync; they have no other mode, so
they take part only where nothing has to be on disk. AMQP 1.0, with Qpid Proton, uses a classic
queue in memory, or a quorum queue, which syncs before it acknowledges. Reading a queue removes its
events. There is no batch in the two protocols' messages beyond that of a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks._brokers.model import (
    DURABLE,
    IDLE_S,
    INSTALL,
    MEMORY,
    PEERS_PYTHON,
    SIZES,
    WINDOW,
    Acknowledged,
    Kind,
    Launch,
    arriving,
    stream_name,
)
from benchmarks._brokers.servers import LOOPBACK, free_ports, greets

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
AMQP_HEADER = b"AMQP\x03\x01\x00\x00"
USER = PASSWORD = "guest"
PREFETCH = 1000
STREAM_CREDIT = 50  # chunks
BYTES_MAX = 4 << 30

STREAMS = Kind("rabbitstream", "RabbitMQ streams", PEERS_PYTHON, modes=(MEMORY,))
QUEUES = Kind("rabbitqueue", "RabbitMQ AMQP 1.0", PEERS_PYTHON, rereads=False, share=0.25)


class RabbitMq:
    name = "RabbitMQ"
    kinds = (STREAMS, QUEUES)

    def absent(self) -> str:
        return "" if PROGRAM.exists() and PEERS_PYTHON.exists() else INSTALL

    def launch(self, folder: Path, mode: str) -> Launch:
        amqp, stream, distribution, mapper = free_ports(4)
        settings = {
            "listeners.tcp.1": f"{LOOPBACK}:{amqp}",
            "stream.listeners.tcp.1": f"{LOOPBACK}:{stream}",
            "stream.advertised_host": LOOPBACK,
            "stream.advertised_port": stream,
            "load_definitions": folder / "definitions.json",
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (folder / "rabbitmq.conf").write_text("".join(lines))
        (folder / "definitions.json").write_text(json.dumps(definitions(mode)))
        (folder / "enabled_plugins").write_text("[rabbitmq_stream,rabbitmq_amqp1_0].\n")
        env = {
            "HOME": str(folder),  # of the Erlang cookie
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_ALLOW_INPUT": "1",  # the script is replaced by the broker
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_NODENAME": "benchmark@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        epmd = ["epmd", "-port", str(mapper), "-address", LOOPBACK]
        ready = greets(amqp, AMQP_HEADER, AMQP_HEADER, f"{amqp},{stream}")
        return Launch((epmd, [str(PROGRAM)]), env, ready)


def definitions(mode: str) -> dict[str, list[dict[str, Any]]]:
    """The user and the queues that exist from the start: AMQP 1.0 cannot create these kinds."""
    durable = mode == DURABLE
    queue = {
        "vhost": "/",
        "durable": durable,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum" if durable else "classic"},
    }
    allowed = {"user": USER, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [{"name": USER, "password": PASSWORD, "tags": "administrator"}],
        "vhosts": [{"name": "/"}],
        "permissions": [allowed],
        "queues": [{"name": stream_name(QUEUES.name, size), **queue} for size in SIZES],
    }


class StreamClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.options = {
            "host": LOOPBACK,
            "port": int(address.partition(",")[2]),
            "username": USER,
            "password": PASSWORD,
        }
        self.stream = stream

    async def open(self) -> None:
        from rstream import Producer

        self.producer: Any = Producer(**self.options)
        await self.producer.start()
        await self.producer.create_stream(
            self.stream, exists_ok=True, arguments={"max-length-bytes": BYTES_MAX}
        )

    async def close(self) -> None:
        await self.producer.close()

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        pending, confirmed = 0, asyncio.Event()

        def on_confirm(status: Any) -> None:
            nonlocal pending
            if not status.is_confirmed:
                raise RuntimeError(f"not confirmed: {status.response_code}")
            pending -= 1
            acknowledged(1)
            confirmed.set()

        for batch in batches:
            pending += len(batch)
            await self.producer.send_batch(self.stream, batch, on_publish_confirm=on_confirm)
            while pending > WINDOW - len(batch):
                confirmed.clear()
                await confirmed.wait()
        while pending:
            confirmed.clear()
            await confirmed.wait()

    async def send(self, body: bytes) -> None:
        await self.producer.send_wait(self.stream, body)

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        from rstream import Consumer

        bodies: list[bytes] = []
        arrived = asyncio.Event()

        def handle(message: bytes, _: Any) -> None:
            bodies.append(message)
            arrived.set()

        consumer: Any = Consumer(**self.options)
        await consumer.start()
        await consumer.subscribe(self.stream, handle, initial_credit=STREAM_CREDIT)
        try:
            async for batch in arriving(bodies, arrived):
                yield batch
        finally:
            await consumer.close()


class QueueClient:
    """Qpid Proton has an event loop of its own; `process` runs it once."""

    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.url = f"amqp://{LOOPBACK}:{address.partition(',')[0]}"
        self.address, self.durable = f"/amq/queue/{stream}", mode == DURABLE
        self.outgoing: Any = None

    async def open(self) -> None:
        proton("reactor")  # the import is not measured

    async def close(self) -> None:
        if self.outgoing is not None:
            self.outgoing.container.stop()

    def container(self, handler: Any) -> Any:
        container = proton("reactor").Container(handler)
        container.timeout = IDLE_S
        container.start()
        return container

    def connect(self, container: Any) -> Any:
        return container.connect(
            self.url,
            user=USER,
            password=PASSWORD,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            reconnect=False,
        )

    def messages(self, batches: Iterable[Sequence[bytes]]) -> Iterator[Any]:
        message_of = proton("").Message
        for batch in batches:
            for body in batch:
                yield message_of(body=body, durable=self.durable, inferred=True)

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        sending = self.sending()
        sending.more(self.messages(batches), acknowledged)
        self.run(sending)

    async def send(self, body: bytes) -> None:
        sending = self.sending()
        sending.more(self.messages([[body]]), lambda count: None)
        self.run(sending)

    def sending(self) -> Any:
        if self.outgoing is None:
            self.outgoing = proton_sender(self)
        return self.outgoing

    def run(self, sending: Any) -> None:
        while not sending.done:
            if not sending.container.process():
                raise ConnectionError("the connection is closed")

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        bodies: list[bytes] = []
        container = self.container(proton_receiver(self, bodies))
        try:
            while container.process():
                batch, bodies[:] = list(bodies), []
                yield batch
                await asyncio.sleep(0)
        finally:
            container.stop()


def proton(module: str) -> Any:
    """A module of Qpid Proton. It has types, but only where it is installed: hence Any."""
    return import_module(f"proton.{module}".rstrip("."))


def proton_sender(client: QueueClient) -> Any:
    class Sending(proton("handlers").MessagingHandler):  # type: ignore[misc]
        """Sends messages while the broker gives credit and the window has room."""

        def __init__(self) -> None:
            super().__init__(auto_settle=True)
            self.waiting: deque[Iterator[Any]] = deque()
            self.sender: Any = None
            self.pending, self.done = 0, True
            self.acknowledged: Acknowledged = lambda count: None
            self.container = client.container(self)

        def more(self, messages: Iterator[Any], acknowledged: Acknowledged) -> None:
            self.waiting.append(messages)
            self.acknowledged, self.done = acknowledged, False
            self.fill()

        def on_start(self, event: Any) -> None:
            connection = client.connect(event.container)
            self.sender = event.container.create_sender(connection, client.address)

        def on_sendable(self, event: Any) -> None:
            self.fill()

        def fill(self) -> None:
            while self.sender is not None and self.sender.credit and self.pending < WINDOW:
                message = next(self.waiting[0], None) if self.waiting else None
                if message is None:
                    self.waiting.clear()
                    break
                self.sender.send(message)
                self.pending += 1
            self.done = not self.waiting and not self.pending

        def on_accepted(self, event: Any) -> None:
            self.pending -= 1
            self.acknowledged(1)
            self.fill()

        def on_transport_error(self, event: Any) -> None:
            raise ConnectionError(str(event.transport.condition))

        def on_link_error(self, event: Any) -> None:
            raise ConnectionError(str(event.link.remote_condition))

    return Sending()


def proton_receiver(client: QueueClient, bodies: list[bytes]) -> Any:
    class Receiving(proton("handlers").MessagingHandler):  # type: ignore[misc]
        """Collects the bodies, and accepts each message."""

        def __init__(self) -> None:
            super().__init__(prefetch=PREFETCH)

        def on_start(self, event: Any) -> None:
            connection = client.connect(event.container)
            event.container.create_receiver(connection, client.address)

        def on_message(self, event: Any) -> None:
            body = event.message.body
            bodies.append(bytes(body) if isinstance(body, memoryview) else body)

        def on_transport_error(self, event: Any) -> None:
            raise ConnectionError(str(event.transport.condition))

    return Receiving()
