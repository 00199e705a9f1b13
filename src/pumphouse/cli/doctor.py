"""`pumphouse doctor`: checks the machine, the hub, the consumer group, the store, the partitions.

Each check gives one finding: ok, warn (an optional feature is missing, or no host has used the
store yet) or fail, with the remedy. A failed check skips only the checks that depend on it.
"""

from __future__ import annotations

import asyncio
import platform
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    LEASE_OF_HOSTS,
    ca_file,
    connection_option,
    group_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)
from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.client.base import HubClient
    from pumphouse.leases.model import Group
    from pumphouse.leases.store import CheckpointStore

OK, WARN, FAIL = "ok", "warn", "fail"
EXTRAS = {
    "postgres": ("psycopg", "a store, or the records of the pipeline, in PostgreSQL"),
    "redis": ("redis", "a store in Redis"),
    "azure": ("azure.eventhub", "Azure's own service and Blob stores"),
    "spark": ("pyspark", "the Spark source, sink and pipeline"),
    "dashboard": ("starlette", "the web page"),
    "tls": ("cryptography", "making a development certificate"),
}
# A separate group: the check never touches rows in use.
PROBE_GROUP = "pumphouse-doctor"

# The format of an Event Processor Host in which a container keeps the leases of a group.
FORMAT_TEXTS = {
    None: "the container has no leases of this group yet: hosts will use the format of .NET",
    "net": "leases have the format of .NET hosts (net)",
    "java": "leases have the format of Java hosts (java)",
    "javascript": "leases have the format of JavaScript hosts (javascript)",
    "python": "leases have the format of Python hosts (python)",
}

# Remedies by status of a partition. `in_group` takes the place of {}.
FIXES = {
    "stopped": "see the log of its owner, then `pumphouse groups resume {}`",
    "stuck": "see handler_stuck in the log of its owner",
    "behind": "add hosts, or make the handler faster",
    "data lost": "see events_expired in the log of its owner; raise the retention of the hub",
    "ahead": "reset its checkpoint: `pumphouse checkpoints reset --group {} --to earliest`",
}


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    fix: str = ""


@click.command(short_help="Check machine, hub, consumer group, store and partitions.")
@hub_option
@group_option
@connection_option
@store_option
@lease_option(LEASE_OF_HOSTS)
@output_option
def doctor(
    hub: str | None, group: str, connection: str | None, store: str, lease_s: float, output: str
) -> None:
    """Check the machine, the hub, the consumer group, the checkpoint store and the partitions.

    The exit status is 3 if a check failed, or if a partition is stopped, stuck, behind or ahead, or
    has lost data; see `groups describe`.
    """
    failed = False
    for finding in findings(hub, group, connection, store, lease_s):
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
        console.print_line(f"{finding.level:<5} {finding.what}{fix}")


def findings(
    hub: str | None, group: str, connection: str | None, store: str, lease_s: float
) -> Iterator[Finding]:
    from pumphouse.cli.common.group_access import missing_file

    yield from check_machine()
    with asyncio.Runner() as runner:
        failed = False
        for checks in (check_hub(connection, hub, group), check_store(store, group)):
            for finding in in_turn(runner, checks):
                failed = failed or finding.level == FAIL
                yield finding
        if connection and not failed and missing_file(store) is None:
            yield from in_turn(runner, check_partitions(connection, hub, group, store, lease_s))


def in_turn(runner: asyncio.Runner, checks: AsyncIterator[Finding]) -> Iterator[Finding]:
    """Yield each finding as soon as it is known: a slow check does not delay earlier findings."""

    async def next_finding() -> Finding | None:
        return await anext(checks, None)

    while (finding := runner.run(next_finding())) is not None:
        yield finding


# -- the machine ----------------------------------------------------------------------------------


def check_machine() -> Iterator[Finding]:
    yield Finding(OK, f"Python {platform.python_version()} on {platform.system()}")
    for extra, (module, purpose) in EXTRAS.items():
        if not is_installed(module):
            yield Finding(
                WARN,
                f"package {module} is not installed: needed for {purpose}",
                f"pip install 'pumphouse[{extra}]'",
            )
    if is_installed("pyspark"):
        yield check_java()


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_java() -> Finding:
    from pumphouse.spark.session import JavaMissing, find_java

    try:
        return Finding(OK, f"Java {find_java()} for Spark")
    except JavaMissing as error:
        return Finding(FAIL, str(error))


# -- the hub --------------------------------------------------------------------------------------


async def check_hub(connection: str | None, hub: str | None, group: str) -> AsyncIterator[Finding]:
    if not connection:
        fix = "use --connection STRING or set EVENT_HUB_CONN_STR; `pumphouse up` prints one"
        yield Finding(FAIL, "no connection string", fix)
        return
    from pumphouse.client.base import RetryOptions
    from pumphouse.client.factory import open_client

    try:
        since = time.perf_counter()
        opened = open_client(
            connection, hub or "", ca_file=ca_file(), retry=RetryOptions(attempts=0)
        )
        async with opened as client:
            properties = await client.properties()
            took_ms = (time.perf_counter() - since) * 1000
            count = console.plural(len(properties.partitions), "partition")
            address = f"{client.namespace} responds in {took_ms:.0f} ms"
            yield Finding(OK, f"hub {client.hub} at {address}, {count}")
            yield await check_group(client, group, properties.partitions[0])
    except PumphouseError as error:
        yield Finding(FAIL, f"the hub check failed: {error}")


async def check_group(client: HubClient, group: str, partition: str) -> Finding:
    """A group exists if a reader attaches, or is refused because of a reader with an epoch."""
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
        return Finding(OK, f"consumer group {group} exists and has a reader")
    return Finding(OK, f"consumer group {group} exists")


# -- the store ------------------------------------------------------------------------------------


async def check_store(url: str, group: str) -> AsyncIterator[Finding]:
    from pumphouse.cli.common.group_access import CHECK_STORE, missing_file
    from pumphouse.leases.store_url import open_store, parse_store_url

    if (file := missing_file(url)) is not None:
        yield Finding(WARN, f"no store at {file}", CHECK_STORE)
        return
    is_legacy = parse_store_url(url).kind == "bloblease"
    try:
        async with open_store(url) as store:
            fmt = await legacy_format(store, group) if is_legacy else None
            if is_legacy:
                yield Finding(OK, FORMAT_TEXTS[fmt])
            if fmt == "javascript":  # these hosts take every blob of the container for a partition
                yield Finding(OK, "checkpoint store responds; nothing was written to it")
            else:
                yield await check_compare_and_set(store)
    except PumphouseError as error:
        yield Finding(FAIL, f"the store check failed: {error}")


async def legacy_format(store: CheckpointStore, group: str) -> str | None:
    """The format of the leases of a group; None if it has none."""
    from pumphouse.leases.model import Group
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

    assert isinstance(store, BlobLeaseStore)
    return await store.find_format(Group("pumphouse", "doctor", group))


async def check_compare_and_set(store: CheckpointStore) -> Finding:
    """Check that the store grants only one of two writes with the same etag.

    Leases depend on this property.
    """
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
        return Finding(
            WARN, "another `pumphouse doctor` is checking this store", "run the command again later"
        )
    await store.claim_ownership(group, [release(first.row)])
    if not isinstance(second, Refused):
        return Finding(FAIL, "the checkpoint store granted two conflicting writes: do not use it")
    return Finding(OK, f"checkpoint store responds in {took_ms:.0f} ms and refuses a stale write")


# -- the partitions -------------------------------------------------------------------------------


async def check_partitions(
    connection: str, hub: str | None, group: str, store: str, lease_s: float
) -> AsyncIterator[Finding]:
    from pumphouse.cli.common.group_access import open_group

    try:
        async with open_group(connection, hub, group, store) as access:
            for finding in await partition_findings(access, lease_s):
                yield finding
    except PumphouseError as error:
        yield Finding(FAIL, f"the partition check failed: {error}")


async def partition_findings(access: GroupAccess, lease_s: float) -> list[Finding]:
    """One finding per kind of problem. A group without hosts is none: they may start later."""
    from pumphouse.cli.describe import take_overview
    from pumphouse.processor.admin.overview import BAD, MEANING, NO_OWNER

    overview = await take_overview(access, lease_s, None)
    problems = []
    for status in (status for status in BAD if status != NO_OWNER):
        if names := [line.partition for line in overview.lines if line.status == status]:
            text = f"partition {', '.join(names)} of consumer group {overview.group} is {status}"
            fix = FIXES.get(status, "").format(in_group(access.group))
            problems.append(Finding(FAIL, f"{text}: it {MEANING[status]}", fix))
    owned = sum(line.owner != "" for line in overview.lines)
    hosts = console.plural(len(overview.hosts), "host")
    summary = f"{owned} of {len(overview.lines)} partitions owned by {hosts}"
    return problems or [Finding(OK, summary)]


def in_group(group: Group) -> str:
    """The arguments of a command for this group, as they are written in a shell."""
    return f"{shlex.quote(group.name)} --hub {shlex.quote(group.hub)}"
