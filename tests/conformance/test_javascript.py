"""The official JavaScript client, unmodified, as a judge of the hub.

Every scenario is an exported function of a file in `js/`, and becomes a test of its own here. It
runs in a process of its own against a hub of its own; the two talk over stdin and stdout, one JSON
object a line:

    node: {"ask": "drop"}      ->  wrapper: {"answer": 3}      (something only the hub can do)
    node: {"result": ...}      ->  what the scenario returned; its process must then end by itself
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.hub.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for

HERE = Path(__file__).parent / "js"
HUB, PARTITIONS, GROUP = "judged", 4, "$Default"
# The slowest scenario takes four seconds on two cores; what takes ten times that hangs.
LIMIT_S = 45.0

NOT_SCENARIOS = ("judge.js", "run.js", "store.js", "relay.js")


def scenarios() -> Iterator[Any]:
    for file in sorted(HERE.glob("*.js")):
        if file.name not in NOT_SCENARIOS:
            for name in re.findall(r"^export async function (\w+)\(", file.read_text(), re.M):
                yield pytest.param(file.name, name, id=f"{file.stem}-{name}")


@pytest.fixture(autouse=True)
def clients() -> None:
    """Skip, saying what to do, where the JavaScript packages were not installed."""
    if shutil.which("node") is None or not (HERE / "node_modules").is_dir():
        pytest.skip("needs node and its packages: run scripts/npm-ci, or make test, which does")


@pytest.fixture
def judge(event_hub: EmbeddedHub) -> Judge:
    return Judge(event_hub)


class Judge:
    """Runs scenarios against one hub."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub
        hub.create_hub(HUB, PARTITIONS, ["second"])
        hub.create_rule("sender", [Claim.SEND])
        hub.create_rule("listener", [Claim.LISTEN])

    def given(self, **more: Any) -> dict[str, Any]:
        return {
            "connection": self.hub.connection_string(HUB),
            "namespace": self.hub.connection_string(),
            "sendOnly": self.hub.connection_string(HUB, "sender"),
            "listenOnly": self.hub.connection_string(HUB, "listener"),
            "hub": HUB,
            "partitions": [str(number) for number in range(PARTITIONS)],
            "group": GROUP,
            **more,
        }

    def run(self, file: str, name: str, **more: Any) -> Any:
        """Run a scenario to its end; what it returns is returned."""
        environment = {**os.environ, "PUMPHOUSE_JUDGE": json.dumps(self.given(**more))}
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                ["node", "run.js", file, name],
                cwd=HERE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            watchdog = threading.Timer(LIMIT_S, process.kill)
            watchdog.start()
            try:
                result = self.converse(process)
            finally:
                code = process.wait()
                watchdog.cancel()
            errors.seek(0)
            killed = f"{file} {name} did not end within {LIMIT_S} s\n" if code == -9 else ""
            assert code == 0, killed + errors.read()
            return result

    def converse(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        result = None
        for line in process.stdout:
            said = json.loads(line)
            if "ask" in said:
                answer = ANSWERS[said.pop("ask")](self.hub, **said)
                process.stdin.write(json.dumps({"answer": answer}) + "\n")
                process.stdin.flush()
            else:
                result = said["result"]
        return result


def drop(hub: EmbeddedHub) -> int:
    return hub.drop_connections()


def wait_for_readers(
    hub: EmbeddedHub, *, hub_name: str = HUB, partition: str, group: str, count: int
) -> int:
    """Wait until so many links read a partition: no event tells of it on the client's side."""
    there = hub.namespace.hub(hub_name).partition(partition)
    give_up_at = time.monotonic() + LIMIT_S
    while len(there.readers.get(group.lower(), [])) != count:
        assert time.monotonic() < give_up_at, f"{there.readers} where {count} should be"
        time.sleep(0.005)
    return count


ANSWERS: dict[str, Callable[..., Any]] = {"drop": drop, "readers": wait_for_readers}


@pytest.mark.parametrize(("file", "name"), list(scenarios()))
def test_scenario(judge: Judge, file: str, name: str) -> None:
    judge.run(file, name)


def test_keys_go_where_the_hub_sends_them(judge: Judge) -> None:
    homes = judge.run("send.js", "byKey")
    assert len(homes) > 60
    assert homes == {key: str(partition_for(key, PARTITIONS)) for key in homes}
