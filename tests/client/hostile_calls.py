"""Calls of our clients to a hostile hub, without retries.

Deadlines are short if only they end the call, and long if the client notices the violation itself.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.bulk.client import BulkClient, RangeOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.events import EARLIEST, Event
from tests.client.hostile_hub import PoliteHub, connection_string, running

SHORT = ConnectionOptions(connect_s=1.0, answer_s=0.5, close_s=0.2, idle_s=3.0)
LONG = ConnectionOptions(connect_s=20.0, answer_s=20.0, close_s=0.2, idle_s=20.0)
NO_RETRIES = RetryOptions(attempts=0)
SHORT_RANGE = RangeOptions(deadline_s=0.6)
LONG_RANGE = RangeOptions(deadline_s=20.0)
LIMIT_S = 60.0  # of a call: more than its deadlines, and less than a hang


def deadlines(hub: type[PoliteHub]) -> ConnectionOptions:
    return SHORT if hub.ends_by_deadline else LONG


# -- calls ----------------------------------------------------------------------------------------


async def properties(client: NativeClient) -> Any:
    return await client.properties()


async def partition(client: NativeClient) -> Any:
    return await client.partition_properties("0")


async def groups(client: NativeClient) -> Any:
    return await (await client.management()).groups("eh")


async def faults(client: NativeClient) -> Any:
    return await (await client.management()).faults()


async def receive(client: NativeClient) -> list[Event]:
    """Receive until something arrives or fails."""
    reader = await client.reader(ReaderOptions("0", position=EARLIEST, prefetch=10))
    while True:
        if events := await reader.receive(1000, 0.2):
            return events


async def receive_all(client: NativeClient) -> None:
    reader = await client.reader(ReaderOptions("0", position=EARLIEST, prefetch=10))
    while True:
        await reader.receive(1000, 0.2)


async def send(client: NativeClient) -> int:
    return await (await client.sender("0")).send([Event(b"x")])


async def native(hub: type[PoliteHub], call: Callable[..., Any], **arguments: Any) -> Any:
    """Make one call to a hub, without retries."""
    with running(hub) as port:
        client = NativeClient(
            connection_string(port), "eh", options=deadlines(hub), retry=NO_RETRIES, **arguments
        )
        async with asyncio.timeout(LIMIT_S), client:
            return await call(client)


def read(client: BulkClient) -> int:
    return sum(batch.num_rows for batch in client.read_range("0", 0, 5, LONG_RANGE))


def read_briefly(client: BulkClient) -> int:
    return sum(batch.num_rows for batch in client.read_range("0", 0, 5, SHORT_RANGE))


def bulk(hub: type[PoliteHub], call: Callable[..., Any] | None = None, **arguments: Any) -> Any:
    """Make one call to a hub, without retries. The default call reads a range."""
    call = call or (read_briefly if hub.ends_by_deadline else read)
    began = time.monotonic()
    try:
        with running(hub) as port:
            client = BulkClient(
                connection_string(port), "eh", options=deadlines(hub), retry=NO_RETRIES, **arguments
            )
            with client:
                return call(client)
    finally:
        assert time.monotonic() - began < LIMIT_S


def names(each: object) -> str:
    """The id of a hub, a call or an error in a parametrized test."""
    return getattr(each, "__name__", "")


def check_error(failed: BaseException, sentence: str) -> None:
    text = str(failed)
    assert re.search(sentence, text), text
    assert re.search(r"127\.0\.0\.1:\d+", text), f"the hub is not named: {text}"
    assert len(text) < 5000
