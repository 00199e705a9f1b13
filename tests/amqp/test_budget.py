"""What a peer makes us hold has a limit in bytes, is released, and leaves no reference cycle."""

from __future__ import annotations

import gc
import weakref

import pytest

from pumphouse.amqp.connection import MORE_BYTES_MAX, SERVER, Connection
from pumphouse.amqp.credit import RESOURCE_LIMIT, Limits
from pumphouse.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Detach,
    End,
    Flow,
    Open,
    Source,
    Transfer,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import RemoteProtocolError
from tests.amqp.connection_pair import Pair
from tests.growth import assert_linear

LIMIT = 64 * 1024


def begin(channel: int) -> bytes:
    return encode_frame(Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9), channel)


def attach(name: str, handle: int) -> bytes:
    return encode_frame(Attach(name=name, handle=handle, role=SENDER, source=Source(address="a")))


def opened(opening: Open | None = None) -> Connection:
    connection = Connection(
        SERVER, Open(container_id="s"), limits=Limits(held_bytes_max=LIMIT, max_frame_size=65536)
    )
    take(connection, AMQP_HEADER + encode_frame(opening or Open(container_id="c")))
    return connection


def take(connection: Connection, data: bytes) -> None:
    for _ in connection.receive(data):
        pass
    connection.data_to_send()


def check_refused(connection: Connection, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        take(connection, data)
    assert refused.value.condition == RESOURCE_LIMIT
    assert b"amqp:resource-limit-exceeded" in b"".join(connection.data_to_send())


def test_long_link_names_reach_the_limit() -> None:
    short, long = ["n"] * 25, ["n" * 1000] * 25
    for names in (short, long):
        links = b"".join(attach(f"{number}{name}", number) for number, name in enumerate(names))
        if names is short:
            take(opened(), begin(0) + links)
        else:
            check_refused(opened(), begin(0) + links)


def test_many_links_reach_the_limit() -> None:
    connection = opened()
    check_refused(connection, begin(0) + b"".join(attach(f"{n}", n) for n in range(40)))


def test_many_sessions_reach_the_limit() -> None:
    check_refused(opened(), b"".join(map(begin, range(80))))


def test_a_large_open_counts() -> None:
    short, long = opened(Open(container_id="c")), opened(Open(container_id="c" * 1000))
    assert long.budget.held - short.budget.held >= 999


def test_the_maps_of_an_open_are_not_kept() -> None:
    properties = {Symbol(f"k{n}"): n for n in range(2000)}
    connection = opened(Open(container_id="c", idle_time_out=9, properties=properties))
    assert connection.remote is not None
    assert (connection.remote.idle_time_out, connection.remote.properties) == (9, None)


def test_detached_links_and_ended_sessions_are_released() -> None:
    connection = opened()
    before = connection.budget.held
    for _ in range(200):
        end = encode_frame(End(), 3)
        detach = encode_frame(Detach(handle=0, closed=True))
        take(connection, begin(0) + attach("n" * 1000, 0) + detach + encode_frame(End()))
        take(connection, begin(3) + encode_frame(Attach(name="x", handle=0, role=SENDER), 3) + end)
    assert connection.budget.held == before


def test_frames_that_wait_for_the_window_count_until_they_are_sent() -> None:
    pair = Pair()
    _, far_out = pair.receiver(pair.begun())
    server = pair.server.connection
    before = server.budget.held
    far_out.session.remote_window = 0
    far_out.credit = 9
    far_out.send(bytes(100_000))
    assert server.budget.held - before > 100_000
    open_window = Flow(
        next_incoming_id=0, incoming_window=99, next_outgoing_id=0, outgoing_window=9
    )
    pair.feed(pair.server, encode_frame(open_window))
    assert server.budget.held == before


def test_an_idle_connection_keeps_no_consumed_bytes() -> None:
    connection = opened()
    take(connection, EMPTY_FRAME * 30_000)
    assert connection._reader.rest == (b"", 0)
    take(connection, EMPTY_FRAME * 30_000 + EMPTY_FRAME[:3])
    assert connection._reader.rest == (EMPTY_FRAME[:3], 0)
    take(connection, EMPTY_FRAME[3:])


@pytest.mark.parametrize("tag_size", [4, 40_000])
def test_only_small_performatives_are_kept_between_frames(tag_size: int) -> None:
    connection = opened()
    take(connection, begin(0) + attach("a", 0))
    part = Transfer(handle=0, delivery_id=0, delivery_tag=bytes(tag_size), more=True)
    take(connection, encode_frame(part, payload=b"x"))
    kept = connection._more
    assert (kept is None) == (tag_size > MORE_BYTES_MAX)


def test_nothing_survives_a_discarded_connection() -> None:
    connection = opened()
    take(connection, begin(0) + begin(1) + attach("a", 0) + attach("b", 1))
    reader = Attach(name="r", handle=5, role=RECEIVER, source=Source(address="a"))
    take(connection, encode_frame(reader))
    sessions = list(connection.sessions.values())
    links = [link for session in sessions for link in session.links.values()]
    for link in links:
        link.send_attach(Attach(name=link.name, handle=link.handle, role=link.role))
        link.user = [link]  # as the hub's link refers to it
    take(connection, encode_frame(Transfer(handle=0, delivery_id=0, more=True), payload=b"x" * 99))
    watched = [weakref.ref(each) for each in (connection, *sessions, *links)]
    assert connection.held_bytes > 0
    gc.disable()
    try:
        connection.discard()
        assert connection.held_bytes == 0
        del connection, sessions, links, link
        assert [reference() for reference in watched] == [None] * len(watched)
    finally:
        gc.enable()


# -- credit ---------------------------------------------------------------------------------------


def test_deliveries_that_are_not_finished_use_credit() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.keep_granting(10)
    pair.talk()
    for _ in range(6):
        out.send(b"x")
        far_in.pending += 1  # the server works on it
    pair.talk()
    assert (out.credit, far_in.credit) == (4, 4)
    finished = [far_in.finish_delivery() for _ in range(6)]
    assert finished == [False] * 4 + [True, False]  # half is used: granted again
    pair.talk()
    assert out.credit == far_in.credit == 9  # one was not finished then


def test_deliveries_beyond_the_credit_are_counted_until_the_next_grant() -> None:
    pair = Pair()
    out, far_in = pair.sender(pair.begun())
    far_in.grant(2)
    pair.talk()
    for _ in range(5):
        out.send(b"x")
    pair.talk()
    assert (far_in.credit, far_in.overrun) == (0, 3)
    far_in.grant(2)
    assert far_in.overrun == 0


def test_a_detached_link_grants_nothing() -> None:
    pair = Pair()
    _, far_in = pair.sender(pair.begun())
    far_in.keep_granting(2)
    pair.talk()
    far_in.pending = 2
    far_in.credit = 0
    far_in.detach()
    pair.talk()
    assert not any(far_in.finish_delivery() for _ in range(2))


def test_replies_that_wait_for_the_window_are_counted_in_linear_time() -> None:
    def send(count: int) -> None:
        connection = opened()
        take(connection, begin(0) + encode_frame(flow(window=0)))
        take(connection, encode_frame(Attach(name="r", handle=0, role=RECEIVER)))
        link = connection.sessions[0].links[0]
        assert isinstance(link, SenderLink)
        link.send_attach(Attach(name="r", handle=0, role=SENDER, initial_delivery_count=0))
        before = connection.budget.held
        for _ in range(count):
            link.send(b"reply")
        assert connection.budget.held > before + 5 * count
        take(connection, encode_frame(flow(window=2 * count)))
        assert connection.budget.held == before

    assert_linear(send, lambda count: count, 2000)


def flow(window: int) -> Flow:
    return Flow(next_incoming_id=0, incoming_window=window, next_outgoing_id=0, outgoing_window=9)
