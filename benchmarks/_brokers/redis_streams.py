"""Redis streams: Debian's redis-server, and redis-py with the parser in C.

A batch is a pipeline of XADD. One pipeline holds the whole window, which is the most that one
connection of this client has under way. Durable: `appendfsync always`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._brokers.model import (
    DURABLE,
    IDLE_S,
    IN_FLIGHT,
    INSTALL,
    PEERS_PYTHON,
    Acknowledged,
    Kind,
    Launch,
)
from benchmarks._brokers.servers import LOOPBACK, free_ports, greets

PROGRAM = Path("/usr/bin/redis-server")
READ_COUNT = 1000
FIELD = b"b"


class Redis:
    name = "Redis streams"
    kinds = (Kind("redis", "Redis streams", PEERS_PYTHON),)

    def absent(self) -> str:
        return "" if PROGRAM.exists() and PEERS_PYTHON.exists() else INSTALL

    def launch(self, folder: Path, mode: str) -> Launch:
        (port,) = free_ports(1)
        options = {
            "bind": LOOPBACK,
            "port": port,
            "dir": folder,
            "save": "",
            "appendonly": "yes" if mode == DURABLE else "no",
            "appendfsync": "always",
            # A rewrite would be counted as the cost of events.
            "auto-aof-rewrite-percentage": 0,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        ready = greets(port, b"PING\r\n", b"+PONG\r\n", str(port))
        return Launch(([str(PROGRAM), *words],), {}, ready)


class RedisClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.port, self.stream = int(address), stream

    async def open(self) -> None:
        import redis

        self.redis: Any = redis.Redis(host=LOOPBACK, port=self.port, protocol=2, socket_timeout=30)
        self.redis.ping()

    async def close(self) -> None:
        self.redis.close()

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        pending = iter(batches)
        while window := list(itertools.islice(pending, IN_FLIGHT)):
            pipeline = self.redis.pipeline(transaction=False)
            for body in itertools.chain.from_iterable(window):
                pipeline.xadd(self.stream, {FIELD: body})
            acknowledged(len(pipeline.execute()))

    async def send(self, body: bytes) -> None:
        self.redis.xadd(self.stream, {FIELD: body})

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        last: Any = b"0"
        while True:
            found = self.redis.xread({self.stream: last}, READ_COUNT, block=int(IDLE_S * 1000))
            entries = found[0][1] if found else []
            if entries:
                last = entries[-1][0]
            yield [fields[FIELD] for _, fields in entries]
