"""Whatever breaks: no event is missed, none is handed out twice, and what cannot pass is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.reader import NativeReader
from pumphouse.errors import (
    AmqpError,
    ConnectionFailed,
    HubNotFound,
    LocalProtocolError,
    PumphouseError,
    ReaderEvicted,
)
from pumphouse.events import LATEST, Event, Position
from pumphouse.hub import epochs
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import ConsumerLink

from .ways import DEADLINE_S, QUICK, WAYS, client_by, numbered, read, read_all, sequences

Break = Callable[[EmbeddedHub], None]


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}, tls_port=0, ws_port=0, fault_seed=11) as hub:
        yield hub


class Pest:
    """Breaks something at a random moment, once after each bit of progress.

    After progress, not by the clock: on a slow machine a network that breaks ever so often would
    only show that patience ends.
    """

    def __init__(self, hub: EmbeddedHub, rng: Random, breaks: Sequence[Break]) -> None:
        self.hub, self.rng, self.breaks = hub, rng, breaks
        self.count = 0
        self._timer: asyncio.TimerHandle | None = None

    def again(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.rng.random() * 0.004, self.strike)

    def strike(self) -> None:
        self._timer = None
        # What is planned for an attach or a connect waits for one; then something has to break.
        chosen = self.rng.choice(self.breaks) if len(self.hub.faults.planned) < 2 else drop
        chosen(self.hub)
        self.count += 1

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.hub.faults.clear()


def drop(hub: EmbeddedHub) -> None:
    hub.drop_connections()


def drop_at_delivery(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="deliver", times=1)


def drop_at_send(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="send", times=1)


def drop_at_attach(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="attach", times=1)


def drop_at_connect(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="connect", times=1)


def detach(hub: EmbeddedHub) -> None:
    hub.faults.detach(on="deliver", times=1)


def detach_sender(hub: EmbeddedHub) -> None:
    hub.faults.detach(on="send", times=1)


def refuse(hub: EmbeddedHub) -> None:
    hub.faults.refuse(times=1)


def throttle(hub: EmbeddedHub) -> None:
    hub.faults.throttle(times=1)


def slow_down(hub: EmbeddedHub) -> None:
    hub.faults.delay(0.01, on="deliver", times=1)


READING = [drop, drop_at_delivery, drop_at_attach, drop_at_connect, detach, refuse, slow_down]
SENDING = [drop_at_send, detach_sender, throttle, refuse, drop_at_attach]
BREAKS = {"tcp": 200, "tls": 80, "ws": 80, "wss": 40}  # a handshake costs more than a break


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
async def test_no_gap_and_no_repeat_whatever_breaks(hub: EmbeddedHub, way: str) -> None:
    """Hundreds of breaks, some of them before the first event is there."""
    rng = Random(way)
    async with client_by(way, hub) as client, client_by("tcp", hub) as calm:
        sender = await calm.sender("0")
        reader = await client.reader(ReaderOptions("0", position=LATEST, prefetch=50))
        seen: list[Event] = []
        sent = 0
        pest = Pest(hub, rng, READING)
        while pest.count < BREAKS[way]:
            sent += await sender.send(numbered(rng.randrange(40), start=sent))
            if found := await reader.receive(rng.randrange(1, 30), 0.02):
                seen += found
                pest.again()
        pest.stop()
        seen += await read(reader, sent - len(seen))
    assert [event.body for event in seen] == [b"%d" % number for number in range(sent)]


async def test_many_readers_of_one_client_all_go_on() -> None:
    async with EmbeddedHub({"eh": 32}) as hub, client_by("tcp", hub) as client:
        partitions = (await client.properties()).partitions
        for partition in partitions:
            await (await client.sender(partition)).send(numbered(30))
        readers = [await client.reader(ReaderOptions(p, prefetch=7)) for p in partitions]
        for reader in readers:
            await read(reader, 5)
        hub.drop_connections()
        async with asyncio.timeout(DEADLINE_S):
            found = await asyncio.gather(*(read(reader, 25) for reader in readers))
        assert all(sequences(events) == list(range(5, 30)) for events in found)
        assert len(hub.server.connections) == 1, "one connection is made anew, not thirty-two"


@pytest.mark.parametrize("filled", [0, 5])
async def test_latest_is_what_comes_after_reader_returned_also_across_a_break(
    hub: EmbeddedHub, filled: int
) -> None:
    async with client_by("tcp", hub) as client, client_by("tcp", hub) as other:
        sender = await other.sender("0")
        await sender.send(numbered(filled))
        reader = await client.reader(ReaderOptions("0", position=LATEST))
        # While the connection is down, and the reader not yet back, something arrives.
        refusals = hub.faults.refuse(partition="0", group="$Default")
        hub.faults.drop(on="connect", times=3)
        for talk in list(hub.server.connections):
            if any(isinstance(node, ConsumerLink) for node in talk.links()):
                talk.drop()
        await sender.send(numbered(3, start=filled))
        hub.faults.cancel(refusals)
        assert sequences(await read(reader, 3)) == [filled, filled + 1, filled + 2]


async def test_what_has_arrived_is_kept_and_not_read_again(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub) as client:
        await (await client.sender("0")).send(numbered(100))
        reader = await client.reader(ReaderOptions("0", prefetch=20))
        await read(reader, 1)
        async with asyncio.timeout(DEADLINE_S):
            while len(reader._buffer) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        kept = len(reader._buffer)
        sent_before = hub.namespace.hub("eh").partitions[0].events_sent
        hub.drop_connections()
        assert sequences(await read(reader, 99)) == list(range(1, 100))
        assert kept >= 10
        sent_again = hub.namespace.hub("eh").partitions[0].events_sent - sent_before
        assert sent_again <= 99 - kept, "those that were kept did not come over the wire again"


@pytest.mark.parametrize("way", WAYS)
async def test_a_hub_that_restarts_on_its_data(tmp_path: Path, way: str) -> None:
    ports = {"port": 0, "tls_port": 0, "ws_port": 0}
    seen: list[Event] = []
    sent = 0
    hub = EmbeddedHub({"eh": 1}, data=tmp_path / "data", **ports)  # type: ignore[arg-type]
    await hub.start()
    ports = {"port": hub.port, "tls_port": hub.tls_port or 0, "ws_port": hub.ws_port or 0}
    async with client_by(way, hub, retry=RetryOptions(200, 0.01, 0.1)) as client:
        sender = await client.sender("0")
        reader = await client.reader(ReaderOptions("0", epoch=3))
        for _ in range(5):
            sent += await sender.send(numbered(50, start=sent))
            seen += await read(reader, 20)
            await hub.stop()
            sending = asyncio.create_task(sender.send(numbered(10, start=sent)))
            hub = EmbeddedHub(data=tmp_path / "data", **ports)  # type: ignore[arg-type]
            await hub.start()
            async with asyncio.timeout(DEADLINE_S):
                sent += await sending
        seen += await read(reader, sent - len(seen))
        assert [event.body for event in seen] == [b"%d" % number for number in range(sent)]
        assert [one.epoch for one in hub_readers(hub)] == [3], "the epoch is kept"
    await hub.stop()


def hub_readers(hub: EmbeddedHub) -> list[epochs.Reader]:
    nodes = [node for talk in hub.server.connections for node in talk.links()]
    return [node.reader for node in nodes if isinstance(node, ConsumerLink)]


async def test_a_hub_that_forgot_everything_is_not_read_as_if_nothing_happened() -> None:
    first = EmbeddedHub({"eh": 1}, root_key="key")
    await first.start()
    port = first.port
    async with client_by("tcp", first, retry=RetryOptions(200, 0.01, 0.1)) as client:
        reader = await client.reader(ReaderOptions("0"))
        await (await client.sender("0")).send(numbered(10))
        await read(reader, 10)
        await first.stop()
        async with EmbeddedHub({"eh": 1}, root_key="key", port=port):
            with pytest.raises(AmqpError, match="The supplied sequence number '9' is invalid"):
                await read(reader, 1)


# -- what is not retried --------------------------------------------------------------------------

PATIENT = RetryOptions(attempts=1000, first_s=600, most_s=600)  # one retry would outlast the test


async def test_eviction_is_never_retried(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub, retry=PATIENT) as client:
        old = await client.reader(ReaderOptions("0", epoch=4, name="old"))
        new = await client.reader(ReaderOptions("0", epoch=7, name="new"))
        with pytest.raises(ReaderEvicted, match=r"New receiver 'new'.*'old'") as evicted:
            await old.receive(1, DEADLINE_S)
        assert evicted.value.epoch == 7
        with pytest.raises(ReaderEvicted, match="already exists") as refused:
            await client.reader(ReaderOptions("0", epoch=6))
        assert refused.value.epoch == 7
        with pytest.raises(ReaderEvicted, match="non-epoch receiver is not allowed") as refused:
            await client.reader(ReaderOptions("0"))
        assert refused.value.epoch == 7
        await (await client.sender("0")).send(numbered(1))
        assert len(await read(new, 1)) == 1
        with pytest.raises(ReaderEvicted):
            await old.receive(1, DEADLINE_S)


async def test_a_reader_that_comes_back_too_late_is_refused(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub) as client, client_by("tcp", hub) as other:
        late = await client.reader(ReaderOptions("0", epoch=1))
        mine = client.connection.current
        assert mine is not None
        gate = hub.faults.drop(on="connect")
        mine.connection.transport.abort()
        await other.reader(ReaderOptions("0", epoch=2))
        hub.faults.cancel(gate)
        with pytest.raises(ReaderEvicted) as refused:
            await late.receive(1, DEADLINE_S)
        assert refused.value.epoch == 2


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:not-found", HubNotFound),
        ("com.microsoft:argument-error", AmqpError),
        ("com.microsoft:entity-disabled", AmqpError),
        ("amqp:not-allowed", AmqpError),
    ],
)
async def test_a_no_is_a_no(hub: EmbeddedHub, condition: str, kind: type[PumphouseError]) -> None:
    hub.faults.refuse(condition, "For good.", times=1)
    async with client_by("tcp", hub, retry=PATIENT) as client, asyncio.timeout(DEADLINE_S):
        with pytest.raises(kind, match="For good"):
            await client.reader(ReaderOptions("0"))
        with pytest.raises(AmqpError, match="between 0 and 1"):
            await client.reader(ReaderOptions("7"))
        with pytest.raises(AmqpError, match="The supplied offset '99' is invalid"):
            await client.reader(ReaderOptions("0", position=Position("offset", "99")))


async def test_patience_ends_and_says_what_it_was(hub: EmbeddedHub) -> None:
    hub.faults.refuse("com.microsoft:server-busy", "Come back later.")
    async with client_by("tcp", hub, retry=RetryOptions(3, 0.001, 0.01)) as client:
        with pytest.raises(ConnectionFailed, match=r"failed 4 times.*Come back later"):
            await client.reader(ReaderOptions("0"))
        assert hub.faults.struck["refuse"] == 4, "one attempt and three more"


async def test_a_link_that_is_cut_whenever_it_is_used_is_not_attached_for_ever(
    hub: EmbeddedHub,
) -> None:
    async with client_by("tcp", hub, retry=RetryOptions(5, 0.001, 10.0)) as client:
        await (await client.sender("0")).send(numbered(1))
        hub.faults.detach(description="Not today.", on="deliver")
        reader = await client.reader(ReaderOptions("0"))
        with pytest.raises(ConnectionFailed, match="Not today"):
            await read(reader, 1)
        assert hub.faults.struck["detach"] == 6


async def test_an_event_starts_the_count_anew(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub, retry=RetryOptions(2, 0.001, 10.0)) as client:
        sender = await client.sender("1")
        reader = await client.reader(ReaderOptions("1"))
        for number in range(10):
            hub.faults.detach(on="deliver", times=2)
            await sender.send(numbered(1))
            assert sequences(await read(reader, 1)) == [number]


# -- sending --------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", [None, "home-7"])
async def test_everything_is_there_and_in_order_whatever_breaks(
    hub: EmbeddedHub, way: str, key: str | None
) -> None:
    """What was refused is not there twice; only a broken connection leaves its outcome open."""
    async with client_by(way, hub) as client, client_by("tcp", hub) as calm:
        sender = await client.sender("0" if key is None else None)
        rng = Random(way)
        sent = 0
        pest = Pest(hub, rng, SENDING)
        while pest.count < BREAKS[way] // 2:
            count = rng.randrange(1, 60)
            assert await sender.send(numbered(count, key, sent), batch_events_max=7) == count
            sent += count
            pest.again()
        pest.stop()
        found = [e for p in ("0", "1") for e in await read_all(calm, p)]
        first = dict.fromkeys(int(event.body) for event in found)
        assert list(first) == list(range(sent)), "each is there, the first time in its order"
        assert sender.accepted == sent


async def test_exactly_the_refused_batch_is_sent_again(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub) as client:
        sender = await client.sender("0")
        hub.faults.throttle(rate=0.5)
        assert await sender.send(numbered(500), batch_events_max=5) == 500
        assert hub.faults.struck["throttle"] > 20
        hub.faults.clear()
        bodies = [event.body for event in await read_all(client)]
        assert bodies == [b"%d" % number for number in range(500)], "in order, and none twice"


async def test_of_one_key_one_batch_is_under_way_and_of_others_several(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub) as client:
        sender = await client.sender()
        hub.faults.throttle(rate=0.5)
        keys = [f"k{number}" for number in range(6)]
        events = [Event(b"%d" % number, partition_key=key) for number in range(100) for key in keys]
        assert await sender.send(events, batch_events_max=3) == 600
        hub.faults.clear()
        found = [e for p in ("0", "1") for e in await read_all(client, p)]
        for key in keys:
            bodies = [int(event.body) for event in found if event.partition_key == key]
            assert bodies == list(range(100))


async def test_a_send_that_is_throttled_for_ever_says_so(hub: EmbeddedHub) -> None:
    hub.faults.throttle()
    async with client_by("tcp", hub, retry=RetryOptions(3, 0.001, 0.01)) as client:
        sender = await client.sender()
        with pytest.raises(ConnectionFailed, match="the entity is being throttled"):
            await sender.send(numbered(1))
        assert (sender.accepted, hub.faults.struck["throttle"]) == (0, 4)


async def test_a_hub_that_owes_an_answer_is_taken_for_dead_and_asked_again(
    hub: EmbeddedHub,
) -> None:
    hub.faults.delay(30.0, on="send", times=1)
    async with client_by("tcp", hub, options=ConnectionOptions(answer_s=0.5)) as client:
        async with asyncio.timeout(DEADLINE_S):
            assert await (await client.sender("0")).send(numbered(3)) == 3
        assert [event.body for event in await read_all(client)] == [b"0", b"1", b"2"]


# -- questions ------------------------------------------------------------------------------------


async def test_questions_are_asked_again(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub) as client:
        await client.properties()
        for _ in range(30):
            asking = asyncio.create_task(client.partition_properties("0"))
            await asyncio.sleep(0)
            hub.drop_connections()
            async with asyncio.timeout(DEADLINE_S):
                assert (await asking).partition == "0"


# -- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_leaving_is_bounded_even_if_the_hub_is_gone(hub: EmbeddedHub, way: str) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(DEADLINE_S):
        async with client_by(
            way, hub, retry=PATIENT, options=ConnectionOptions(close_s=0.2)
        ) as client:
            await client.reader(ReaderOptions("0"))
            sender = await client.sender()
            await hub.stop()
            asked = asyncio.create_task(client.properties())
            sending = asyncio.create_task(sender.send(numbered(3)))
            await asyncio.sleep(0.05)  # so that mending has begun, and waits
        for task in (asked, sending):
            with pytest.raises(PumphouseError):
                await task
    assert asyncio.all_tasks() <= before


async def test_leaving_ends_the_pause_before_the_next_attempt(hub: EmbeddedHub) -> None:
    hub.faults.refuse("com.microsoft:server-busy", "Come back later.")
    async with asyncio.timeout(DEADLINE_S):
        async with client_by("tcp", hub, retry=PATIENT) as client:
            asking = asyncio.create_task(client.reader(ReaderOptions("0")))
            while not hub.faults.struck["refuse"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(LocalProtocolError, match="has been closed"):
            await asking


async def test_a_reader_that_is_being_mended_can_be_closed(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub, retry=PATIENT) as client:
        reader = await client.reader(ReaderOptions("0"))
        hub.faults.drop(on="connect")
        hub.drop_connections()
        assert await reader.receive(1, 0.05) == []
        async with asyncio.timeout(DEADLINE_S):
            await reader.close()
    assert isinstance(reader, NativeReader)


async def test_whoever_waits_for_a_connection_can_be_cancelled(hub: EmbeddedHub) -> None:
    async with client_by("tcp", hub, retry=PATIENT) as client:
        await hub.stop()
        waiting = asyncio.create_task(client.properties())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_connection_that_never_comes_is_given_up(hub: EmbeddedHub) -> None:
    text = hub.connection_string("eh")
    await hub.stop()
    with pytest.raises(ConnectionFailed, match="cannot connect to"):
        await NativeClient(text, retry=QUICK).__aenter__()
