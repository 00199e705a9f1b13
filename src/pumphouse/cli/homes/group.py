"""`pumphouse homes`: the group of the commands send, replay, run and kinds.

Each command has its own module: send and replay need numpy, run needs Spark.
"""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = ("send", "replay", "run", "kinds")


class Homes(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"pumphouse.cli.homes.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Homes, short_help="Simulate the sensors of homes, and process their readings.")
def homes() -> None:
    """Send readings of simulated homes, and run the Spark stages that process them."""
