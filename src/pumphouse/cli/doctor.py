"""`pumphouse doctor`: is everything there that a processor needs, and does it answer?

Each check says one thing: ok, warn (something will be missed by somebody) or fail, with what to do
about it. A check that fails ends those that build on it, and no others.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    ca_file,
    connection_option,
    group_option,
    hub_option,
    output_option,
    store_option,
)
from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient
    from pumphouse.leases.store import CheckpointStore

OK, WARN, FAIL = "ok", "warn", "fail"
EXTRAS = {
    "azure": ("azure.eventhub", "Azure's own service and Blob stores"),
    "spark": ("pyspark", "the Spark source, sink and pipeline"),
    "dashboard": ("starlette", "the web page"),
    "tls": ("cryptography", "making a development certificate"),
}
# A group of its own, so that no check ever touches rows that somebody uses.
PROBE_GROUP = "pumphouse-doctor"


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    fix: str = ""


@click.command()
@hub_option
@group_option
@connection_option
@store_option
@output_option
def doctor(hub: str | None, group: str, connection: str | None, store: str, output: str) -> None:
    """Check the machine, the hub, the consumer group and the checkpoint store.

    Exit status 3 if anything failed.
    """
    failed = False
    for finding in findings(hub, group, connection, store):
        show(finding, output)
        failed = failed or finding.level == FAIL
    if failed:
        raise SystemExit(console.UNHEALTHY)


def show(finding: Finding, output: str) -> None:
    if output == "json":
        console.print_json(
            {"level": finding.level, "what": finding.what, "fix": finding.fix or None}
        )
    else:
        fix = f". Fix: {finding.fix}" if finding.fix else ""
        print(f"{finding.level:<5} {finding.what}{fix}", flush=True)


def findings(hub: str | None, group: str, connection: str | None, store: str) -> Iterator[Finding]:
    yield from check_machine()
    with asyncio.Runner() as runner:
        for checks in (check_hub(connection, hub, group), check_store(store)):
            yield from in_turn(runner, checks)


def in_turn(runner: asyncio.Runner, checks: AsyncIterator[Finding]) -> Iterator[Finding]:
    """Each finding as soon as it is made: a slow check must not hold back those before it."""

    async def following() -> Finding | None:
        return await anext(checks, None)

    while (finding := runner.run(following())) is not None:
        yield finding


# -- the machine ----------------------------------------------------------------------------------


def check_machine() -> Iterator[Finding]:
    yield Finding(OK, f"Python {platform.python_version()} on {platform.system()}")
    for extra, (module, purpose) in EXTRAS.items():
        if not there(module):
            yield Finding(
                WARN, f"no {module}: needed for {purpose}", f"pip install 'pumphouse[{extra}]'"
            )
    if there("pyspark"):
        yield check_java()


def there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_java() -> Finding:
    from pumphouse.spark.session import JavaMissing, find_java

    try:
        return Finding(OK, f"Java {find_java()} for Spark")
    except JavaMissing as missing:
        return Finding(FAIL, str(missing))


# -- the hub --------------------------------------------------------------------------------------


async def check_hub(connection: str | None, hub: str | None, group: str) -> AsyncIterator[Finding]:
    if not connection:
        fix = "give --connection STRING or set EVENT_HUB_CONN_STR; `pumphouse up` prints one"
        yield Finding(FAIL, "no hub to talk to", fix)
        return
    from pumphouse.client.base import RetryOptions
    from pumphouse.client.factory import open_client

    try:
        since = time.perf_counter()
        reached = open_client(
            connection, hub or "", ca_file=ca_file(), retry=RetryOptions(attempts=0)
        )
        async with reached as client:
            properties = await client.properties()
            took_ms = (time.perf_counter() - since) * 1000
            count = console.plural(len(properties.partitions), "partition")
            place = f"{client.namespace} answers in {took_ms:.0f} ms"
            yield Finding(OK, f"hub {client.hub} at {place}, {count}")
            yield await check_group(client, group, properties.partitions[0])
    except PumphouseError as failed:
        yield Finding(FAIL, f"the hub does not answer as it should: {failed}")


async def check_group(client: HubClient, group: str, partition: str) -> Finding:
    """A group is there if it can be read, or if somebody with an epoch is reading it."""
    from pumphouse.client.base import ReaderOptions
    from pumphouse.errors import HubNotFound, ReaderEvicted
    from pumphouse.events import LATEST

    try:
        reader = await client.reader(ReaderOptions(partition, group, LATEST, prefetch=1))
        await reader.close()
    except HubNotFound:
        fix = f"pumphouse groups create '{group}' --hub {client.hub}"
        return Finding(FAIL, f"consumer group {group} does not exist", fix)
    except ReaderEvicted:
        return Finding(OK, f"consumer group {group} exists, and is being read")
    return Finding(OK, f"consumer group {group} exists")


# -- the store ------------------------------------------------------------------------------------


async def check_store(url: str) -> AsyncIterator[Finding]:
    from pumphouse.leases.store_url import open_store

    try:
        async with open_store(url) as store:
            yield await check_compare_and_set(store)
    except PumphouseError as failed:
        yield Finding(FAIL, f"the checkpoint store does not answer as it should: {failed}")


async def check_compare_and_set(store: CheckpointStore) -> Finding:
    """The one property that everything rests on: of two writers with one etag, one is granted."""
    from dataclasses import replace

    from pumphouse.leases.model import Granted, Group, Refused, claim, release

    group = Group("pumphouse", "doctor", PROBE_GROUP)
    rows = {row.partition: row for row in (await store.list_ownership(group)).ownerships}
    since = time.perf_counter()
    mine = claim(rows.get("0"), "0", "doctor")
    (first,) = await store.claim_ownership(group, [mine])
    took_ms = (time.perf_counter() - since) * 1000
    (second,) = await store.claim_ownership(group, [replace(mine, epoch=mine.epoch + 1)])
    if not isinstance(first, Granted):
        return Finding(WARN, "the checkpoint store is in use by another doctor", "try again")
    await store.claim_ownership(group, [release(first.row)])
    if not isinstance(second, Refused):
        return Finding(FAIL, "the checkpoint store lets two writers win: it cannot be used")
    return Finding(OK, f"checkpoint store answers in {took_ms:.0f} ms and refuses a late writer")
