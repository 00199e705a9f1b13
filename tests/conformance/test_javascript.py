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
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient, PartitionContext
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for
from tests.conformance.doors import DURABLE, SECURE, WEBSOCKET, WSS, Door, address_of

HERE = Path(__file__).parent / "js"
HUB, PARTITIONS, GROUP = "judged", 4, "$Default"
# The slowest scenario takes three seconds on two cores: what is not done after this one hangs.
LIMIT_S = 45.0

# Parts of scenarios, and those that need something special from this side.
NOT_SCENARIOS = ("judge.js", "run.js", "store.js", "relay.js", "doors.js")


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


# This client speaks WebSocket only over TLS. What a restart does is judged by the Python client.
OWN_DOORS = {WEBSOCKET: WSS, DURABLE: None}


@pytest.fixture
def judge(door: Door) -> Iterator[Judge]:
    """A hub of its own for each scenario."""
    with door.hub() as hub:
        judge = Judge(hub)
        judge.more["webSocket"] = door.name == WSS
        if door.name in SECURE:
            judge.environment["NODE_EXTRA_CA_CERTS"] = str(door.ca_file)
        yield judge


class Judge:
    """Runs scenarios against one hub."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub
        self.environment: dict[str, str] = {}
        self.more: dict[str, Any] = {}  # that scenarios are given
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
            **self.more,
            **more,
        }

    def run(self, file: str, name: str, **more: Any) -> Any:
        """Run a scenario to its end; what it returns is returned."""
        environment = {
            **os.environ,
            **self.environment,
            "PUMPHOUSE_JUDGE": json.dumps(self.given(**more)),
        }
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
        eventually(lambda: not self.leftovers(), self.leftovers)
        return result

    def leftovers(self) -> list[object]:
        """What a client leaves behind in the hub: nothing, soon after it is gone."""
        model = self.hub.namespace.hub(HUB)
        return [*self.hub.server.conversations, *model.readers(), *model.senders]

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


def wait_for_readers(hub: EmbeddedHub, *, partition: str, group: str, count: int) -> None:
    """Wait until so many links read a partition: nothing tells the client of it."""
    there = hub.namespace.hub(HUB).partition(partition)
    eventually(
        lambda: len(there.readers.get(group.lower(), [])) == count,
        lambda: f"{there.readers} on {partition}, where {count} should be",
    )


def eventually(condition: Callable[[], object], complaint: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, complaint()
        time.sleep(0.005)


def close(hub: EmbeddedHub) -> int:
    """Close every connection as the service does when it moves house: with a reason."""

    def say_so() -> int:
        closed = list(hub.server.conversations)
        for conversation in closed:
            conversation.stop()
        return len(closed)

    return hub._call(say_so)


ANSWERS: dict[str, Callable[..., Any]] = {
    "close": close,
    "drop": EmbeddedHub.drop_connections,
    "readers": wait_for_readers,
}


@pytest.mark.parametrize(("file", "name"), list(scenarios()))
def test_scenario(judge: Judge, file: str, name: str) -> None:
    judge.run(file, name)


def test_keys_go_where_the_hub_sends_them(judge: Judge) -> None:
    homes = judge.run("relay.js", "sendByKey")
    assert len(homes) > 60
    assert homes == {key: str(partition_for(key, PARTITIONS)) for key in homes}


# -- other doors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", ["tls", "webSocket", "tokenInsteadOfKey"])
def test_other_doors(trusted: str) -> None:
    run_at_the_doors(trusted, lambda hub: {"NODE_EXTRA_CA_CERTS": str(hub.ca_file)})


def test_a_certificate_nobody_trusts() -> None:
    run_at_the_doors("untrustedCertificate", lambda hub: {})


def run_at_the_doors(name: str, environment: Callable[[EmbeddedHub], dict[str, str]]) -> None:
    issuer = TokenIssuer(b"a secret of this test")
    with EmbeddedHub(tls_port=0, ws_port=0, issuer=issuer) as hub:
        judge = Judge(hub)
        judge.environment = environment(hub)
        judge.run(
            "doors.js",
            name,
            secure=hub.connection_string(HUB, tls=True),
            webSocketPort=hub.ws_port,
            token=issuer.mint([Claim.SEND, Claim.LISTEN], now=time.time()),
        )


# -- between languages ----------------------------------------------------------------------------


def test_what_javascript_sent_is_read_by_python(judge: Judge, door: Door) -> None:
    judge.run("relay.js", "sendForPython")
    events = asyncio.run(read_with_python(judge.hub, door, "0", 6))
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


def test_a_key_from_javascript_is_read_by_python(judge: Judge, door: Door) -> None:
    judge.run("relay.js", "sendWithKey")
    home = str(partition_for("ключ", PARTITIONS))
    [event] = asyncio.run(read_with_python(judge.hub, door, home, 1))
    assert event.partition_key == "ключ".encode()


def test_what_python_sent_is_read_by_javascript(judge: Judge, door: Door) -> None:
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
        properties=AmqpMessageProperties(subject="s"),  # type: ignore[no-untyped-call]
        annotations={"x-opt-mine": "kept"},
    )
    sent = [EventData(b"\x00\xff"), EventData('{"json": 1}'), rich, annotated]
    asyncio.run(send_with_python(judge.hub, door, "0", sent))

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


async def read_with_python(
    hub: EmbeddedHub, door: Door, partition: str, count: int
) -> list[EventData]:
    events: list[EventData] = []
    enough = asyncio.Event()

    async def on_event(_: PartitionContext, event: EventData | None) -> None:
        assert event is not None  # it would be, had we asked for a longest wait
        events.append(event)
        if len(events) >= count:
            enough.set()

    connection = hub.connection_string(HUB)
    way = door.options(address_of(connection))
    async with EventHubConsumerClient.from_connection_string(connection, GROUP, **way) as client:
        reading = asyncio.create_task(
            client.receive(on_event, partition_id=partition, starting_position="-1")
        )
        await asyncio.wait_for(enough.wait(), LIMIT_S)
    reading.cancel()
    return events


async def send_with_python(hub: EmbeddedHub, door: Door, partition: str, events: list[Any]) -> None:
    connection = hub.connection_string(HUB)
    way = door.options(address_of(connection))
    async with EventHubProducerClient.from_connection_string(connection, **way) as client:
        await client.send_batch(events, partition_id=partition)
