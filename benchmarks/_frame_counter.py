"""The cheapest possible reader: it counts transfer frames and decodes nothing.

    python -m benchmarks._frame_counter CONNECTION HUB_PID EVENTS PASSES

It grants credit for all events at once, so it shows the limit of the hub itself. Each pass reads
the partition from its beginning.
"""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

from benchmarks._processes import cpu_s, print_result
from pumphouse.amqp.connection import CLIENT, Connection, Login
from pumphouse.amqp.events import Attached, Event, Opened
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.performatives import RECEIVER, Flow, Open, Source, Target
from pumphouse.amqp.sasl import PLAIN, plain_response

READ_BYTES = 1 << 20
SILENCE_S = 10.0
WINDOW = 0x7FFFFFFF  # transfer frames: practically unlimited
# Frame type and channel, then the descriptor of a transfer. No body here contains this.
TRANSFER = b"\x02\x00\x00\x00\x00\x53\x14"


class Reader:
    """One connection with a link, before the first credit."""

    def __init__(self, connection: str) -> None:
        parts = dict(part.split("=", 1) for part in connection.split(";"))
        where = urlsplit(parts["Endpoint"])
        self.path = f"{parts['EntityPath']}/ConsumerGroups/$Default/Partitions/0"
        login = plain_response(parts["SharedAccessKeyName"], parts["SharedAccessKey"])
        self.sock = socket.create_connection((where.hostname, where.port), timeout=SILENCE_S)
        opening = Open(container_id="benchmark", hostname=where.hostname, max_frame_size=1 << 20)
        self.amqp = Connection(CLIENT, opening, login=Login(PLAIN, login))

    def attach(self) -> None:
        """Attach a link at the beginning of the partition, without credit."""
        self.amqp.start()
        self.wait_for(Opened)
        session = self.amqp.begin()
        source = Source(address=self.path)  # without a filter: from the first event on
        session.attach("count", RECEIVER, source=source, target=Target(address="count"))
        self.wait_for(Attached)

    def wait_for(self, kind: type[Event]) -> None:
        arrived = False
        while not arrived:
            self.sock.sendall(b"".join(self.amqp.data_to_send()))
            for event in self.amqp.receive(self.sock.recv(READ_BYTES)):
                arrived = arrived or isinstance(event, kind)
        self.sock.sendall(b"".join(self.amqp.data_to_send()))

    def count(self, events: int) -> None:
        """Grant credit for `events` events and wait until all have arrived."""
        grant = Flow(
            next_incoming_id=0,
            incoming_window=WINDOW,
            next_outgoing_id=0,
            outgoing_window=WINDOW,
            handle=0,
            delivery_count=0,
            link_credit=events,
        )
        self.sock.sendall(encode_frame(grant))
        buffer = bytearray(READ_BYTES)
        kept = 0  # bytes at the front that may be the start of a split transfer
        while events > 0:
            size = self.sock.recv_into(memoryview(buffer)[kept:])
            if not size:
                raise ConnectionError(f"the hub closed the connection, {events} events missing")
            end = kept + size
            events -= buffer.count(TRANSFER, 0, end)
            kept = min(end, len(TRANSFER) - 1)
            buffer[:kept] = buffer[end - kept : end]
        if events < 0:
            raise ValueError(f"counted {-events} more events than expected")


def main(connection: str, hub_pid: int, events: int, passes: int) -> None:
    hub_s = 0.0
    for _ in range(passes):
        reader = Reader(connection)
        with reader.sock:
            reader.attach()
            start = cpu_s(hub_pid)
            reader.count(events)
            hub_s += cpu_s(hub_pid) - start
    print_result(events=events * passes, hub_s=hub_s)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
