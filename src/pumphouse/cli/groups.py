"""`pumphouse groups`: create, list, describe, resume and delete the consumer groups of a hub."""

from __future__ import annotations

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import connection_option, hub_option, output_option
from pumphouse.cli.describe import describe
from pumphouse.cli.resume import resume


@click.group()
def groups() -> None:
    """Create, list, describe, resume and delete consumer groups."""


groups.add_command(describe)
groups.add_command(resume)


@groups.command()
@click.argument("group")
@hub_option
@connection_option
@output_option
def create(group: str, hub: str | None, connection: str | None, output: str) -> None:
    """Create the consumer group GROUP."""
    from pumphouse.cli.common.hub_connection import with_management

    with_management(connection, hub, lambda management, hub: management.create_group(hub, group))
    report(output, group, "created")


@groups.command("list")
@hub_option
@connection_option
@output_option
def list_groups(hub: str | None, connection: str | None, output: str) -> None:
    """List the consumer groups of a hub."""
    from pumphouse.cli.common.hub_connection import with_management

    for group in with_management(connection, hub, lambda management, hub: management.groups(hub)):
        if output == "json":
            console.print_json({"group": group})
        else:
            console.print_line(group)


@groups.command()
@click.argument("group")
@hub_option
@connection_option
@output_option
def delete(group: str, hub: str | None, connection: str | None, output: str) -> None:
    """Delete the consumer group GROUP and disconnect its readers."""
    from pumphouse.cli.common.hub_connection import with_management

    with_management(connection, hub, lambda management, hub: management.delete_group(hub, group))
    report(output, group, "deleted")


def report(output: str, group: str, action: str) -> None:
    if output == "json":
        console.print_json({"group": group, action: True})
    else:
        console.print_line(f"{action} consumer group {group}")
