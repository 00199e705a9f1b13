"""Every driver shortens the text of an error that a hub sends, wherever the hub sends it."""

from __future__ import annotations

import asyncio
import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from pumphouse.amqp.frames import SASL_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.links import Link, ReceiverLink
from pumphouse.amqp.messages import Message
from pumphouse.amqp.performatives import Attach, Close, Error, SaslMechanisms
from pumphouse.client.azure.client import AzureClient
from pumphouse.client.errors import CONDITION_CHARS_MAX, TEXT_CHARS_MAX
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from tests.client.hostile_calls import LIMIT_S, NO_RETRIES, bulk, names, native
from tests.client.hostile_hub import PoliteHub, connection_string, running

LONG = 100_000
# The sentence of the client: the address, what it did, and a condition.
SENTENCE_CHARS_MAX = 400

# The SDK leaves broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collected_connections() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class LongRefusal(PoliteHub):
    """Refuses each token, or each link of a partition, with a long text."""

    status = 401
    condition: ClassVar[str] = ""
    text: ClassVar[str] = "y" * LONG

    def on_request(self, node: str, request: Message) -> None:
        if self.condition:
            super().on_request(node, request)
        else:
            fields = {"status-code": self.status, "status-description": self.text}
            self.reply(node, request, fields)

    def on_attach(self, link: Link, attach: Attach) -> None:
        super().on_attach(link, attach)
        node = attach.target if isinstance(link, ReceiverLink) else attach.source
        if self.condition and not node.address.startswith("$"):
            link.detach(Error(condition=self.condition, description=self.text))


def status(code: int, text: str = LongRefusal.text) -> type[LongRefusal]:
    return type(f"status{code}", (LongRefusal,), {"status": code, "text": text})


def condition(name: str, text: str = LongRefusal.text) -> type[LongRefusal]:
    return type(name[:40], (LongRefusal,), {"condition": name, "text": text})


class LongClose(PoliteHub):
    def flush(self) -> None:
        super().flush()
        if self.amqp.sessions:
            error = Error(condition="amqp:internal-error", description="x" * LONG)
            self.send(encode_frame(Close(error=error)))
            self.wait()


class LongMechanisms(PoliteHub):
    def run(self) -> None:
        offer = SaslMechanisms(mechanisms=("M" * 10_000,) * 3)
        self.send(SASL_HEADER + encode_frame(offer, kind=SASL_FRAME))
        self.wait()


HUBS = [
    *(status(code) for code in (400, 401, 403, 404, 500)),
    *(
        condition(name)
        for name in (
            "amqp:unauthorized-access",
            "amqp:not-found",
            "amqp:link:stolen",
            "amqp:link:message-size-exceeded",
            "com.microsoft:server-busy",
            "amqp:socket-error",
        )
    ),
    condition("x:" + "y" * LONG, ""),
    LongClose,
    LongMechanisms,
]


async def send(client: Any) -> None:
    await (await client.sender("0")).send([Event(b"x")])


async def by_native(hub: type[PoliteHub]) -> None:
    await native(hub, send)


async def by_azure(hub: type[PoliteHub]) -> None:
    with running(hub) as port:
        client = AzureClient(connection_string(port), "eh", retry=NO_RETRIES)
        async with asyncio.timeout(LIMIT_S), client:
            await send(client)


async def by_bulk(hub: type[PoliteHub]) -> None:
    await asyncio.to_thread(bulk, hub)


@pytest.mark.parametrize("hub", HUBS, ids=names)
@pytest.mark.parametrize("driver", [by_native, by_azure, by_bulk], ids=names)
async def test_a_long_text_is_cut(hub: type[PoliteHub], driver: Callable[..., Any]) -> None:
    with pytest.raises(PumphouseError) as failed:
        await driver(hub)
    assert 0 < len(str(failed.value)) < TEXT_CHARS_MAX + CONDITION_CHARS_MAX + SENTENCE_CHARS_MAX
    # A log line with a traceback shows the causes too.
    causes = "".join(traceback.format_exception(failed.value))
    assert max(map(len, causes.splitlines())) < 2 * TEXT_CHARS_MAX
