"""Writes docs/cli-reference.md: every command and option, out of the commands themselves.

.venv/bin/python scripts/cli_reference.py          # writes it
.venv/bin/python scripts/cli_reference.py --check  # exit 1 if it is not what it should be
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pumphouse.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "cli-reference.md"
HEAD = """# Command line reference

Made by `scripts/cli_reference.py` from the commands; [cli.md](cli.md) tells how to use them.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Every command below this one that can be called, in the order of the help."""
    if not isinstance(command, click.Group):
        yield context
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None, name
        yield from commands(found, click.Context(found, info_name=name, parent=context))


def section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", f"```\n{usage}\n```", prose(command.help or "")]
    rows = [row(option) for option in command.params if isinstance(option, click.Option)]
    if rows:
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part)


def prose(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "")


def row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" `{placeholder(option)}`"
    return "| " + " | ".join((names + value, default(option), meaning(option))) + " |"


def placeholder(option: click.Option) -> str:
    return cell(option.metavar or option.type.name.upper()).replace("`", "")


def default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    plain = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return f"`{option.default}`" if plain and option.default != "" and not option.count else ""


def meaning(option: click.Option) -> str:
    known = option.type.choices if isinstance(option.type, click.Choice) else ()
    choices = f" One of {', '.join(map(str, known))}." if known else ""
    variables = option.envvar if isinstance(option.envvar, str) else " ".join(option.envvar or ())
    told = f" Variable: `{variables}`." if variables else ""
    return cell((option.help or "") + choices + told)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    root = click.Context(main, info_name="pumphouse")
    return "\n\n".join([HEAD.strip(), *map(section, commands(main, root))]) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
    elif not PAGE.is_file() or PAGE.read_text() != page():
        sys.exit("docs/cli-reference.md is not what the commands say: run scripts/cli_reference.py")
