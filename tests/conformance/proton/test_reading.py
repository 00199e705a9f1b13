"""Proton reads: selectors, credit, drain, epochs."""

from __future__ import annotations

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.proton.peer import (
    EARLIEST,
    Message,
    Option,
    bodies,
    connected,
    proton,
    reader,
    reader_address,
    send,
    sender,
    symbol,
    utils,
    work_until,
)


@pytest.mark.parametrize(
    ("selector", "first"),
    [
        (EARLIEST, 0),
        ("amqp.annotation.x-opt-sequence-number > '1'", 2),
        ("amqp.annotation.x-opt-sequence-number >= '1'", 1),
        ("amqp.annotation.x-opt-enqueued-time > '0'", 0),
    ],
)
def test_a_selector_says_where_to_start(hub: EmbeddedHub, selector: str, first: int) -> None:
    send(hub, *range(5))
    with connected(hub) as connection:
        assert bodies(reader(connection, selector), 5 - first) == list(range(first, 5))


def test_the_filter_in_force_is_echoed(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = reader(connection).link
        filters = link.remote_source.filter
        filters.rewind()
        assert filters.next() == proton.Data.MAP
        [echoed] = filters.get_dict().values()
        assert echoed.descriptor == symbol("apache.org:selector-filter:string")
        assert echoed.value == EARLIEST
        assert link.remote_snd_settle_mode == proton.Link.SND_SETTLED


def test_without_a_filter_reading_starts_at_the_first(hub: EmbeddedHub) -> None:
    send(hub, *range(3))
    with connected(hub) as connection:
        receiver = connection.create_receiver(reader_address(), credit=10)
        assert bodies(receiver, 3) == [0, 1, 2]


def test_a_bad_selector_is_refused(hub: EmbeddedHub) -> None:
    with connected(hub) as connection, pytest.raises(utils.LinkDetached) as refused:
        reader(connection, "color = 'blue'")
    assert refused.value.condition == "com.microsoft:argument-error"


def test_no_more_events_than_credit(hub: EmbeddedHub) -> None:
    send(hub, *range(10))
    with connected(hub) as connection:
        receiver = reader(connection, credit=0)
        arrived = receiver.fetcher.incoming
        receiver.link.flow(3)
        work_until(connection, lambda: len(arrived) >= 3)
        # After a round trip on the same session every further event would have arrived.
        sender(connection).send(Message(body=10))
        assert [message.body for message, _ in arrived] == [0, 1, 2]
        receiver.link.flow(4)
        work_until(connection, lambda: len(arrived) >= 7)
        sender(connection, name="second").send(Message(body=11))
        assert [message.body for message, _ in arrived] == [0, 1, 2, 3, 4, 5, 6]


def test_drain_gives_the_credit_back(hub: EmbeddedHub) -> None:
    send(hub, *range(3))
    with connected(hub) as connection:
        receiver = reader(connection, credit=0)
        arrived = receiver.fetcher.incoming
        receiver.link.drain(10)
        work_until(connection, lambda: receiver.link.credit == 0)
        assert [message.body for message, _ in arrived] == [0, 1, 2]

        receiver.link.drain_mode = False
        sender(connection).send(Message(body=3))
        assert len(arrived) == 3, "no credit was left"
        receiver.link.flow(1)
        assert bodies(receiver, 4) == [0, 1, 2, 3]


def test_draining_an_empty_partition_ends(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        receiver = reader(connection, credit=0)
        receiver.link.drain(5)
        work_until(connection, lambda: receiver.link.credit == 0)
        assert not receiver.fetcher.incoming


def test_events_sent_later_are_pushed(hub: EmbeddedHub) -> None:
    with connected(hub) as reading, connected(hub) as writing:
        receiver = reader(reading, credit=1000)
        link = sender(writing)
        for number in range(100):
            link.send(Message(body=number))
        assert bodies(receiver, 100) == list(range(100))


def test_two_readers_on_one_session(hub: EmbeddedHub) -> None:
    send(hub, *range(20))
    with connected(hub) as connection:
        for receiver in [reader(connection), reader(connection)]:
            assert bodies(receiver, 20) == list(range(20))


# -- epochs ---------------------------------------------------------------------------------------


def epoch(number: int) -> Option:
    properties = {
        symbol("com.microsoft:epoch"): number,
        symbol("com.microsoft:receiver-name"): f"reader-{number}",
    }
    return Option(lambda link: setattr(link, "properties", properties))


def test_a_higher_epoch_evicts_and_a_lower_one_is_refused(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        reader(connection, EARLIEST, epoch(1))
        # While it waits for the newcomer's attach, Proton learns that the other is detached.
        with pytest.raises(utils.LinkDetached) as evicted:
            reader(connection, EARLIEST, epoch(2))
        assert evicted.value.condition == "amqp:link:stolen"
        assert "New receiver 'reader-2' with higher epoch of '2'" in str(evicted.value)
        with pytest.raises(utils.LinkDetached) as refused:
            reader(connection, EARLIEST, epoch(1))
        assert refused.value.condition == "amqp:link:stolen"
        assert "Receiver 'reader-2' with a higher epoch '2' already exists" in str(refused.value)


def test_five_readers_and_no_more(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        present = [reader(connection) for _ in range(5)]
        with pytest.raises(utils.LinkDetached) as refused:
            reader(connection)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        present.pop().close()
        reader(connection)
