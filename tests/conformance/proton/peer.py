"""Qpid Proton, an AMQP implementation that owes nothing to Azure or to us, as a judge of the hub.

The official clients use a corner of AMQP, always the same one. Proton uses the rest: plain SASL
logins, single messages, drain, small frames and windows, heartbeats, sessions that end while their
links are open. And it reads what the hub writes with eyes of its own.

It comes as source only. `scripts/proton`, which `make test` runs, builds it where that can be done;
elsewhere the tests that import this file are skipped, and say why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pumphouse.hub.connection import ServerOptions
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub


def why_missing() -> str:
    """What the last attempt to build Proton had to say."""
    report = Path(__file__).parents[3] / ".venv/proton.missing"
    said = report.read_text()[-2000:] if report.exists() else "nobody has tried to build it yet"
    return f"needs Qpid Proton: run scripts/proton ({said.strip()})"


# Not everywhere, and typed where it is: as Any it looks the same to mypy on every machine.
proton: Any = pytest.importorskip("proton", reason=why_missing())
reactor: Any = pytest.importorskip("proton.reactor", reason=why_missing())
utils: Any = pytest.importorskip("proton.utils", reason=why_missing())

Message, symbol = proton.Message, proton.symbol
numbers = count(1)

HUB, PARTITIONS = "judged", 4
# No judgement depends on speed: this only ends a wait for something that will not come.
DEADLINE_S = 20.0
EARLIEST = "amqp.annotation.x-opt-offset > '-1'"


class Option:
    """A link option as Proton takes them: something done to a link before it is attached."""

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
    """A connection, logged in with a rule's name and key unless told otherwise."""
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


def send(hub: EmbeddedHub, *found: Any) -> None:
    """Put messages with these bodies into partition 0, over a connection of their own."""
    with connected(hub) as connection:
        link = sender(connection)
        for body in found:
            link.send(Message(body=body))


def bodies(receiver: Any, wanted: int) -> list[Any]:
    """The bodies of the next events."""
    messages = [receiver.receive() for _ in range(wanted)]
    return [plain(message.body) for message in messages]


def plain(value: Any) -> Any:
    """Binary comes out of Proton as a view of memory that lives no longer than its message."""
    return bytes(value) if isinstance(value, memoryview) else value


def work_until(connection: Any, condition: Callable[[], object]) -> None:
    """Let the connection send and receive until something holds."""
    connection.wait(condition, timeout=DEADLINE_S)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for the hub while no connection of ours does anything."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.005)


def reader_count(hub: EmbeddedHub) -> int:
    return len(list(hub.namespace.hub(HUB).readers()))
