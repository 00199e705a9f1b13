"""`pumphouse groups resume`: starts partitions again that an event has stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    LEASE_OF_HOSTS,
    connection_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess

LOOK_EVERY_S = 0.5
ATTEMPTS = 5  # a renewal of the owner may come first


@click.command()
@click.argument("group")
@hub_option
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    metavar="N",
    help="Only this partition; may be given several times. By default all that are stopped.",
)
@connection_option
@store_option
@lease_option(LEASE_OF_HOSTS)
@output_option
def resume(
    group: str,
    hub: str | None,
    partitions: tuple[str, ...],
    connection: str | None,
    store: str,
    lease_s: float,
    output: str,
) -> None:
    """Resume the stopped partitions of the consumer group GROUP.

    A partition is stopped by an event that its handler cannot process, if the poison policy is
    `stop`. Its owner reads the request at its next renewal and starts after the checkpoint, with
    the same event. The command waits until the owners have started, at most for the time of a
    lease. The exit status is 3 if an owner has not started its partitions by then.
    """
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> tuple[dict[str, str], list[str]]:
        await check_exists(access, partitions)
        requested = await request(access, lease_s, partitions)
        return requested, await wait_for_owners(access, requested, lease_s)

    requested, late = with_group(connection, hub, group, store, work, warn=False)
    if not requested:
        console.message(f"no partition of consumer group {group} is stopped")
    for partition, owner in requested.items():
        report(partition, owner, partition not in late, output)
    if late:
        raise SystemExit(console.UNHEALTHY)


async def check_exists(access: GroupAccess, partitions: tuple[str, ...]) -> None:
    """OptionError if a partition does not exist, HubNotFound if the group does not.

    The hub is queried only if the store has no rows of the group.
    """
    from pumphouse.processor.checks.access import readable_partitions

    if partitions:
        await access.partitions(partitions)
    if not (await access.listing()).ownerships:
        await readable_partitions(access.client, access.group.name)


async def request(
    access: GroupAccess, lease_s: float, partitions: tuple[str, ...]
) -> dict[str, str]:
    """Write the requests; returns the owner of each requested partition."""
    from pumphouse.errors import StoreError
    from pumphouse.leases.model import request_resume
    from pumphouse.leases.store import granted_rows
    from pumphouse.processor.admin.resumes import stopped_rows

    requested: dict[str, str] = {}
    for _ in range(ATTEMPTS):
        rows = stopped_rows(await access.listing(), lease_s, partitions)
        rows = [row for row in rows if row.partition not in requested]
        if not rows:
            return requested
        claims = [request_resume(row) for row in rows]
        outcomes = await access.store.claim_ownership(access.group, claims)
        requested |= {row.partition: row.owner for row in granted_rows(outcomes)}
    names = ", ".join(row.partition for row in rows if row.partition not in requested)
    raise StoreError(f"the request for partition {names} could not be written; retry")


async def wait_for_owners(
    access: GroupAccess, requested: dict[str, str], timeout_s: float
) -> list[str]:
    """Wait until every owner has read its request; returns the partitions that still wait."""
    from pumphouse.processor.admin.resumes import waiting

    late = list(requested)
    try:
        async with asyncio.timeout(timeout_s):
            while late:
                await asyncio.sleep(LOOK_EVERY_S)
                late = waiting(await access.listing(), late)
    except TimeoutError:
        pass
    return late


def report(partition: str, owner: str, resumed: bool, output: str) -> None:
    if output == "json":
        console.print_json({"partition": partition, "owner": owner, "resumed": resumed})
    elif resumed:
        console.print_line(f"{owner} has resumed partition {partition}")
    else:
        console.print_line(f"{owner} has not resumed partition {partition} yet: see its log")
