"""`pumphouse checkpoints`: list, move, export and import the checkpoints of a consumer group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    POSITION_TYPE,
    connection_option,
    group_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)
from pumphouse.errors import OptionError
from pumphouse.events import Event, Position, to_datetime, to_ms

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.client.base import PartitionProperties
    from pumphouse.leases.model import Checkpoint
    from pumphouse.processor.admin.resets import Change, ResetPosition

READ_S = 5.0  # deadline for reading an event that exists
partition_option = click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    metavar="N",
    help="Only this partition; may be given several times.",
)
execute_option = click.option(
    "--execute", is_flag=True, help="Write the changes. Without it they are only shown."
)
force_option = click.option(
    "--force",
    is_flag=True,
    help="Write even if hosts own the partitions. Hosts of official SDKs overwrite the change.",
)


@click.group()
def checkpoints() -> None:
    """List, move, export and import the checkpoints of a consumer group."""


@checkpoints.command("list")
@hub_option
@group_option
@connection_option
@store_option
@output_option
def list_checkpoints(
    hub: str | None, group: str, connection: str | None, store: str, output: str
) -> None:
    """List the checkpoints of a consumer group."""
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> list[Checkpoint]:
        return in_order(await access.checkpoints())

    rows = with_group(connection, hub, group, store, work)
    if output == "json":
        for checkpoint in rows:
            console.print_json(as_json(checkpoint))
    elif rows:
        headers = ("PARTITION", "SEQUENCE", "OFFSET", "ENQUEUED", "EPOCH")
        console.print_table(headers, [cells(checkpoint) for checkpoint in rows])
    else:
        console.message(f"consumer group {group} has no checkpoints in this store")


@checkpoints.command()
@hub_option
@group_option
@partition_option
@click.option(
    "--to",
    type=POSITION_TYPE,
    metavar="POSITION",
    help="Position of the next event: earliest, latest, seq:N, offset:N, time:T, time:-15m.",
)
@click.option("--shift-by", type=int, metavar="N", help="Skip N events; a negative N goes back.")
@execute_option
@force_option
@connection_option
@store_option
@lease_option
@output_option
def reset(
    hub: str | None,
    group: str,
    partitions: tuple[str, ...],
    to: Position | None,
    shift_by: int | None,
    execute: bool,
    force: bool,
    connection: str | None,
    store: str,
    lease_s: float,
    output: str,
) -> None:
    """Move checkpoints, so that processing continues at another position.

    Without --execute the changes are only shown. The command refuses to write while hosts own the
    partitions; stop the hosts first.
    """
    from pumphouse.cli.common.group_access import with_group

    if (to is None) == (shift_by is None):
        raise click.UsageError("use either --to POSITION or --shift-by N")

    async def work(access: GroupAccess) -> None:
        changes = await plan(access, partitions, to, shift_by)
        await apply_changes(access, changes, lease_s, execute, force, output)

    with_group(connection, hub, group, store, work)


@checkpoints.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@hub_option
@group_option
@connection_option
@store_option
def export(file: IO[str], hub: str | None, group: str, connection: str | None, store: str) -> None:
    """Write the checkpoints to FILE or stdout, one JSON object per line."""
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> list[Checkpoint]:
        return in_order(await access.checkpoints())

    rows = with_group(connection, hub, group, store, work)
    for checkpoint in rows:
        file.write(json.dumps(as_json(checkpoint)) + "\n")
    console.message(f"wrote {console.plural(len(rows), 'checkpoint')}")


@checkpoints.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@hub_option
@group_option
@execute_option
@force_option
@connection_option
@store_option
@lease_option
@output_option
def import_checkpoints(
    file: IO[str],
    hub: str | None,
    group: str,
    execute: bool,
    force: bool,
    connection: str | None,
    store: str,
    lease_s: float,
    output: str,
) -> None:
    """Restore checkpoints from FILE, a file of `export`. It may come from another group."""
    from pumphouse.cli.common.group_access import with_group

    positions = read_positions(file)

    async def work(access: GroupAccess) -> None:
        from pumphouse.processor.admin.resets import change

        await access.partitions(tuple(positions))  # raises if one does not exist
        current = await access.checkpoints()
        changes = [
            change(current.get(partition), access.group, partition, position)
            for partition, position in positions.items()
        ]
        await apply_changes(access, changes, lease_s, execute, force, output)

    with_group(connection, hub, group, store, work)


# -- planning changes -----------------------------------------------------------------------------


async def plan(
    access: GroupAccess, partitions: tuple[str, ...], to: Position | None, shift_by: int | None
) -> list[Change]:
    from pumphouse.processor.admin.resets import change, shifted_position

    checkpoints = await access.checkpoints()
    changes = []
    for properties in await access.partitions(partitions):
        current = checkpoints.get(properties.partition)
        position = to if to is not None else shifted_position(current, shift_by or 0, properties)
        target = await find_target(access, properties, position)
        changes.append(change(current, access.group, properties.partition, target))
    return changes


async def find_target(
    access: GroupAccess, properties: PartitionProperties, position: Position
) -> ResetPosition:
    """The checkpoint just before a position. Reads the events around it if necessary."""
    from pumphouse.processor.admin.resets import edge_position, position_before

    target = edge_position(position, properties)
    if target is not None:
        return target
    following = await event_at(access, properties, position)
    if following is None or following.sequence == properties.first_sequence:
        return position_before(properties, following, None)
    assert following.sequence is not None
    earlier = Position("sequence", str(following.sequence - 1), inclusive=True)
    return position_before(properties, following, await event_at(access, properties, earlier))


async def event_at(
    access: GroupAccess, properties: PartitionProperties, position: Position
) -> Event | None:
    from pumphouse.client.base import ReaderOptions

    options = ReaderOptions(properties.partition, access.group.name, position, prefetch=1)
    reader = await access.client.reader(options)
    try:
        events = await reader.receive(1, READ_S)
    finally:
        await reader.close()
    return events[0] if events else None


def read_positions(file: Iterable[str]) -> dict[str, ResetPosition]:
    """The exported checkpoints of a file, by partition."""
    positions: dict[str, ResetPosition] = {}
    for number, line in enumerate(file, 1):
        if line.strip():
            partition, position = parse_line(number, line)
            positions[partition] = position
    if not positions:
        raise OptionError("the file contains no checkpoints")
    return positions


def parse_line(number: int, line: str) -> tuple[str, ResetPosition]:
    from pumphouse.processor.admin.resets import BEGINNING, ResetPosition

    try:
        fields: dict[str, Any] = json.loads(line)
        enqueued = fields.get("enqueued")
        return str(fields["partition"]), ResetPosition(
            int(fields["sequence"]),
            str(fields.get("offset") or BEGINNING),
            to_ms(datetime.fromisoformat(enqueued)) if enqueued else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(
            f"invalid checkpoint in line {number}: use a file of `pumphouse checkpoints export` "
            'with lines such as {"partition": "0", "sequence": 41, "offset": "1088"}'
        ) from None


# -- writing changes ------------------------------------------------------------------------------


async def apply_changes(
    access: GroupAccess,
    changes: list[Change],
    lease_s: float,
    execute: bool,
    force: bool,
    output: str,
) -> None:
    """Show the changes; write them with --execute if no live host owns the partitions."""
    from pumphouse.processor.admin.resets import live_owners

    show(changes, output)
    listing = await access.listing()
    owners = live_owners(listing, lease_s, [change.partition for change in changes])
    if owners and not force:
        held = f"{', '.join(owners)} own{'s' if len(owners) == 1 else ''} these partitions"
        if execute:
            raise click.ClickException(
                f"nothing was changed: {held}; stop the hosts, or add --force"
            )
        console.message(f"Preview only. {held}: stop the hosts, then add --execute.")
    elif not execute:
        console.message("Preview only. Add --execute to write the changes.")
    else:
        await asyncio.gather(*(write(access, change) for change in changes if change.moves))
        console.message("Done.")


async def write(access: GroupAccess, change: Change) -> None:
    from pumphouse.leases.model import Refused, Unknown

    outcome = await access.store.update_checkpoint(change.after, rewind=True)
    if isinstance(outcome, Refused):
        raise click.ClickException(
            f"partition {change.partition}: the checkpoint has changed meanwhile; list and retry"
        )
    if isinstance(outcome, Unknown):
        raise click.ClickException(
            f"partition {change.partition}: no response from the store ({outcome.why}); "
            "list the checkpoints and retry"
        )


# -- output ---------------------------------------------------------------------------------------


def show(changes: list[Change], output: str) -> None:
    if output == "json":
        for change in changes:
            console.print_json(
                {
                    "partition": change.partition,
                    "from": change.before.sequence,
                    "to": change.after.sequence,
                    "effect": change.effect,
                }
            )
        return
    rows = [
        (
            change.partition,
            console.number_text(change.before.sequence),
            console.number_text(change.after.sequence),
            change.effect,
        )
        for change in changes
    ]
    console.print_table(("PARTITION", "CURRENT", "NEW", "EFFECT"), rows)


def in_order(checkpoints: dict[str, Checkpoint]) -> list[Checkpoint]:
    from pumphouse.processor.admin.overview import partition_order

    return sorted(
        checkpoints.values(), key=lambda checkpoint: partition_order(checkpoint.partition)
    )


def as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "partition": checkpoint.partition,
        "sequence": checkpoint.sequence,
        "offset": checkpoint.offset,
        "enqueued": None
        if checkpoint.enqueued_ms is None
        else to_datetime(checkpoint.enqueued_ms).isoformat(),
        "epoch": checkpoint.epoch,
    }


def cells(checkpoint: Checkpoint) -> tuple[str, ...]:
    when = (
        "-"
        if checkpoint.enqueued_ms is None
        else f"{to_datetime(checkpoint.enqueued_ms):%Y-%m-%dT%H:%M:%SZ}"
    )
    return (
        checkpoint.partition,
        console.number_text(checkpoint.sequence),
        checkpoint.offset or "-",
        when,
        str(checkpoint.epoch or "-"),
    )
