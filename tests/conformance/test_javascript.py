"""Conformance tests with the unmodified official JavaScript client.

Every exported function of a file in `js/` is a scenario and becomes a test. It runs in its own
process against its own hub. Process and test exchange JSON lines over stdin and stdout:

    node: {"ask": "drop"}      ->  test: {"answer": 3}      (an action of the hub)
    node: {"result": ...}      ->  the result of the scenario; its process must then end by itself
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
from tests.conformance.variants import DURABLE, SECURE, WEBSOCKET, WSS, HubVariant, address_of

HERE = Path(__file__).parent / "js"
HUB, PARTITIONS, GROUP = "scenarios", 4, "$Default"
# The slowest scenario takes three seconds on two cores: one that is not done after this hangs.
LIMIT_S = 45.0

# Shared modules, and scenarios that need special support from this side.
NOT_SCENARIOS = ("scenario.js", "run.js", "store.js", "relay.js", "transports.js")


def scenarios() -> Iterator[Any]:
    for file in sorted(HERE.glob("*.js")):
        if file.name not in NOT_SCENARIOS:
            for name in re.findall(r"^export async function (\w+)\(", file.read_text(), re.M):
                yield pytest.param(file.name, name, id=f"{file.stem}-{name}")


@pytest.fixture(autouse=True)
def clients() -> None:
    """Skip, with what to do, where the JavaScript packages are not installed."""
    if shutil.which("node") is None or not (HERE / "node_modules").is_dir():
        pytest.skip("needs node and its packages: run scripts/npm-ci, or make test, which does")


# This client uses WebSocket only over TLS. Restarts are tested with the Python client.
OWN_VARIANTS = {WEBSOCKET: WSS, DURABLE: None}


@pytest.fixture
def runner(variant: HubVariant) -> Iterator[ScenarioRunner]:
    """A hub of its own for each scenario."""
    with variant.hub() as hub:
        runner = ScenarioRunner(hub)
        runner.more["webSocket"] = variant.name == WSS
        if variant.name in SECURE:
            runner.environment["NODE_EXTRA_CA_CERTS"] = str(variant.ca_file)
        yield runner


class ScenarioRunner:
    """Runs scenarios against one hub."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub = hub
        self.environment: dict[str, str] = {}
        self.more: dict[str, Any] = {}  # further input of the scenarios
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
        """Run a scenario and return its result."""
        environment = {
            **os.environ,
            **self.environment,
            "PUMPHOUSE_SCENARIO": json.dumps(self.given(**more)),
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
        """Connections, readers and senders that are left; must be empty soon after the end."""
        model = self.hub.namespace.hub(HUB)
        return [*self.hub.server.connections, *model.readers(), *model.senders]

    def converse(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        result = None
        for line in process.stdout:
            message = json.loads(line)
            if "ask" in message:
                answer = ANSWERS[message.pop("ask")](self.hub, **message)
                process.stdin.write(json.dumps({"answer": answer}) + "\n")
                process.stdin.flush()
            else:
                result = message["result"]
        return result


def wait_for_readers(hub: EmbeddedHub, *, partition: str, group: str, count: int) -> None:
    """Wait until `count` links read a partition: the client has no callback for that."""
    model = hub.namespace.hub(HUB).partition(partition)
    eventually(
        lambda: len(model.readers.get(group.lower(), [])) == count,
        lambda: f"{model.readers} on {partition}, expected {count} readers",
    )


def eventually(condition: Callable[[], object], complaint: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, complaint()
        time.sleep(0.005)


def close(hub: EmbeddedHub) -> int:
    """Close every connection with a reason, as the service does in maintenance."""

    def close_all() -> int:
        closed = list(hub.server.connections)
        for conversation in closed:
            conversation.stop()
        return len(closed)

    return hub._call(close_all)


ANSWERS: dict[str, Callable[..., Any]] = {
    "close": close,
    "drop": EmbeddedHub.drop_connections,
    "readers": wait_for_readers,
}


@pytest.mark.parametrize(("file", "name"), list(scenarios()))
def test_scenario(runner: ScenarioRunner, file: str, name: str) -> None:
    runner.run(file, name)


def test_a_key_goes_to_the_partition_that_the_hub_computes(runner: ScenarioRunner) -> None:
    homes = runner.run("relay.js", "sendByKey")
    assert len(homes) > 60
    assert homes == {key: str(partition_for(key, PARTITIONS)) for key in homes}


# -- other transports -----------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", ["tls", "webSocket", "tokenInsteadOfKey"])
def test_other_transports(trusted: str) -> None:
    run_with_transport(trusted, lambda hub: {"NODE_EXTRA_CA_CERTS": str(hub.ca_file)})


def test_an_untrusted_certificate_is_refused() -> None:
    run_with_transport("untrustedCertificate", lambda hub: {})


def run_with_transport(name: str, environment: Callable[[EmbeddedHub], dict[str, str]]) -> None:
    issuer = TokenIssuer(b"a secret of this test")
    with EmbeddedHub(tls_port=0, ws_port=0, issuer=issuer) as hub:
        runner = ScenarioRunner(hub)
        runner.environment = environment(hub)
        runner.run(
            "transports.js",
            name,
            secure=hub.connection_string(HUB, tls=True),
            webSocketPort=hub.ws_port,
            token=issuer.mint([Claim.SEND, Claim.LISTEN], now=time.time()),
        )


# -- between languages ----------------------------------------------------------------------------


def test_what_javascript_sent_is_read_by_python(
    runner: ScenarioRunner, variant: HubVariant
) -> None:
    runner.run("relay.js", "sendForPython")
    events = asyncio.run(read_with_python(runner.hub, variant, "0", 6))
    *plain, rich, text, nested = events
    assert [b"".join(event.body) for event in plain] == [  # type: ignore[arg-type]
        b'"text"',  # the JavaScript client encodes everything but a Buffer as JSON
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


def test_a_key_from_javascript_is_read_by_python(
    runner: ScenarioRunner, variant: HubVariant
) -> None:
    runner.run("relay.js", "sendWithKey")
    home = str(partition_for("ключ", PARTITIONS))
    [event] = asyncio.run(read_with_python(runner.hub, variant, home, 1))
    assert event.partition_key == "ключ".encode()


def test_what_python_sent_is_read_by_javascript(
    runner: ScenarioRunner, variant: HubVariant
) -> None:
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
    asyncio.run(send_with_python(runner.hub, variant, "0", sent))

    raw, json_text, rich_found, annotated_found = runner.run(
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
    hub: EmbeddedHub, variant: HubVariant, partition: str, count: int
) -> list[EventData]:
    events: list[EventData] = []
    enough = asyncio.Event()

    async def on_event(_: PartitionContext, event: EventData | None) -> None:
        assert event is not None  # only with max_wait_time it can be None
        events.append(event)
        if len(events) >= count:
            enough.set()

    connection = hub.connection_string(HUB)
    way = variant.options(address_of(connection))
    async with EventHubConsumerClient.from_connection_string(connection, GROUP, **way) as client:
        reading = asyncio.create_task(
            client.receive(on_event, partition_id=partition, starting_position="-1")
        )
        await asyncio.wait_for(enough.wait(), LIMIT_S)
    reading.cancel()
    return events


async def send_with_python(
    hub: EmbeddedHub, variant: HubVariant, partition: str, events: list[Any]
) -> None:
    connection = hub.connection_string(HUB)
    way = variant.options(address_of(connection))
    async with EventHubProducerClient.from_connection_string(connection, **way) as client:
        await client.send_batch(events, partition_id=partition)
