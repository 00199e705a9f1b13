"""A producer that keeps a fixed number of batches in flight.

    python -m benchmarks._producer CONNECTION HUB_PID BATCHES EVENTS BODY_BYTES OUTSTANDING

The batches are built before the clock starts, so that only the intake of the hub is measured. With
one event in a batch, it is sent as a single message, as producers without batches do. The result
has the wall seconds, the CPU seconds of the hub, and the number of acknowledged events.
"""

from __future__ import annotations

import socket
import sys
import time
from urllib.parse import urlsplit

from benchmarks._processes import cpu_s, print_result
from pumphouse.amqp.connection import CLIENT, Connection, Login
from pumphouse.amqp.events import Attached, Disposed, Event, Opened
from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    SINGLE_FORMAT,
    Message,
    encode_batch,
    encode_message,
)
from pumphouse.amqp.performatives import SENDER, Accepted, Open, Source, Target
from pumphouse.amqp.sasl import PLAIN, plain_response

SILENCE_S = 30.0


class Producer:
    """One link to partition 0."""

    def __init__(self, connection: str) -> None:
        parts = dict(part.split("=", 1) for part in connection.split(";"))
        where = urlsplit(parts["Endpoint"])
        login = plain_response(parts["SharedAccessKeyName"], parts["SharedAccessKey"])
        self.sock = socket.create_connection((where.hostname, where.port), timeout=SILENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = Open(container_id="flood", hostname=where.hostname)
        self.amqp = Connection(CLIENT, opening, login=Login(PLAIN, login))
        self.amqp.start()
        self.exchange(until=Opened)
        session = self.amqp.begin()
        target = Target(address=f"{parts['EntityPath']}/Partitions/0")
        link = session.attach("flood", SENDER, source=Source(address="flood"), target=target)
        assert isinstance(link, SenderLink)
        self.link = link
        self.exchange(until=Attached)
        while not link.credit:
            self.exchange()

    def exchange(self, until: type[Event] | None = None) -> list[Event]:
        """Send and receive once; with `until`, continue until an event of that type arrives."""
        events: list[Event] = []
        while True:
            self.sock.sendall(b"".join(self.amqp.data_to_send()))
            events += self.amqp.receive(self.sock.recv(1 << 18))
            if until is None or any(isinstance(event, until) for event in events):
                self.sock.sendall(b"".join(self.amqp.data_to_send()))
                return events

    def flood(self, payload: bytes, message_format: int, batches: int, outstanding: int) -> int:
        """Send the same delivery `batches` times; return how many were accepted."""
        sent = settled = accepted = 0
        while settled < batches:
            while sent < batches and sent - settled < outstanding and self.link.sendable:
                self.link.send(payload, message_format=message_format, settled=False)
                sent += 1
            for event in self.exchange():
                if isinstance(event, Disposed):
                    count = event.last - event.first + 1
                    settled += count
                    accepted += count if isinstance(event.state, Accepted) else 0
        return accepted


def main(
    connection: str, hub_pid: int, batches: int, events: int, body: int, outstanding: int
) -> None:
    message = encode_message(Message(data=(bytes(body),)))
    single = message, SINGLE_FORMAT
    payload, kind = single if events == 1 else (encode_batch([message] * events), BATCH_FORMAT)
    producer = Producer(connection)
    with producer.sock:
        producer.flood(payload, kind, outstanding, outstanding)  # creates files and warms caches
        cpu, began = cpu_s(hub_pid), time.perf_counter()
        accepted = producer.flood(payload, kind, batches, outstanding)
        wall_s, hub_s = time.perf_counter() - began, cpu_s(hub_pid) - cpu
    print_result(events=accepted * events, wall_s=wall_s, hub_s=hub_s)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:7]))
