"""Frames, windows, heartbeats and closing, with Proton."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.credit import Limits
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ServerOptions
from tests.conformance.proton.peer import (
    DEADLINE_S,
    EARLIEST,
    HUB,
    Message,
    Option,
    bodies,
    connected,
    proton,
    reader,
    reader_count,
    send,
    sender,
    started,
    utils,
    wait_until,
    work_until,
)

BODIES = [bytes([size % 251]) * size for size in (0, 1, 400, 512, 1024, 10_000, 100_000)]


# -- frames and windows ---------------------------------------------------------------------------


@pytest.mark.parametrize("frame_bytes", [512, 1024, 65536])
def test_the_hub_keeps_to_the_frames_of_a_reader(hub: EmbeddedHub, frame_bytes: int) -> None:
    send(hub, *BODIES)
    # A frame beyond its limit is a framing error to Proton: it closes.
    with connected(hub, max_frame_size=frame_bytes) as connection:
        assert bodies(reader(connection), len(BODIES)) == BODIES


@pytest.mark.parametrize("frame_bytes", [512, 1024])
def test_a_sender_keeps_to_the_frames_of_the_hub(frame_bytes: int) -> None:
    small = ServerOptions(limits=Limits(max_frame_size=frame_bytes))
    with started(small) as hub, connected(hub, max_frame_size=frame_bytes) as connection:
        assert connection.conn.transport.remote_max_frame_size == frame_bytes
        link = sender(connection)
        for body in BODIES:
            link.send(Message(body=body))
        assert bodies(reader(connection), len(BODIES)) == BODIES


def window(frames: int, frame_bytes: int) -> Option:
    """A session window of this number of frames."""

    def apply(link: Any) -> None:
        link.session.incoming_capacity = frames * frame_bytes

    return Option(apply)


def test_no_frame_beyond_the_window(hub: EmbeddedHub) -> None:
    send(hub, bytes(20_000))
    with connected(hub, max_frame_size=1024) as connection:
        receiver = reader(connection, EARLIEST, window(8, 1024))
        session = receiver.link.session
        work_until(connection, lambda: session.incoming_bytes > 6 * 1024)
        # After a round trip on the same session the hub has sent everything it may send.
        sender(connection).send(Message(body="last"))
        assert session.incoming_bytes <= 8 * 1024


def test_events_that_cross_the_end_of_the_window(hub: EmbeddedHub) -> None:
    sent = [bytes([number]) * 20_000 for number in range(10)]
    send(hub, *sent)
    with connected(hub, max_frame_size=1024) as connection:
        # An event takes 21 frames. Proton opens the window only after a whole message.
        receiver = reader(connection, EARLIEST, window(30, 1024))
        assert bodies(receiver, len(sent)) == sent


def test_more_events_than_the_window(hub: EmbeddedHub) -> None:
    send(hub, *range(300))
    with connected(hub, max_frame_size=512) as connection:
        receiver = reader(connection, EARLIEST, window(4, 512), credit=1000)
        assert bodies(receiver, 300) == list(range(300))


# -- time -----------------------------------------------------------------------------------------


def test_the_hub_sends_heartbeats(hub: EmbeddedHub) -> None:
    with connected(hub, heartbeat=1.0) as connection:
        transport = connection.conn.transport
        before = transport.frames_input
        # Nothing but heartbeats comes in; without them Proton would close.
        work_until(connection, lambda: transport.frames_input >= before + 4)
        sender(connection).send(Message(body="still there"))


def test_a_client_that_sends_heartbeats_stays_connected() -> None:
    strict = ServerOptions(idle_timeout_s=0.8, enforce_idle=True)
    with started(strict) as hub, connected(hub) as connection:
        transport = connection.conn.transport
        before = transport.frames_output
        work_until(connection, lambda: transport.frames_output >= before + 3)
        sender(connection).send(Message(body="still there"))


def test_a_silent_client_is_closed_with_the_reason() -> None:
    strict = ServerOptions(idle_timeout_s=0.2, enforce_idle=True)
    with started(strict) as hub, connected(hub) as connection:
        # Proton sends only inside a wait: until then it is silent.
        wait_until(lambda: not hub.server.connections)
        with pytest.raises(utils.ConnectionClosed) as closed:
            work_until(connection, lambda: False)
        assert closed.value.condition == "amqp:connection:forced"


# -- closing --------------------------------------------------------------------------------------


def test_a_closed_link_is_forgotten(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        receiver = reader(connection)
        assert reader_count(hub) == 1
        receiver.close()
        assert reader_count(hub) == 0
        sender(connection).send(Message(body="the session goes on"))
        assert reader(connection).receive().body == "the session goes on"


def test_a_session_that_ends_takes_its_links_along(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        reader(connection)
        session = sender(connection).link.session
        session.close()
        work_until(connection, lambda: session.state & proton.Endpoint.REMOTE_CLOSED)
        assert reader_count(hub) == 0
        assert not hub.namespace.hub(HUB).senders

        fresh = connection.conn.session()
        fresh.open()
        link = connection.container.create_sender(fresh, f"{HUB}/Partitions/0")
        work_until(connection, lambda: link.credit > 0)
        delivery = link.send(Message(body="on a new session"))
        work_until(connection, lambda: delivery.settled)
        assert delivery.remote_state == proton.Delivery.ACCEPTED


def test_a_closed_connection_leaves_nothing_behind(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        reader(connection)
        sender(connection)
    wait_until(lambda: not hub.server.connections)
    assert reader_count(hub) == 0
    assert not hub.namespace.hub(HUB).senders


def test_a_link_name_can_be_reused(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        for number in range(3):
            link = sender(connection, name="the same")
            link.send(Message(body=number))
            link.close()
        assert bodies(reader(connection), 3) == [0, 1, 2]


def test_a_link_can_be_detached_without_closing_it(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        receiver = reader(connection)
        receiver.link.detach()
        work_until(connection, lambda: reader_count(hub) == 0)
        sender(connection).send(Message(body="the session goes on"))


def test_a_deleted_hub_detaches_its_links(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        receiver = reader(connection)
        hub.delete_hub(HUB)
        with pytest.raises(utils.LinkDetached) as detached:
            receiver.receive()
        assert detached.value.condition == "amqp:not-found"


def test_a_stopping_hub_sends_the_reason() -> None:
    with EmbeddedHub(hubs={HUB: 1}) as hub:
        connection = utils.BlockingConnection(hub.authority, timeout=DEADLINE_S, sasl_enabled=False)
    with pytest.raises(utils.ConnectionClosed) as closed:
        work_until(connection, lambda: False)
    assert closed.value.condition == "amqp:connection:forced"
    connection.close()
