"""Fixtures that call commands in this process, or run them as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.cli import main
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.orders_group import OrdersGroup

PUMPHOUSE = str(Path(sys.executable).with_name("pumphouse"))
NOWHERE = {"PUMPHOUSE_CONNECTION": None, "EVENT_HUB_CONN_STR": None, "PUMPHOUSE_KEY": None}

Call = Callable[..., Result]


@pytest.fixture
def call(event_hub: EmbeddedHub) -> Call:
    """Calls a command with the connection string of a hub `orders` of two partitions."""
    event_hub.create_hub("orders", 2)

    def call(*args: str, input: str | bytes | None = None, connection: str | None = "") -> Result:
        if connection == "":
            connection = event_hub.connection_string()
        runner = CliRunner(env={**NOWHERE, "EVENT_HUB_CONN_STR": connection})
        return runner.invoke(main, args, input=input)

    return call


def good(result: Result) -> str:
    """The output of a command that must succeed."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """One JSON object per line."""
    return [json.loads(line) for line in text.splitlines()]


def refused(result: Result, code: int = 1) -> str:
    """The one-line error of a command that must fail."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("pumphouse: ")
    return lines[0].removeprefix("pumphouse: ")


class Program:
    """`pumphouse` as a process. It is killed if the test leaves it running."""

    def __init__(
        self,
        *args: str,
        connection: str | None = None,
        stdin: int | None = None,
        prefix: Sequence[str] = (),  # a command that runs it
    ) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A background test run ignores SIGINT, and its children inherit that.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        env = {key: value for key, value in os.environ.items() if key not in NOWHERE}
        if connection is not None:
            env["EVENT_HUB_CONN_STR"] = connection
        self.process = subprocess.Popen(
            [*prefix, PUMPHOUSE, *args],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )

    def line(self) -> str:
        """The next line on stdout; the timeout of the test is the deadline."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: int, within_s: float = 30.0) -> tuple[int, str]:
        """Send a signal; the exit code and stderr."""
        self.process.send_signal(number)
        return self.wait(within_s)

    def wait(self, within_s: float = 20.0) -> tuple[int, str]:
        code = self.process.wait(within_s)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()

    def dispose(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts `pumphouse` processes."""
    started: list[Program] = []

    def start(*args: str, **more: Any) -> Program:
        started.append(Program(*args, **more))
        return started[-1]

    yield start
    for process in started:
        process.dispose()


@pytest.fixture
def orders(call: Call, event_hub: EmbeddedHub, tmp_path: Path) -> OrdersGroup:
    return OrdersGroup(call, event_hub, tmp_path)
