"""KeyOrder: which events start next, and where the low-water mark is, for any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.processor.handling.call_size import QUICK_EVENTS, QUICK_S
from pumphouse.processor.handling.key_order import ORDERED, Concurrency, KeyedCall, KeyOrder

KEYS = st.sampled_from([None, None, "a", "b", "c", "d"])
ROOM, BYTES = 12, 10_000


def event(sequence: int, key: str | None = "a", size: int = 1) -> Event:
    return Event(b"x" * size, {}, key, "0", sequence, str(sequence), 0)


def order(handlers: int = 3, keyless: str = "unordered", call_events_max: int = 4) -> KeyOrder:
    return KeyOrder(Concurrency(handlers, keyless, ROOM), call_events_max, BYTES)


def numbers(call: KeyedCall | None) -> list[int]:
    assert call is not None
    return [each.sequence for each in call.events if each.sequence is not None]


class KeyOrderMachine(RuleBasedStateMachine):
    """Any order of receiving, taking, handling, parking, and of ends in failure."""

    def __init__(self) -> None:
        super().__init__()
        self.order = order()
        self.received: list[Event] = []
        self.calls: list[KeyedCall] = []
        self.handled: set[int] = set()
        self.started: set[int] = set()
        self.parked: set[str | None] = set()
        self.dropped: set[int] = set()  # of calls that ended without being handled
        self.failed: set[str | None] = set()  # the keys of those
        self.next = 0

    @precondition(lambda self: self.order.has_room)
    @rule(keys=st.lists(KEYS, min_size=1, max_size=6), gap=st.integers(0, 2))
    def receive(self, keys: list[str | None], gap: int) -> None:
        """Compaction may leave gaps between sequence numbers."""
        events = [event(self.next + gap + n, key) for n, key in enumerate(keys)]
        self.next += gap + len(keys)
        self.received += events
        self.order.add(events)

    @rule(limited=st.booleans())
    def take(self, limited: bool) -> None:
        last = self.order.last
        up_to = last.sequence if limited and last is not None else None
        call = self.order.take(up_to)
        if call is None:
            if not limited:
                self.nothing_can_start()
            return
        assert 1 <= len(call.events) <= 4
        assert numbers(call) == sorted(numbers(call))
        assert len({each.partition_key for each in call.events}) == 1
        assert not self.started & set(numbers(call))
        assert up_to is None or numbers(call)[-1] <= up_to
        if call.is_ordered:
            assert call.key not in self.parked | self.failed
            assert call.key not in [other.key for other in self.calls if other.is_ordered]
            for earlier in self.received:
                if earlier.partition_key == call.key and number(earlier) < numbers(call)[0]:
                    assert number(earlier) in self.handled
        self.started |= set(numbers(call))
        self.calls.append(call)

    def nothing_can_start(self) -> None:
        """Every handler is busy, or every waiting event waits for its own key."""
        if len(self.calls) == 3:
            return
        busy = {call.key for call in self.calls if call.is_ordered} | self.parked | self.failed
        waiting = [each for each in self.received if number(each) not in self.started]
        assert all(each.partition_key in busy for each in waiting if each.partition_key)
        assert all(each.partition_key is not None for each in waiting)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def handle_some(self, data: st.DataObject) -> None:
        """A part of a call is marked as handled; the call continues."""
        call = data.draw(st.sampled_from(self.calls))
        part = call.events[: data.draw(st.integers(0, len(call.events)))]
        self.order.mark_handled(part)
        self.handled |= {number(each) for each in part}

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        passed = self.order.mark_handled(call.events)
        assert passed == sorted(passed, key=number)
        self.handled |= set(numbers(call))
        self.calls.remove(call)
        self.order.end(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A call ends unhandled, because the partition does: its key starts no more."""
        call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        self.order.end(call)
        unhandled = set(numbers(call)) - self.handled
        self.dropped |= unhandled
        if call.is_ordered and unhandled:
            self.failed.add(call.key)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        left = [n for n in numbers(call) if n not in self.handled]
        if not left:
            return
        self.calls.remove(call)
        self.order.park(call)
        if call.is_ordered:
            self.parked.add(call.key)
            self.started -= set(left)
        else:
            self.started -= set(left[1:])
        assert self.order.has_parked

    @rule()
    def unpark(self) -> None:
        self.order.unpark()
        self.parked.clear()
        running = {n for call in self.calls for n in numbers(call)}
        self.started = running | self.handled | self.dropped

    @invariant()
    def the_low_water_mark_is_exact(self) -> None:
        before = []
        for each in self.received:
            if number(each) not in self.handled:
                break
            before.append(each)
        assert self.order.handled == (before[-1] if before else None)
        assert self.order.ahead == len(self.received) - len(before)
        assert self.order.handled_ahead == len(self.handled) - len(before)

    @invariant()
    def no_more_calls_than_handlers(self) -> None:
        assert self.order.running == len(self.calls) <= 3

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.order.ahead < ROOM + 6


TestKeyOrder = KeyOrderMachine.TestCase
TestKeyOrder.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def number(given: Event) -> int:
    assert given.sequence is not None
    return given.sequence


def test_keys_run_at_once_and_each_key_in_order() -> None:
    scheduled = order()
    scheduled.add([event(0, "a"), event(1, "b"), event(2, "a")])
    first, second = scheduled.take(), scheduled.take()
    assert (numbers(first), numbers(second)) == ([0, 2], [1])
    scheduled.add([event(3, "a")])
    assert scheduled.take() is None


def test_the_earliest_event_starts_first() -> None:
    scheduled = order(call_events_max=1)
    scheduled.add([event(0, "a"), event(1, "a"), event(2, "b"), event(3, None)])
    first = scheduled.take()
    assert first is not None
    assert numbers(scheduled.take()) == [2]
    scheduled.mark_handled(first.events)
    scheduled.end(first)
    assert numbers(scheduled.take()) == [1]


def test_events_without_a_key_are_shared_among_the_handlers() -> None:
    scheduled = order(call_events_max=100)
    scheduled.add([event(n, None) for n in range(9)])
    taken = [numbers(scheduled.take()) for _ in range(3)]
    assert taken == [[0, 1, 2], [3, 4], [5, 6]]  # the handler that ends first gets more


def test_events_without_a_key_may_keep_their_order() -> None:
    scheduled = order(keyless=ORDERED)
    scheduled.add([event(0, None), event(1, "a"), event(2, None)])
    assert numbers(scheduled.take()) == [0, 2]
    assert numbers(scheduled.take()) == [1]
    scheduled.add([event(3, None)])
    assert scheduled.take() is None


def test_the_checkpoint_of_a_handler_covers_its_own_events_up_to_the_first_unhandled_one() -> None:
    scheduled = order()
    scheduled.add([event(0, "a"), event(1, "b"), event(2, "a"), event(3, "c")])
    a, b = scheduled.take(), scheduled.take()
    assert a is not None
    assert b is not None
    assert scheduled.covering(a.events) == event(0, "a")
    scheduled.mark_handled(b.events)
    assert scheduled.handled is None
    assert scheduled.covering(a.events) == event(2, "a")


def test_large_events_fill_the_room_too() -> None:
    scheduled = order()
    scheduled.add([event(0, "a", size=BYTES)])
    assert not scheduled.has_room
    scheduled.mark_handled([event(0, "a")])
    assert scheduled.has_room


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"handlers": 0}, "handlers must be at least 1"),
        ({"keyless": "sorted"}, "keyless must be one of unordered, ordered"),
        ({"handlers": 5, "ahead_events_max": 4}, "ahead_events_max must be at least 5"),
    ],
)
def test_an_invalid_concurrency_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Concurrency(**options)  # type: ignore[arg-type]


def test_a_free_handler_leaves_unordered_events_to_the_others() -> None:
    """A handler that gets all that waits would hold up the low-water mark, and so the reader."""
    order = KeyOrder(Concurrency(handlers=4), 100, 1 << 20)
    order.add([Event(b"", {}, None, "0", number) for number in range(100)])
    calls = [order.take() for _ in range(4)]
    sizes = [len(call.events) for call in calls if call is not None]
    assert sizes[0] == 25
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) < 100


def test_calls_that_are_parked_keep_the_order_of_unordered_events() -> None:
    scheduled = order(handlers=2, call_events_max=3)
    scheduled.add([event(n, None) for n in range(8)])
    calls = [scheduled.take(), scheduled.take()]
    assert [numbers(call) for call in calls] == [[0, 1, 2], [3, 4, 5]]
    for call in calls:
        assert call is not None
        scheduled.park(call)
    assert [numbers(scheduled.take()) for _ in range(2)] == [[1, 2, 4], [5, 6]]


def test_calls_get_more_unordered_events_if_the_handler_is_quick() -> None:
    scheduled = KeyOrder(Concurrency(handlers=4), 300, 1 << 20)
    scheduled.add([event(n, None) for n in range(100)])
    first = scheduled.take()
    assert first is not None
    assert len(first.events) == 25
    scheduled.mark_handled(first.events)
    scheduled.measure(first, QUICK_S / QUICK_EVENTS * 25)
    scheduled.end(first)
    assert scheduled.startable == 2
    assert [len(numbers(scheduled.take())) for _ in range(2)] == [QUICK_EVENTS, 11]


def test_calls_get_equal_shares_again_after_one_slow_call() -> None:
    scheduled = KeyOrder(Concurrency(handlers=4), 300, 1 << 20)
    scheduled.add([event(n, None) for n in range(100)])
    for seconds in (0.0, 1.0):
        call = scheduled.take()
        assert call is not None
        scheduled.measure(call, seconds)
        scheduled.mark_handled(call.events)
        scheduled.end(call)
    assert len(numbers(scheduled.take())) == 3  # of the 11 that are left
