"""`pumphouse groups describe`: who owns which partition, how far, and whether that is well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    connection_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.processor.admin.overview import Overview, PartitionRow

HEADERS = (
    "PARTITION",
    "OWNER",
    "EPOCH",
    "LEASE",
    "CHECKPOINT",
    "END",
    "LAG",
    "LAG-TIME",
    "STATUS",
)
# A checkpoint that did not move between two looks means nothing if they are seconds apart:
# hosts checkpoint every few seconds at best.
COMPARE_S = 30.0


@click.command()
@click.argument("group")
@hub_option
@connection_option
@store_option
@lease_option
@click.option("--watch", is_flag=True, help="Look again and again until Ctrl-C.")
@click.option("--every", type=DURATION_TYPE, default="2s", show_default=True, help="With --watch.")
@output_option
def describe(
    group: str,
    hub: str | None,
    connection: str | None,
    store: str,
    lease_s: float,
    watch: bool,
    every: float,
    output: str,
) -> None:
    """Show who owns which partition of consumer group GROUP, and how far behind they are.

    The verdict of a partition is one of: ok, idle (no event yet), moving (being handed over),
    unread (no checkpoint yet), and, worth a look: behind (the lag grows), stuck (the checkpoint
    does not move), no owner, data lost (retention removed unread events), ahead (the hub was
    re-created). Exit status 3 if any partition needs a look.
    """
    from pumphouse.cli.common.group_access import with_group

    show = as_json if output == "json" else as_table

    async def once(access: GroupAccess) -> Overview:
        return await look(access, lease_s, None)

    async def keep_looking(access: GroupAccess) -> Overview:
        return await repeat(access, lease_s, every, show, clear=output == "text")

    if watch:
        with_group(connection, hub, group, store, keep_looking)
        return
    found = with_group(connection, hub, group, store, once)
    show(found)
    if any(line.bad for line in found.lines):
        raise SystemExit(console.UNHEALTHY)


async def look(access: GroupAccess, lease_s: float, before: Overview | None) -> Overview:
    from pumphouse.processor.admin.overview import overview

    partitions, listing, marks = await asyncio.gather(
        access.partitions(), access.listing(), access.checkpoints()
    )
    group = access.group
    return overview(group.name, group.hub, partitions, listing, marks.values(), lease_s, before)


async def repeat(
    access: GroupAccess,
    lease_s: float,
    every_s: float,
    show: Callable[[Overview], None],
    clear: bool,
) -> Overview:
    """Look until somebody stops us, and compare with what was seen half a minute ago."""
    looks: deque[Overview] = deque(maxlen=max(1, round(COMPARE_S / every_s)))
    while True:
        full = len(looks) == looks.maxlen
        found = await look(access, lease_s, looks[0] if full else None)
        looks.append(found)
        if clear:
            console.clear_screen()
        show(found)
        await asyncio.sleep(every_s)


def as_table(found: Overview) -> None:
    fewest, most = found.shares()
    console.print_table(
        ("GROUP", "HUB", "STATE", "HOSTS", "SHARE", "TOTAL-LAG", "MAX-LAG", "MAX-LAG-TIME"),
        [
            (
                found.group,
                found.hub,
                found.state,
                str(len(found.hosts)),
                f"{fewest}-{most}" if fewest != most else str(most),
                f"{found.lag:,}",
                f"{found.lag_max:,}",
                seconds(found.lag_s_max),
            )
        ],
    )
    print()
    console.print_table(HEADERS, [cells(line) for line in found.lines])


def cells(line: PartitionRow) -> tuple[str, ...]:
    return (
        line.partition,
        (line.owner or "-") + (f" -> {line.successor}" if line.successor else ""),
        str(line.epoch or "-"),
        lease(line.lease_left_s),
        number(line.checkpoint),
        number(line.end if line.end >= 0 else None),
        number(line.lag),
        seconds(line.lag_s),
        console.highlight(line.verdict, bad=line.bad),
    )


def lease(left_s: float | None) -> str:
    if left_s is None:
        return "-"
    return f"{left_s:.0f}s left" if left_s > 0 else f"expired {-left_s:.0f}s"


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}s"


def as_json(found: Overview) -> None:
    """One object per look, so that `--watch -o json` stays one object per line."""
    console.print_json(
        {
            "group": found.group,
            "hub": found.hub,
            "state": found.state,
            "hosts": list(found.hosts),
            "lag": found.lag,
            "lag_seconds_max": found.lag_s_max,
            "partitions": [line_json(line) for line in found.lines],
        }
    )


def line_json(line: PartitionRow) -> dict[str, object]:
    left = line.lease_left_s
    return {
        "partition": line.partition,
        "owner": line.owner or None,
        "epoch": line.epoch,
        "lease_left_seconds": None if left is None or left == float("-inf") else round(left, 3),
        "successor": line.successor or None,
        "checkpoint": line.checkpoint,
        "first": line.first,
        "end": line.end,
        "lag": line.lag,
        "lag_seconds": line.lag_s,
        "verdict": line.verdict,
    }
