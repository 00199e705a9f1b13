"""The command line: `pumphouse up`, `hubs`, `groups`, `send`, `tail`, `process` and so on.

One file per command. The module of a command is imported when the command is called, and it imports
its libraries when it runs, so that `--help` is fast. The list of commands needs none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click

from pumphouse.cli.common import console

# command -> its module below pumphouse.cli
COMMANDS = {
    "up": "up",
    "hubs": "hubs",
    "groups": "groups",
    "checkpoints": "checkpoints",
    "send": "send",
    "tail": "tail",
    "process": "process",
    "homes": "homes.group",
    "simulate": "simulate",
    "faults": "faults",
    "dash": "dash",
    "lag-exporter": "lag_exporter",
    "scaler": "scaler",
    "doctor": "doctor",
    "demo": "demo.command",
}
# The first sentences of their help texts.
SUMMARIES = {
    "up": "Start an event hub for the official Azure clients.",
    "hubs": "Create, grow, list and delete event hubs.",
    "groups": "Create, list, describe, resume and delete consumer groups.",
    "checkpoints": "List, move, export and import checkpoints.",
    "send": "Send events from the command line, a file or stdin.",
    "tail": "Show the last events of HUB, or the events from a position.",
    "process": "Call your function with the events of a hub.",
    "homes": "Simulate the sensors of homes, and process their readings.",
    "simulate": "Simulate processors with faults, in virtual time.",
    "faults": "Inject faults into a running hub.",
    "dash": "Show a hub in the browser.",
    "lag-exporter": "Export the lag of consumer groups for Prometheus.",
    "scaler": "Serve the lag of consumer groups to KEDA.",
    "doctor": "Check machine, hub, consumer group, store and partitions.",
    "demo": "Run hub, homes, Spark pipeline, processors and page.",
}


class Commands(click.Group):
    """Loads commands by name, and reports every expected error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"pumphouse.cli.{COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            console.discard_stdout()
            return None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        call = partial(super().main, args, prog_name or "pumphouse", complete_var, **extra)
        if not standalone_mode:
            return call(standalone_mode=False)
        console.open_missing_streams()
        console.escape_what_stdout_cannot_encode()
        with console.exit_on_errors():
            # Outside of standalone mode click returns what `ctx.exit` was called with.
            code: object = call(standalone_mode=False)
            sys.stdout.flush()  # a full disk behind stdout fails here, and not at the exit
        sys.exit(code if isinstance(code, int) else 0)


@click.group("pumphouse", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pumphouse", prog_name="pumphouse")
def main() -> None:
    """An event hub on your own machine, and tools to inspect event hubs.

    `pumphouse up` starts a hub for the official Azure Event Hubs clients and prints its connection
    string. The other commands take that string from --connection, PUMPHOUSE_CONNECTION or
    EVENT_HUB_CONN_STR.
    """
