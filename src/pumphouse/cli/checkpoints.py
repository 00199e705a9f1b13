"""`pumphouse checkpoints`: list, move, export and import the checkpoints of a consumer group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    LEASE_OF_HOSTS,
    POSITION_TYPE,
    connection_option,
    group_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)
from pumphouse.errors import OptionError, PumphouseError, ReaderEvicted
from pumphouse.events import LATEST, Event, Position, to_datetime, to_ms

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.client.base import PartitionProperties, ReaderOptions
    from pumphouse.leases.model import Checkpoint, Ownership
    from pumphouse.processor.admin.resets import Change, ResetPosition

READER = "pumphouse checkpoints"  # the hub shows this name to the readers that are evicted
WRITES_MAX = 5  # a running host may write a checkpoint in between
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
    "--execute", is_flag=True, help="Write the changes. Without this option they are only shown."
)
force_option = click.option(
    "--force",
    is_flag=True,
    help="Write even if hosts of official SDKs own the partitions. They overwrite the change.",
)


@click.group(short_help="List, move, export and import checkpoints.")
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

    rows = with_group(connection, hub, group, store, work, reads=True)
    if output == "json":
        for checkpoint in rows:
            console.print_json(as_json(checkpoint))
    elif rows:
        headers = ("PARTITION", "SEQUENCE", "OFFSET", "ENQUEUED", "EPOCH")
        console.print_table(headers, [cells(checkpoint) for checkpoint in rows])
    else:
        console.message(f"consumer group {group} has no checkpoints in this store")


@checkpoints.command(short_help="Move checkpoints to another position.")
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
@lease_option(LEASE_OF_HOSTS)
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

    Without --execute the changes are only shown. Running hosts continue at the new position. The
    command refuses to write while hosts of official SDKs own the partitions; stop them first.
    """
    from pumphouse.cli.common.group_access import with_group

    if (to is None) == (shift_by is None):
        raise click.UsageError("use either --to POSITION or --shift-by N")

    async def work(access: GroupAccess) -> None:
        changes = await plan(access, partitions, to, shift_by)
        await apply_changes(access, changes, lease_s, execute, force, output)

    with_group(connection, hub, group, store, work)


@checkpoints.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@hub_option
@group_option
@connection_option
@store_option
def export(file: str, hub: str | None, group: str, connection: str | None, store: str) -> None:
    """Write the checkpoints to FILE or stdout, one JSON object per line.

    If FILE cannot be written, its old content stays.
    """
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> list[Checkpoint]:
        return in_order(await access.checkpoints())

    rows = with_group(connection, hub, group, store, work, reads=True)
    console.write_result(file, "".join(json.dumps(as_json(row)) + "\n" for row in rows))
    console.message(f"wrote {console.plural(len(rows), 'checkpoint')}")


@checkpoints.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@hub_option
@group_option
@execute_option
@force_option
@connection_option
@store_option
@lease_option(LEASE_OF_HOSTS)
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
    """Restore checkpoints from FILE.

    FILE is the output of `export`, of the same or of another consumer group.
    """
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
    from pumphouse.client.base import DEFAULT_GROUP, ReaderOptions

    partition, group = properties.partition, access.group.name
    attempts = [ReaderOptions(partition, group, position, prefetch=1)]
    if group != DEFAULT_GROUP:
        attempts.append(ReaderOptions(partition, DEFAULT_GROUP, position, prefetch=1))
    refused: ReaderEvicted | None = None
    for options in attempts:
        try:
            return await first_event(access, options)
        except ReaderEvicted as error:  # the reader of a running host keeps this one out
            refused = refused or error
    # A reader with the epoch of the host's reader evicts it. The host then opens another one.
    epoch = refused.epoch if refused is not None and refused.epoch is not None else 0
    return await first_event(access, replace(attempts[0], epoch=epoch, name=READER))


async def first_event(access: GroupAccess, options: ReaderOptions) -> Event | None:
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
        raise OptionError(
            "the file contains no checkpoints: use a file of `pumphouse checkpoints export`"
        )
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
    """Show the changes; write them with --execute, unless a live host would overwrite them."""
    from pumphouse.processor.admin.resets import live_rows, overwrites, owners_of

    show(changes, output)
    moved = [change for change in changes if change.moves]
    rows = live_rows(await access.listing(), lease_s, [change.partition for change in changes])
    owners = owners_of(row for row in rows if overwrites(row))
    if owners and not force:
        owners_text = f"{', '.join(owners)} own{'s' if len(owners) == 1 else ''} these partitions"
        why = f"{owners_text} and would overwrite the change"
        if execute:
            raise click.ClickException(f"nothing was changed: {why}; stop them, or add --force")
        console.message(f"Preview only. {why}: stop them, then add --execute.")
    elif not execute:
        console.message("Preview only. Add --execute to write the changes.")
    else:
        await asyncio.gather(*(write(access, change) for change in moved))
        changed = {change.partition for change in moved}
        await wake_owners(access, [row for row in rows if row.partition in changed])
        console.message("Done.")


async def wake_owners(access: GroupAccess, rows: list[Ownership]) -> None:
    """Evict the readers of running hosts: each opens another one, and finds its checkpoint moved.

    A host whose reader cannot be evicted notices the move when it writes its next checkpoint.
    """
    from pumphouse.client.base import ReaderOptions

    async def wake(row: Ownership) -> None:
        with suppress(PumphouseError):
            options = ReaderOptions(
                row.partition, access.group.name, LATEST, row.epoch, prefetch=1, name=READER
            )
            await (await access.client.reader(options)).close()

    await asyncio.gather(*map(wake, rows))
    if rows:
        owners = ", ".join(sorted({row.owner for row in rows}))
        console.message(f"Running hosts continue at the new position: {owners}.")


async def write(access: GroupAccess, change: Change) -> None:
    """Write a checkpoint over the current one, even if its owner writes in between."""
    from pumphouse.leases.model import Refused, Unknown

    outcome = await access.store.update_checkpoint(change.after, rewind=True)
    for _ in range(WRITES_MAX - 1):
        if not isinstance(outcome, Refused):
            break
        current = (await access.checkpoints()).get(change.partition)
        etag, epoch = (current.etag, current.epoch) if current is not None else ("", 0)
        newer = replace(change.after, etag=etag, epoch=epoch)
        outcome = await access.store.update_checkpoint(newer, rewind=True)
    if isinstance(outcome, Refused):
        raise click.ClickException(
            f"partition {change.partition}: the checkpoint was changed by another "
            "writer; list the checkpoints and retry"
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
            sequence_text(change.before.sequence),
            sequence_text(change.after.sequence),
            change.effect,
        )
        for change in changes
    ]
    console.print_table(("PARTITION", "CURRENT", "NEW", "EFFECT"), rows)


def sequence_text(sequence: int | None) -> str:
    """The last handled event as text; -1 means that processing starts at the first event."""
    return "beginning" if sequence == -1 else console.number_text(sequence)


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
