"""`pumphouse homes kinds` lists the kinds of sensors; the option --kinds adds some by a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import ParsedType, output_option

if TYPE_CHECKING:
    from pumphouse.homes.kinds.model import Kind, Kinds


def parse_kinds_file(path: str) -> Any:
    from pumphouse.homes.kinds.file import load_kinds

    return load_kinds(path)


kinds_option = click.option(
    "--kinds",
    type=ParsedType("file", parse_kinds_file),
    envvar="PUMPHOUSE_KINDS",
    metavar="FILE",
    help="TOML file that adds kinds of sensors with their rules (docs/tutorial-new-sensor.md). "
    "Every command of the pipeline needs the same file.",
)


@click.command()
@click.argument("file", required=False, type=ParsedType("file", parse_kinds_file))
@output_option
def kinds(file: Any, output: str) -> None:
    """List the kinds of sensors, and check FILE.

    FILE is a file for --kinds. Without it the command lists the kinds of the package.
    """
    from pumphouse.homes.kinds.defaults import DEFAULT

    known: Kinds = file or DEFAULT
    rows = [row_of(kind) for kind in known.kinds]
    if output == "json":
        console.print_json({"kinds": rows, "alerts": list(known.alert_names)})
        return
    console.print_table(list(rows[0]), [list(row.values()) for row in rows])


def row_of(kind: Kind) -> dict[str, str]:
    rules = [f"{type(rule).__name__.lower()}: {rule.alert}" for rule in kind.rules]
    return {
        "kind": kind.name,
        "unit": kind.unit or "-",
        "quiet": str(kind.quiet),
        "rules": ", ".join(rules) or "-",
    }
