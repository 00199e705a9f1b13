"""Qpid Proton, an independent AMQP implementation, as a client of the hub.

The official clients use a small part of AMQP. Proton uses the rest: plain SASL logins, single
messages, drain, small frames and windows, heartbeats, and sessions that end while their links are
open.

Proton is published as source only. `scripts/proton`, which `make test` runs, builds it where a
compiler is available; elsewhere the tests that import this file are skipped with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from pumphouse.hub.options import ServerOptions


def why_missing() -> str:
    """The output of the last attempt to build Proton."""
    report = Path(__file__).parents[3] / ".venv/proton.missing"
    output = report.read_text()[-2000:] if report.exists() else "not built yet"
    return f"needs Qpid Proton: run scripts/proton ({output.strip()})"


# Not installed everywhere. As Any it looks the same to mypy on every machine.
proton: Any = pytest.importorskip("proton", reason=why_missing())
reactor: Any = pytest.importorskip("proton.reactor", reason=why_missing())
utils: Any = pytest.importorskip("proton.utils", reason=why_missing())

Message, symbol = proton.Message, proton.symbol
numbers = count(1)

HUB, PARTITIONS = "scenarios", 4
# No test depends on speed: this only bounds a wait that would never end.
DEADLINE_S = 60.0
TURN_S = 0.1
EARLIEST = "amqp.annotation.x-opt-offset > '-1'"


class Option:
    """A link option of Proton: a function that changes a link before it is attached."""

    def __init__(self, apply: Callable[[Any], None]) -> None:
        self.apply = apply

    def test(self, link: Any) -> bool:
        return True


@contextmanager
def started(options: ServerOptions) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(hubs={HUB: PARTITIONS}, options=options) as hub:
        yield hub


@contextmanager
def connected(hub: EmbeddedHub, *, rule: str = ROOT_RULE, **options: Any) -> Iterator[Any]:
    """A connection that logs in with the name and key of a rule, unless options override that."""
    login = {
        "user": rule,
        "password": hub.find_rule(rule, HUB).key,
        "allowed_mechs": "PLAIN",
        "allow_insecure_mechs": True,
    }
    connection = utils.BlockingConnection(hub.authority, timeout=DEADLINE_S, **{**login, **options})
    try:
        yield connection
    finally:
        connection.close()


def reader_address(partition: int = 0, group: str = "$Default") -> str:
    return f"{HUB}/ConsumerGroups/{group}/Partitions/{partition}"


def reader(
    connection: Any,
    selector: str = EARLIEST,
    *options: Any,
    partition: int = 0,
    credit: int = 100,
) -> Any:
    return connection.create_receiver(
        reader_address(partition),
        credit=credit,
        name=f"reader-{next(numbers)}",  # the name that Proton makes up is the same each time
        options=[reactor.Selector(selector), *options],
    )


def sender(connection: Any, address: str = f"{HUB}/Partitions/0", **options: Any) -> Any:
    return connection.create_sender(address, **options)


def send(hub: EmbeddedHub, *bodies: Any) -> None:
    """Send messages with these bodies to partition 0, over a new connection."""
    with connected(hub) as connection:
        link = sender(connection)
        for body in bodies:
            link.send(Message(body=body))


def bodies(receiver: Any, count: int) -> list[Any]:
    """The bodies of the next events."""
    messages = [receiver.receive() for _ in range(count)]
    return [plain(message.body) for message in messages]


def plain(value: Any) -> Any:
    """Binary comes out of Proton as a view of memory that lives no longer than its message."""
    return bytes(value) if isinstance(value, memoryview) else value


def work_until(connection: Any, condition: Callable[[], object]) -> None:
    """Let the connection send and receive until a condition holds.

    In short turns: a condition of the hub may come true while nothing arrives here.
    """
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s"
        with suppress(proton.Timeout):
            connection.wait(condition, timeout=TURN_S)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for the hub while the connections of the test stay idle."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s"
        time.sleep(0.005)


def reader_count(hub: EmbeddedHub) -> int:
    return len(list(hub.namespace.hub(HUB).readers()))
