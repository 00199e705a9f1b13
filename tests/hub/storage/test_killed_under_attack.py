"""A hub that hostile clients attack is killed repeatedly, and keeps every acknowledged event."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from threading import Event as Signal
from threading import Thread

from pumphouse.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.performatives import SaslInit
from pumphouse.amqp.sasl import plain_response
from pumphouse.client.base import ReaderOptions, RetryOptions, Sender
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from tests.fuzz.offline_connection import BEGUN, HUB, LOGIN, OfflineConnection
from tests.fuzz.streams import make_stream

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
OURS, PARTITION, KEY = "ours", "0", "a key of both"
LOGIN_WITH_KEY = (
    SASL_HEADER
    + encode_frame(
        SaslInit(
            mechanism="PLAIN",
            initial_response=plain_response("RootManageSharedAccessKey", KEY),
        ),
        kind=SASL_FRAME,
    )
    + AMQP_HEADER
)
ANONYMOUS = AMQP_HEADER + BEGUN.removeprefix(LOGIN)
ATTACHED = LOGIN_WITH_KEY + OfflineConnection.ATTACHED.removeprefix(LOGIN)
ROUNDS, ATTACKERS, STREAMS_MIN, NO_RETRIES = 5, 4, 12, RetryOptions(attempts=0)
LIMIT_S = 60.0


class Attack:
    """Hostile clients: without a key, and with one for another hub on the same disk.

    They send streams of the cost fuzzer, stop in the middle of a frame, and read nothing.
    """

    def __init__(self, port: int, seeds: Iterator[int]) -> None:
        self.port, self.seeds = port, seeds
        self.streams = 0  # that were sent
        self.ended = Signal()
        self.held: list[socket.socket] = []  # connections that are left open

    def __enter__(self) -> Attack:
        self.threads = [Thread(target=self.run, daemon=True) for _ in range(ATTACKERS)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(LIMIT_S)
        for held in self.held:
            held.close()

    def run(self) -> None:
        while not self.ended.is_set():
            with suppress(OSError):
                self.send(next(self.seeds))

    def send(self, seed: int) -> None:
        rng, stream = Random(seed), make_stream(seed)
        data = rng.choice((ANONYMOUS, ATTACHED)) + stream.setup + b"".join(stream.pieces)
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=2.0)
        try:
            connection.sendall(data[: rng.choice((len(data), rng.randrange(1, len(data))))])
            self.streams += 1
            connection.recv(1 << 16)
        finally:
            if rng.random() < 0.3 and len(self.held) < 50:
                self.held.append(connection)
            else:
                connection.close()


@contextmanager
def running(data: Path) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """`pumphouse up` on a data directory: the process, its connection string and its port."""
    hubs = ["--hubs", f"{OURS}:1,{HUB}:2"]
    command = [str(PUMPHOUSE), "up", *hubs, "--port", "0", "--key", KEY, "--data", str(data)]
    up = subprocess.Popen([*command, "-o", "json"], stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        ready = json.loads(up.stdout.readline())
        yield up, ready["connection_strings"][OURS], ready["port"]
    finally:
        up.kill()
        up.wait(10)
        up.stdout.close()


async def send_until_killed(
    up: subprocess.Popen[str], connection: str, attack: Attack, rng: Random, log: Log
) -> None:
    """Send events one after the other; kill the hub while one is in flight."""
    kill_after = rng.randrange(5, 60)
    with suppress(PumphouseError, TimeoutError):
        async with open_client(connection, retry=NO_RETRIES) as client:
            sender = await client.sender(PARTITION)
            for number in count():
                if number >= kill_after and attack.streams >= STREAMS_MIN:
                    asyncio.get_running_loop().call_later(rng.random() / 100, up.kill)
                await log.send(sender, rng.randrange(1, 5))
    assert up.wait(10) == -signal.SIGKILL


class Log:
    """The bodies of the events, in order."""

    def __init__(self) -> None:
        self.attempted: list[str] = []
        self.acknowledged: list[str] = []

    async def send(self, sender: Sender, number: int) -> None:
        bodies = [f"{len(self.attempted) + n}" for n in range(number)]
        self.attempted += bodies
        async with asyncio.timeout(LIMIT_S):
            await sender.send([Event(body.encode()) for body in bodies])
        self.acknowledged += bodies


async def read_all(connection: str) -> list[tuple[int | None, str]]:
    async with open_client(connection) as client:
        end = (await client.partition_properties(PARTITION)).last_sequence
        reader = await client.reader(ReaderOptions(PARTITION))
        events: list[Event] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(events) <= end and time.monotonic() < deadline_s:
            events += await reader.receive(1000)
    return [(event.sequence, event.body.decode()) for event in events]


def test_an_acknowledged_event_survives_kill_9_under_attack(tmp_path: Path) -> None:
    rng, log, seeds = Random(18), Log(), count(1)
    for _ in range(ROUNDS):
        before = len(log.acknowledged)
        with running(tmp_path) as (up, connection, port), Attack(port, seeds) as attack:
            asyncio.run(send_until_killed(up, connection, attack, rng, log))
        assert attack.streams >= STREAMS_MIN, "the hub was not attacked"
        assert len(log.acknowledged) > before, "the attack kept our client out"
    with running(tmp_path) as (_, connection, _):
        stored = asyncio.run(read_all(connection))
    assert [sequence for sequence, _ in stored] == list(range(len(stored)))
    bodies = [body for _, body in stored]
    assert bodies == sorted(set(bodies), key=int), "in order, without duplicates"
    assert set(log.acknowledged) <= set(bodies) <= set(log.attempted)
