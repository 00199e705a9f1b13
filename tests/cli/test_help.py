"""`--help` answers at once, and what is not understood is answered with a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from pumphouse.cli import COMMANDS, main
from tests.cli.conftest import Call, refused

HEAVY = ("azure", "numpy", "pyspark", "pandas", "rich", "aiohttp")


@pytest.mark.parametrize("args", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=str)
def test_help_does_not_import_what_is_slow_to_import(args: list[str]) -> None:
    script = f"""
import sys
from pumphouse.cli import main
try:
    main({args!r})
except SystemExit as end:
    assert end.code == 0
print("imported:", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert "Usage: pumphouse" in done.stdout
    assert done.stderr.split() == ["imported:"]


def test_without_a_command_all_of_them_are_shown() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert all(name in result.stderr for name in COMMANDS)


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("pumphouse, version ")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["pump"], "No such command 'pump' (see pumphouse --help)"),
        (["hubs", "rename"], "No such command 'rename'"),
        (["hubs", "create"], "Missing argument 'NAME' (see pumphouse hubs create --help)"),
        (["tail", "-n", "0"], "Invalid value for '-n': 0 is not in the range x>=1"),
        (["tail", "-o", "yaml"], "Invalid value for '-o' / '--output': 'yaml'"),
        (["up", "--nonsense"], "No such option"),
    ],
)
def test_what_is_not_understood_is_said_in_one_sentence(args: list[str], sentence: str) -> None:
    assert sentence in refused(CliRunner().invoke(main, args), code=2)


@pytest.mark.parametrize(
    "args", [["hubs", "list"], ["groups", "list"], ["send", "orders", "x"], ["tail", "orders"]]
)
def test_without_a_hub_to_talk_to_the_sentence_says_how_to_get_one(
    call: Call, args: list[str]
) -> None:
    sentence = refused(call(*args, connection=None), code=2)
    assert sentence.startswith("no hub to talk to: give --connection STRING or set")
    assert "`pumphouse up` starts a hub" in sentence


def test_a_malformed_connection_string_is_not_shown(call: Call) -> None:
    text = "Endpoint=sb://localhost;SharedAccessKey=c2VjcmV0"
    sentence = refused(call("hubs", "list", connection=text), code=2)
    assert "has a SharedAccessKey and no SharedAccessKeyName" in sentence
    assert "c2VjcmV0" not in sentence


def test_a_hub_that_is_not_there(call: Call) -> None:
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    sentence = refused(call("hubs", "list", connection=f"{text};UseDevelopmentEmulator=true"))
    assert sentence.startswith(
        "cannot connect to 127.0.0.1:1: connection refused; check that the hub is running"
    )
