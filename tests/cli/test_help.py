"""Help texts, and errors of the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pumphouse.cli import COMMANDS, SUMMARIES, main
from tests.cli.conftest import Call, refused

HEAVY = ("azure", "numpy", "pyspark", "pandas", "rich", "aiohttp", "grpc")


CASES = [["--help"], *([name, "--help"] for name in COMMANDS)]
# Forks for each case, so that the interpreter starts only once.
SCRIPT = f"""
import json, os, sys
from pumphouse.cli import main

def run(args):
    try:
        main(args)
    except SystemExit as end:
        assert end.code == 0
    # The list of all commands imports none of them.
    also = ("asyncio", "ssl", "subprocess") if args == ["--help"] else ()
    heavy = [name for name in (*{HEAVY!r}, *also) if name in sys.modules]
    print("imported:", json.dumps([args, heavy]), flush=True)

for args in {CASES!r}:
    if (pid := os.fork()) == 0:
        run(args)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def help_output() -> str:
    """The output of all cases; a line `imported: [args, modules]` follows each help text."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("args", CASES, ids=str)
def test_help_does_not_import_slow_packages(args: list[str], help_output: str) -> None:
    assert f"imported: {json.dumps([args, []])}\n" in help_output
    command = " ".join(["pumphouse", *args[:-1]])
    assert f"Usage: {command} " in help_output


@pytest.mark.parametrize("group", ["", "hubs", "groups", "checkpoints", "homes", "faults"])
def test_no_description_in_a_list_of_commands_is_cut(group: str) -> None:
    result = CliRunner().invoke(main, [*group.split(), "--help"])
    assert "..." not in result.stdout.partition("Commands:")[2]


def test_the_list_of_commands_has_the_first_sentences_of_their_help_texts() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in COMMANDS}
    summaries = {name: found and found.get_short_help_str(200) for name, found in commands.items()}
    assert summaries == SUMMARIES


def test_without_a_command_all_commands_are_listed() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert all(name in result.stderr for name in COMMANDS)


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("pumphouse, version ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pump"], "No such command 'pump' (see pumphouse --help)"),
        (["hubs", "rename"], "No such command 'rename'"),
        (["hubs", "create"], "Missing argument 'NAME' (see pumphouse hubs create --help)"),
        (["tail", "-n", "0"], "Invalid value for '-n': 0 is not in the range x>=1"),
        (["tail", "-o", "yaml"], "Invalid value for '-o' / '--output': 'yaml'"),
        (["up", "--nonsense"], "No such option"),
    ],
)
def test_a_usage_error_is_one_line(args: list[str], message: str) -> None:
    assert message in refused(CliRunner().invoke(main, args), code=2)


@pytest.mark.parametrize(
    "args", [["hubs", "list"], ["groups", "list"], ["send", "orders", "x"], ["tail", "orders"]]
)
def test_a_missing_connection_string_is_explained(call: Call, args: list[str]) -> None:
    message = refused(call(*args, connection=None), code=2)
    assert message.startswith("no connection string: use --connection STRING or set")
    assert "`pumphouse up` starts a hub" in message


def test_a_malformed_connection_string_is_not_shown(call: Call) -> None:
    text = "Endpoint=sb://localhost;SharedAccessKey=c2VjcmV0"
    message = refused(call("hubs", "list", connection=text), code=2)
    assert "has a SharedAccessKey and no SharedAccessKeyName" in message
    assert "c2VjcmV0" not in message


def test_a_hub_that_is_not_running_is_reported(call: Call) -> None:
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    message = refused(call("hubs", "list", connection=f"{text};UseDevelopmentEmulator=true"))
    assert message.startswith(
        "cannot connect to 127.0.0.1:1: connection refused; check that the hub is running"
    )
