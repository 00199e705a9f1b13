"""One client with many frames or many links: others have their turn, and the work is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import cast

import pytest
from websockets.frames import Frame, Opcode

from pumphouse.amqp.events import Event
from pumphouse.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from pumphouse.amqp.performatives import (
    RECEIVER,
    SELECTOR_FILTER,
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
)
from pumphouse.amqp.types import Described, Symbol
from pumphouse.hub.access.auth import ALL_CLAIMS, Grant
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.connection import LARGE_BYTES, HubConnection
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.limits.turns import ANONYMOUS_S, AUTHENTICATED_S, PORTION_MAX_S
from pumphouse.hub.links.consumer import SINGLY_BYTES, SINGLY_MAX, ConsumerLink
from pumphouse.hub.links.delivery import RUNTIME_METRIC
from pumphouse.hub.links.requests import REPLY_LINKS_MAX
from pumphouse.hub.listeners.websocket import ServerWebSocket
from tests.fuzz.costs import DiscardingTransport, MeasuredConnection
from tests.fuzz.encoding import text
from tests.fuzz.offline_connection import BEGUN, HUB, Loop, OfflineConnection
from tests.fuzz.streams import FREE, attach, flow
from tests.fuzz.test_live_listeners import UPGRADE
from tests.hub.conftest import Connect
from tests.hub.connections.test_misbehaving_clients import connection_of
from tests.hub.events import batch_of
from tests.hub.peer import READ_FROM, Refused

ANONYMOUS_BEGUN = (
    AMQP_HEADER
    + encode_frame(Open(container_id="anonymous"))
    + encode_frame(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
)
READER = f"{HUB}/ConsumerGroups/$Default/Partitions/0"


class SlowLoop(Loop):
    """A loop whose clock advances each time it is read, by default by a millisecond."""

    now = 1000.0
    step_s = 0.001

    def time(self) -> float:
        self.now += self.step_s
        return self.now


FRAMES = pytest.mark.parametrize("frame", [flow(5, 1, 1), EMPTY_FRAME], ids=["flows", "heartbeats"])
# The clock of a SlowLoop advances once more for each of these.
READS_OF_THE_CLOCK_S = 0.005


@FRAMES
def test_many_frames_of_one_read_are_handled_in_several_turns(frame: bytes) -> None:
    connection = OfflineConnection(SlowLoop(), DiscardingTransport())
    connection.receive(OfflineConnection.ATTACHED)
    turns: list[float] = []

    def take_turn() -> None:
        turns.append(connection.loop.time())
        if not connection.loop.calls:
            return
        connection.loop.call_soon(take_turn)

    connection.connection.data_received(frame * 20_000)
    connection.loop.call_soon(take_turn)
    connection.loop.run()
    assert len(turns) > 5
    gaps = [after - before for before, after in pairwise(turns)]
    assert max(gaps) < AUTHENTICATED_S + PORTION_MAX_S + READS_OF_THE_CLOCK_S


def another(connection: OfflineConnection, received: bytes = b"") -> HubConnection:
    """One more connection to the same server."""
    server = connection.server
    slot = server.admission.admit("fuzz", 0.0)
    assert slot is not None
    other = HubConnection(server, slot)
    other.connection_made(cast(asyncio.Transport, DiscardingTransport()))
    other.data_received(received)
    connection.loop.run()
    return other


@FRAMES
def test_the_turn_of_many_clients_together_is_limited(frame: bytes) -> None:
    """They send in the same turn of the loop; an authenticated client does not wait for them."""
    known = OfflineConnection(SlowLoop(), DiscardingTransport())
    known.receive(OfflineConnection.ATTACHED)
    loop = known.loop
    flooding = [another(known, ANONYMOUS_BEGUN) for _ in range(50)]
    start = loop.time()
    for connection in flooding:
        connection.data_received(frame * 20_000)
    read_s = 0.001 * len(flooding)  # each reads the clock once
    assert loop.time() - start < read_s + ANONYMOUS_S + PORTION_MAX_S + READS_OF_THE_CLOCK_S
    for _ in range(20):
        start = loop.time()
        loop.calls.popleft()()
        assert loop.time() - start < ANONYMOUS_S + PORTION_MAX_S + READS_OF_THE_CLOCK_S
    known.connection.data_received(attach(FREE, False, text(HUB)))
    assert len(known.entity.senders) == 2
    assert sum(connection.must_wait for connection in flooding) > 40


def test_bytes_that_wait_count_for_all_connections() -> None:
    known = OfflineConnection(SlowLoop(), DiscardingTransport())
    total = known.server.admission.total
    known.receive(OfflineConnection.ATTACHED)
    first, second = another(known, ANONYMOUS_BEGUN), another(known, ANONYMOUS_BEGUN)
    before = total.held
    data = flow(5, 1, 1) * 10_000
    first.data_received(data)
    second.data_received(data)
    assert total.held > before + 1.9 * len(data)
    second.connection_lost(None)
    assert total.held < before + len(data)
    known.loop.run()
    assert not first.must_wait
    assert total.held < before


def test_bytes_that_arrive_during_a_turn_of_others_are_handled_later() -> None:
    connection = OfflineConnection(SlowLoop(), DiscardingTransport())
    connection.receive(OfflineConnection.ATTACHED)
    connection.connection.data_received(flow(5, 1, 1) * 100)
    connection.connection.data_received(attach(FREE, False, text(HUB)))
    assert len(connection.entity.senders) == 1
    connection.loop.run()
    assert len(connection.entity.senders) == 2


def links_and_windows(links: int, windows: int) -> int:
    """The number of calls of the loop for windows that open and close, with many links."""
    connection = MeasuredConnection()
    connection.receive(OfflineConnection.ATTACHED)
    for number in range(links):
        connection.receive(attach(FREE + number, False, text(HUB), text(str(number))))
    connection.loop.reset()
    for number in range(windows):
        connection.receive(flow(number % 2))
    return connection.loop.turns


def test_a_session_window_wakes_only_links_that_wait_for_it() -> None:
    assert links_and_windows(links=500, windows=40) <= links_and_windows(5, 40) + 20


def test_links_that_wait_for_the_window_send_one_after_the_other() -> None:
    connection = MeasuredConnection()
    connection.receive(OfflineConnection.ATTACHED)
    for number in range(4):
        connection.receive(attach(FREE + number, True, text(READER), text(str(number))))
    closed = encode_frame(
        Flow(next_incoming_id=6, incoming_window=0, next_outgoing_id=0, outgoing_window=9)
    )
    connection.receive(closed)
    for number in range(4):
        credit = Flow(
            next_incoming_id=6,
            incoming_window=0,
            next_outgoing_id=0,
            outgoing_window=9,
            handle=FREE + number,
            link_credit=100,
        )
        connection.receive(encode_frame(credit))
    (session,) = connection.connection.amqp.sessions.values()
    readers = [session.links[FREE + number].user for number in range(4)]
    assert len(session.blocked) == 4
    sent = session.next_outgoing_id
    for window in range(1, 9):
        wide = Flow(
            next_incoming_id=sent,
            incoming_window=window,
            next_outgoing_id=0,
            outgoing_window=9,
        )
        connection.receive(encode_frame(wide))
        assert session.next_outgoing_id == sent + window or not session.blocked
        sent = session.next_outgoing_id
    assert {reader.next_sequence for reader in readers} == {6}


def test_a_token_is_found_without_trying_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = OfflineConnection()
    guard = Guard(connection.server.namespace, "hub:5672")
    for number in range(1000):
        path = f"{HUB}/publishers/{number}"
        guard._grants[path] = Grant(path, ALL_CLAIMS, 9e9)
    tried: list[str] = []
    covers = Grant.covers

    def record(self: Grant, path: str) -> bool:
        tried.append(self.path)
        return covers(self, path)

    monkeypatch.setattr(Grant, "covers", record)
    assert guard.allows(f"{HUB}/Publishers/7", None)
    assert not guard.allows(f"{HUB}/Partitions/7", None)
    assert tried == [f"{HUB}/publishers/7"]


async def test_the_reply_links_of_a_connection_are_limited(connect: Connect) -> None:
    peer = await connect()
    links = [
        await peer.receiver("$cbs", name=f"reply {number}") for number in range(REPLY_LINKS_MAX)
    ]
    with pytest.raises(Refused) as refused:
        await peer.receiver("$management", name="one more")
    assert refused.value.error.condition == "amqp:resource-limit-exceeded"
    links[0].detach()
    await peer.until(lambda: links[0].state == "DETACHED", "a detach")
    await peer.receiver("$management", name="one more")
    await peer.receiver(READ_FROM, name="reader")


def reading(connection: HubConnection, capabilities: tuple[str, ...]) -> ConsumerLink:
    """A reader of partition 0 from its start, with credit."""
    (session,) = connection.amqp.sessions.values()
    position = Described(SELECTOR_FILTER, "amqp.annotation.x-opt-offset > '-1'")
    request = Attach(
        name="reader",
        handle=FREE,
        role=RECEIVER,
        source=Source(address=READER, filter={SELECTOR_FILTER: position}),
        target=Target(address="here"),
        desired_capabilities=tuple(map(Symbol, capabilities)),
    )
    credit = Flow(
        next_incoming_id=session.next_outgoing_id,
        incoming_window=100_000,
        next_outgoing_id=0,
        outgoing_window=9,
        handle=FREE,
        link_credit=100_000,
    )
    connection.data_received(encode_frame(request) + encode_frame(credit))
    reader = session.links[FREE].user
    assert isinstance(reader, ConsumerLink)
    return reader


def filled(events: int, body: bytes = b"x") -> OfflineConnection:
    """A connection to a hub with some more events."""
    connection = OfflineConnection(SlowLoop(), DiscardingTransport())
    namespace, partition = connection.server.namespace, connection.entity.partitions[0]
    namespace.publish(partition, batch_of([body] * events), None, lambda failure: None)
    connection.receive(BEGUN)
    return connection


def test_events_with_the_runtime_metric_are_sent_in_small_slices() -> None:
    reader = reading(filled(5000).connection, (RUNTIME_METRIC,))
    before = reader.next_sequence
    assert reader.send_slice()
    assert reader.next_sequence == before + SINGLY_MAX


def test_large_events_for_small_frames_are_sent_in_small_slices() -> None:
    reader = reading(filled(100, b"x" * 5000).connection, ())
    before = reader.next_sequence
    assert reader.send_slice()
    assert reader.next_sequence - before < 2 * SINGLY_BYTES / 5000


def test_the_turn_of_many_readers_together_is_limited() -> None:
    """Each slice takes all the time of a turn."""
    known = filled(2000)
    loop, last = known.loop, known.entity.partitions[0].log.next_sequence
    readers = [reading(another(known, BEGUN), (RUNTIME_METRIC,)) for _ in range(5)]
    assert isinstance(loop, SlowLoop)
    loop.step_s = AUTHENTICATED_S
    while any(reader.next_sequence < last for reader in readers):
        before = [reader.next_sequence for reader in readers]
        for _ in range(len(loop.calls)):  # one turn
            loop.calls.popleft()()
        moved = [reader.next_sequence for reader in readers]
        # One of those that wait, and one in the time that is reserved for others.
        assert sum(old < new for old, new in zip(before, moved, strict=True)) <= 2


class Inner:
    """An AMQP connection that records what it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.connection_lost: Callable[..., None] = lambda error: None

    def connection_made(self, transport: object) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


def open_adapter(inner: Inner, loop: Loop) -> ServerWebSocket:
    """The hub's side of a WebSocket after its handshake."""
    server = OfflineConnection(loop).server
    slot = server.admission.admit("127.0.0.1", 0.0)
    assert slot is not None
    server.make_connection = lambda slot: inner  # type: ignore
    adapter = ServerWebSocket(server, slot, ["localhost"], set())
    adapter.connection_made(PausingTransport())  # type: ignore[arg-type]
    adapter.data_received(UPGRADE)
    loop.run()
    return adapter


class PausingTransport(DiscardingTransport):
    """Records whether it reads."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


async def test_many_websocket_frames_of_one_read_are_parsed_in_several_turns() -> None:
    inner, loop = Inner(), SlowLoop()
    adapter = open_adapter(inner, loop)
    transport = cast(PausingTransport, adapter.transport)
    frames = [Frame(Opcode.PONG, b""), Frame(Opcode.BINARY, b"0123456789")] * 5000
    adapter.data_received(b"".join(frame.serialize(mask=True) for frame in frames))
    turns = 0
    while loop.calls:
        assert transport.reading == (len(adapter.turns) == 0)
        start = loop.now
        loop.calls.popleft()()
        assert loop.now - start < ANONYMOUS_S + PORTION_MAX_S + READS_OF_THE_CLOCK_S
        turns += 1
    assert turns > 5
    assert transport.reading
    assert b"".join(inner.received) == b"0123456789" * 5000
    assert adapter.slot.fixed_bytes == 0
    adapter.connection_lost(None)


async def test_websocket_frames_are_not_parsed_while_the_connection_does_not_read() -> None:
    inner, loop = Inner(), Loop()
    adapter = open_adapter(inner, loop)
    transport = cast(PausingTransport, adapter.transport)
    frame = Frame(Opcode.BINARY, b"x").serialize(mask=True)
    adapter.pause_reading()
    assert not transport.reading
    adapter.data_received(frame)
    adapter.data_received(frame)
    assert not inner.received
    assert adapter.slot.fixed_bytes == 2 * len(frame)
    adapter.resume_reading()
    assert inner.received == [b"x", b"x"]
    assert transport.reading
    adapter.connection_lost(None)


async def test_small_websocket_frames_of_one_read_are_passed_on_together() -> None:
    inner = Inner()
    adapter = open_adapter(inner, Loop())
    frames = [Frame(Opcode.BINARY, b"%d" % (number % 10)) for number in range(1000)]
    adapter.data_received(b"".join(frame.serialize(mask=True) for frame in frames))
    assert inner.received == [b"0123456789" * 100]
    adapter.connection_lost(None)


def test_events_published_while_the_window_is_closed_are_sent_later() -> None:
    connection = MeasuredConnection()
    connection.receive(OfflineConnection.ATTACHED)
    connection.receive(flow(0, 1, 50))
    namespace, partition = connection.server.namespace, connection.entity.partitions[0]
    namespace.publish(partition, batch_of([b"late"]), None, lambda failure: None)
    connection.loop.run()
    (session,) = connection.connection.amqp.sessions.values()
    reader = session.links[1].user
    before = reader.next_sequence
    assert before < partition.log.next_sequence
    wide = Flow(next_incoming_id=6, incoming_window=9, next_outgoing_id=0, outgoing_window=9)
    connection.receive(encode_frame(wide))
    assert reader.next_sequence == partition.log.next_sequence


def test_the_time_of_the_last_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is stored in the last step: that takes longest, and no event follows."""
    offline = OfflineConnection(SlowLoop(), DiscardingTransport())
    offline.receive(OfflineConnection.ATTACHED)
    loop, connection = cast("SlowLoop", offline.loop), offline.connection

    def last_step() -> Iterator[Event]:
        loop.now += 0.05
        yield from ()

    spent: list[float] = []
    turns = connection.server.turns
    monkeypatch.setattr(turns, "spend", lambda client, seconds: spent.append(seconds))
    connection.handle_each(last_step())
    assert len(spent) == 1
    assert spent[0] >= 0.05


async def test_the_end_of_a_large_delivery_alternates_with_small_requests(
    hub: EmbeddedHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a request would wait for all batches whose last bytes came just before it."""
    large, small = connection_of(hub, await connect()), connection_of(hub, await connect())
    large.slot.budget.hold(LARGE_BYTES + 1)
    waits: list[tuple[object, bool]] = []
    turns = hub.server.turns
    with monkeypatch.context() as patch:
        patch.setattr(turns, "allowance", lambda client: 0.0)
        patch.setattr(turns, "wait", lambda worker, continued: waits.append((worker, continued)))
        assert not large.has_time()
        assert not small.has_time()
    assert waits == [(large, True), (small, False)]
    large.slot.budget.hold(-LARGE_BYTES - 1)
    for connection in (large, small):
        connection.take_turn()
