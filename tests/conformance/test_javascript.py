"""The official JavaScript client, unmodified, as a judge of the hub.

Every scenario is an exported function of a file in `js/`, and becomes a test of its own here. It
runs in a process of its own against a hub of its own; the two talk over stdin and stdout, one JSON
object a line:

    node: {"ask": "drop"}      ->  wrapper: {"answer": 3}      (something only the hub can do)
    node: {"result": ...}      ->  what the scenario returned; its process must then end by itself
"""

from __future__ import annotations

import asyncio
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
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pumphouse.hub.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for

HERE = Path(__file__).parent / "js"
HUB, PARTITIONS, GROUP = "judged", 4, "$Default"
# The slowest scenario takes four seconds on two cores; what takes ten times that hangs.
LIMIT_S = 12.0

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
            if code != 0:
                errors.seek(0)
                why = f"did not end within {LIMIT_S} s" if code == -9 else f"exit code {code}"
                pytest.fail(f"{file} {name}: {why}\n{errors.read()}", pytrace=False)
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


# -- between languages ----------------------------------------------------------------------------


def test_what_javascript_sent_is_read_by_python(judge: Judge) -> None:
    judge.run("relay.js", "sendForPython")
    events = asyncio.run(read_with_python(judge.hub.connection_string(HUB), "0", 6))
    *plain, rich, text, nested = events
    assert [b"".join(event.body) for event in plain] == [  # type: ignore[arg-type]
        b'"text"',  # the JavaScript client makes JSON of whatever is no Buffer
        b"\x00\xff",
        '{"json":[1,null,"ü"]}'.encode(),
    ]
    assert rich.properties == {
        b"text": "grüße".encode(),
        b"whole": 7,
        b"negative": -7,
        b"large": 1 << 40,
        b"half": 0.5,
        b"yes": True,
        b"no": False,
        b"nothing": None,
        b"time": 1714564800123,
        b"raw": b"\x00\x01\xff",
    }
    assert (rich.content_type, rich.message_id, rich.correlation_id) == ("text/plain", "m-1", "c-1")
    assert [event.sequence_number for event in events] == list(range(6))
    assert text.body == b"a value"
    assert nested.body == {b"a": [1, 2]}


def test_a_key_from_javascript_is_read_by_python(judge: Judge) -> None:
    judge.run("relay.js", "sendWithKey")
    home = str(partition_for("ключ", PARTITIONS))
    [event] = asyncio.run(read_with_python(judge.hub.connection_string(HUB), home, 1))
    assert event.partition_key == "ключ".encode()


def test_what_python_sent_is_read_by_javascript(judge: Judge) -> None:
    rich = EventData(b"p")
    rich.properties = {
        "text": "grüße",
        "whole": 7,
        "negative": -7,
        "large": (1 << 31) - 1,  # the Python client cannot encode more
        "half": 0.5,
        "yes": True,
        "raw": b"\x00\xff",
        "nothing": None,
    }
    rich.content_type, rich.message_id, rich.correlation_id = "text/plain", "m-1", "c-1"
    annotated = AmqpAnnotatedMessage(
        value_body={"a": [1, "two"]},
        properties=AmqpMessageProperties(subject="s"),
        annotations={"x-opt-mine": "kept"},
    )
    sent = [EventData(b"\x00\xff"), EventData('{"json": 1}'), rich, annotated]
    asyncio.run(send_with_python(judge.hub.connection_string(HUB), "0", sent))

    raw, json_text, rich_found, annotated_found = judge.run(
        "relay.js", "readFromPython", count=len(sent)
    )
    assert raw["body"] == {"hex": "00ff"}
    assert raw["bodyType"] == "data"
    assert json_text["body"] == {"hex": b'{"json": 1}'.hex()}
    assert rich_found["properties"] == {**rich.properties, "raw": {"hex": "00ff"}}
    assert [rich_found[name] for name in ("contentType", "messageId", "correlationId")] == [
        "text/plain",
        "m-1",
        "c-1",
    ]
    assert annotated_found["bodyType"] == "value"
    assert annotated_found["body"] == {"a": [1, "two"]}
    assert annotated_found["subject"] == "s"
    assert annotated_found["annotation"] == "kept"


async def read_with_python(connection: str, partition: str, count: int) -> list[EventData]:
    events: list[EventData] = []
    enough = asyncio.Event()

    async def on_event(_: object, event: EventData) -> None:
        events.append(event)
        if len(events) >= count:
            enough.set()

    async with EventHubConsumerClient.from_connection_string(connection, GROUP) as client:
        reading = asyncio.create_task(
            client.receive(on_event, partition_id=partition, starting_position="-1")
        )
        await asyncio.wait_for(enough.wait(), LIMIT_S)
    reading.cancel()
    return events


async def send_with_python(connection: str, partition: str, events: list[Any]) -> None:
    async with EventHubProducerClient.from_connection_string(connection) as client:
        await client.send_batch(events, partition_id=partition)
