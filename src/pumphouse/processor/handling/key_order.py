"""Key-ordered concurrency: which events of a partition may start next, and where its checkpoint is.

    reader -> KeyOrder.add, take -> handlers -> KeyOrder.mark_handled -> the low-water mark
              ^^^^^^^^ this module (pure)

* Events of one partition key are taken in order, and never by two handlers at once.
* The low-water mark is the last event before which, itself included, every event is handled. The
  checkpoint never passes it. What is handled above it is known in memory only.
* The event with the lowest sequence number that may start is taken first, so that the low-water
  mark follows closely. No event is taken in that is too far above it: memory is bounded, and so is
  what a crash repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from operator import attrgetter

from pumphouse.events import Event
from pumphouse.option_names import named_options
from pumphouse.processor.checks.values import check_choice, check_whole
from pumphouse.processor.handling.call_size import CallSize

UNORDERED, ORDERED = "unordered", "ordered"
AHEAD_EVENTS_MAX = 1000
BODY: Callable[[Event], bytes] = attrgetter("body")


@named_options()
@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many handlers one partition may have at once, and in which order they get its events.

    Events with the same partition key are always handled in order. Those without a key are
    `unordered`, or `ordered`: as if they all had one key of their own.
    """

    handlers: int = 16
    keyless: str = UNORDERED
    # The most events from the first that is not handled to the last that was received: what is in
    # memory, and what a crash may repeat. The last batch that was received may exceed it.
    ahead_events_max: int = AHEAD_EVENTS_MAX

    def __post_init__(self) -> None:
        check_whole("handlers", self.handlers, 1)
        check_choice("keyless", self.keyless, (UNORDERED, ORDERED))
        check_whole("ahead_events_max", self.ahead_events_max, self.handlers)


def as_concurrency(value: int | Concurrency) -> Concurrency:
    """The option as the user may write it: a number of handlers, or all settings."""
    if isinstance(value, Concurrency):
        return value
    check_whole("concurrency", value, 1)
    return Concurrency(value, ahead_events_max=max(value, AHEAD_EVENTS_MAX))


@dataclass(eq=False, slots=True)
class KeyedCall:
    """Events of one key for one call of a handler. Without a key, if events need no order."""

    events: list[Event]
    key: str | None
    is_ordered: bool


class KeyOrder:
    """The events of one partition client: waiting, with a handler, or handled."""

    def __init__(self, concurrency: Concurrency, call_events_max: int, bytes_max: int) -> None:
        self._options, self._call_events_max = concurrency, call_events_max
        self._bytes_max = bytes_max
        self.last: Event | None = None  # the last event, in order, that a handler has got
        self.handled: Event | None = None  # the low-water mark
        self._low = -1  # its sequence number
        self.running = 0  # calls that were taken and have not ended
        self._open: deque[Event] = deque()  # received and above the low-water mark, in order
        self._done: set[int] = set()  # the sequence numbers of those that are handled
        self._bytes = 0  # of the bodies of `_open`
        self._waiting: dict[str | None, deque[Event]] = {}  # by key, also of keys that run
        self._ready: list[tuple[int, str | None]] = []  # a heap: first waiting event, idle key
        self._unordered: deque[Event] = deque()  # waiting, without a key
        self._size = CallSize(concurrency.handlers, call_events_max)  # of calls with those
        self._parked: set[str | None] = set()
        self._parked_events: list[Event] = []  # without a key

    def __repr__(self) -> str:
        low, last = sequence_text(self.handled), sequence_text(self.last)
        return f"<KeyOrder handled {low} | started {last} | {self.running} calls | {self.ahead}>"

    @property
    def ahead(self) -> int:
        """Events that were received and are above the low-water mark."""
        return len(self._open)

    @property
    def handled_ahead(self) -> int:
        """Events above the low-water mark that are handled: another owner would repeat them."""
        return len(self._done)

    @property
    def has_room(self) -> bool:
        """Whether more events may be taken in."""
        return self.ahead < self._options.ahead_events_max and self._bytes < self._bytes_max

    @property
    def startable(self) -> int:
        """At most how many calls could start now."""
        free = self._options.handlers - self.running
        return min(free, len(self._ready) + self._size.calls(len(self._unordered)))

    @property
    def handlers(self) -> int:
        """The most calls at once."""
        return self._options.handlers

    @property
    def has_parked(self) -> bool:
        return bool(self._parked or self._parked_events)

    # -- scheduling -------------------------------------------------------------------------------

    def add(self, events: Sequence[Event]) -> None:
        """Take in events that were received, in the order of the partition."""
        any_order, keys = self._options.keyless == UNORDERED, self._waiting
        self._bytes += bytes_of(events)
        for event in events:
            if (key := event.partition_key) is None and any_order:
                self._unordered.append(event)
            elif (waiting := keys.get(key)) is not None:
                waiting.append(event)
            else:
                keys[key] = deque((event,))
                heappush(self._ready, (number(event), key))
        self._open.extend(events)

    def take(self, up_to: int | None = None) -> KeyedCall | None:
        """The next call, with the lowest event that may start; None if there is none.

        No event above `up_to` is taken.
        """
        if self.running >= self._options.handlers:
            return None
        keyed = self._ready[0][0] if self._ready else None
        free = number(self._unordered[0]) if self._unordered else None
        if keyed is not None and (free is None or keyed < free):
            return self._take_key(up_to) if up_to is None or keyed <= up_to else None
        if free is not None and (up_to is None or free <= up_to):
            return self._take_unordered(up_to)
        return None

    def _take_key(self, up_to: int | None) -> KeyedCall:
        _, key = heappop(self._ready)
        events = first_events(self._waiting[key], self._call_events_max, up_to)
        return self._start(KeyedCall(events, key, is_ordered=True))

    def _take_unordered(self, up_to: int | None) -> KeyedCall:
        events = first_events(self._unordered, self._size.next(len(self._unordered)), up_to)
        return self._start(KeyedCall(events, None, is_ordered=False))

    def take_empty(self) -> KeyedCall:
        """A call without events, for a handler that wants to know that none have come."""
        self.running += 1
        return KeyedCall([], None, is_ordered=False)

    def _start(self, call: KeyedCall) -> KeyedCall:
        self.running += 1
        if self.last is None or number(call.events[-1]) > number(self.last):
            self.last = call.events[-1]
        return call

    def measure(self, call: KeyedCall, seconds: float) -> None:
        """The handler has taken this long for the call."""
        if call.events and not call.is_ordered:
            self._size.add(len(call.events), seconds)

    def end(self, call: KeyedCall) -> None:
        """The call has ended. Its events that are not marked as handled do not start again.

        Then nothing of their key starts either: it would be handled before them.
        """
        self.running -= 1
        if call.is_ordered and not self._unhandled(call.events):
            self._release(call.key)

    def park(self, call: KeyedCall) -> None:
        """The call has ended with its first unhandled event: hold its key up until `unpark`."""
        self.running -= 1
        left = [event for event in call.events if not self.is_handled(event)]
        if call.is_ordered:
            self._waiting[call.key].extendleft(reversed(left))
            self._parked.add(call.key)
        else:
            self._parked_events += left[:1]
            self._unordered = deque(merge(left[1:], self._unordered, key=number))

    def unpark(self) -> None:
        """Let the keys that were parked continue."""
        parked, self._parked = self._parked, set()
        for key in parked:
            self._release(key)
        self._unordered = deque(sorted([*self._parked_events, *self._unordered], key=number))
        self._parked_events = []

    def _release(self, key: str | None) -> None:
        """No call has this key now."""
        if waiting := self._waiting[key]:
            heappush(self._ready, (number(waiting[0]), key))
        else:
            del self._waiting[key]

    # -- the low-water mark -----------------------------------------------------------------------

    def is_handled(self, event: Event) -> bool:
        """Whether an event that was taken in is handled."""
        sequence = number(event)
        return sequence <= self._low or sequence in self._done

    def _unhandled(self, events: Sequence[Event]) -> list[int]:
        """The sequence numbers of those that are not handled."""
        low, done = self._low, self._done
        return [n for n in map(number, events) if n > low and n not in done]

    def mark_handled(self, events: Sequence[Event]) -> list[Event]:
        """These events are handled; returns those that the low-water mark has passed with them."""
        done = self._done
        done.update(self._unhandled(events))
        passed: list[Event] = []
        for event in self._open:
            if event.sequence not in done:
                break
            passed.append(event)
        if passed:
            self._pass(passed)
        return passed

    def _pass(self, passed: Sequence[Event]) -> None:
        """The low-water mark passes these events."""
        waiting = self._open
        for _ in passed:
            waiting.popleft()
        self._done.difference_update(map(number, passed))
        self._bytes -= bytes_of(passed)
        self.handled, self._low = passed[-1], number(passed[-1])

    def covering(self, events: Iterable[Event]) -> Event | None:
        """The low-water mark if these events were handled too."""
        handled, mark = {number(event) for event in events}, self.handled
        for event in self._open:
            sequence = number(event)
            if sequence not in self._done and sequence not in handled:
                break
            mark = event
        return mark

    def reached(self, event: Event, events: Iterable[Event]) -> Event | None:
        """The low-water mark, if a handler with these events has handled those up to `event`."""
        sequence = number(event)
        return self.covering(each for each in events if number(each) <= sequence)


def first_events(waiting: deque[Event], events_max: int, up_to: int | None) -> list[Event]:
    """Remove and return the first events, at most this many and none above `up_to`."""
    if up_to is None and len(waiting) <= events_max:
        events = list(waiting)
        waiting.clear()
        return events
    events = []
    while waiting and len(events) < events_max and (up_to is None or number(waiting[0]) <= up_to):
        events.append(waiting.popleft())
    return events


# The sequence number; the reader has checked that there is one.
number: Callable[[Event], int] = attrgetter("sequence")


def bytes_of(events: Iterable[Event]) -> int:
    return sum(map(len, map(BODY, events)))


def sequence_text(event: Event | None) -> str:
    return "nothing" if event is None else str(event.sequence)
