"""In which order connections handle what they have received, and for how long.

All connections of a hub share one event loop. A read has room for thousands of frames, and many
clients may send at the same time, so the time of one turn of the loop is limited for all of them
together. A connection handles its bytes at once while time is left; otherwise it waits here, reads
no more, and is served in the next turn.

    data_received -> allowance -> handle -> spend
                     wait -> (next turn of the loop) -> serve -> take_turn

Clients that have authenticated are served first. The others have a smaller share of their own, so
that a client can log in at a busy hub. In each share, connections that have just received something
alternate with connections that have used up a portion and have more to do.

Time is an argument, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

# The time of one turn of the event loop: for all connections that have authenticated, and for all
# others.
AUTHENTICATED_S, ANONYMOUS_S = 0.01, 0.005
# Time that the queue leaves for authenticated clients that send something in the same turn.
RESERVE_S = 0.005
# The longest time of one connection before the next one is served. A read of large batches takes
# less. A client needs less than a millisecond for each step of its login.
PORTIONS_S = (0.005, 0.001)
PORTION_MAX_S = max(PORTIONS_S)

AUTHENTICATED, ANONYMOUS = 0, 1


class Client(Protocol):
    """The client of a worker: a slot."""

    @property
    def authenticated(self) -> bool: ...


class Worker(Hashable, Protocol):
    """A connection, or its WebSocket, that has received bytes to handle."""

    @property
    def slot(self) -> Client: ...

    def take_turn(self) -> None:
        """Handle what has been received, for as long as `allowance` grants."""


class Queue:
    """The workers of one share that wait: new ones, and those that have used up a portion."""

    __slots__ = ("_continued", "_new", "_prefer_new")

    def __init__(self) -> None:
        self._new: dict[Worker, None] = {}
        self._continued: dict[Worker, None] = {}
        self._prefer_new = True

    def __len__(self) -> int:
        return len(self._new) + len(self._continued)

    def add(self, worker: Worker, continued: bool) -> None:
        (self._continued if continued else self._new)[worker] = None

    def discard(self, worker: Worker) -> None:
        self._new.pop(worker, None)
        self._continued.pop(worker, None)

    def pop(self) -> Worker:
        """The next worker: new ones and continued ones alternate."""
        chosen = self._new if self._prefer_new else self._continued
        waiting = chosen or self._new or self._continued
        self._prefer_new = waiting is not self._new
        worker = next(iter(waiting))
        del waiting[worker]
        return worker


class Turns:
    """The workers of a hub that wait, and the time that is left in this turn of the loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon  # calls a function in the next turn of the event loop
        self._called = False
        self._queues = Queue(), Queue()
        self._left_s = [AUTHENTICATED_S, ANONYMOUS_S]

    def __len__(self) -> int:
        return len(self._queues[AUTHENTICATED]) + len(self._queues[ANONYMOUS])

    def allowance(self, client: Client) -> float:
        """For how long a client may be served now; 0: it has to wait."""
        share = share_of(client)
        return max(0.0, min(PORTIONS_S[share], self._left_s[share]))

    def spend(self, client: Client, seconds: float) -> None:
        """Count the time for which a client was served."""
        share = share_of(client)
        self._left_s[share] -= seconds
        if self._left_s[share] <= 0:
            self.serve_soon()

    def wait(self, worker: Worker, continued: bool) -> None:
        """Serve a worker later; `continued` if it was served before and has more to do."""
        self._queues[share_of(worker.slot)].add(worker, continued)
        self.serve_soon()

    def discard(self, worker: Worker) -> None:
        """Forget a worker that has ended."""
        for queue in self._queues:
            queue.discard(worker)

    def serve_soon(self) -> None:
        # `serve` is scheduled only if there is something to do: an idle hub has no such turns.
        if not self._called:
            self._called = True
            self._call_soon(self.serve)

    def serve(self) -> None:
        """A new turn of the loop: serve those that wait until the time is used up."""
        self._called = False
        self._left_s = [AUTHENTICATED_S, ANONYMOUS_S]
        while (worker := self.next()) is not None:
            worker.take_turn()
        self._left_s[AUTHENTICATED] = max(RESERVE_S, self._left_s[AUTHENTICATED])
        if len(self):
            self.serve_soon()

    def next(self) -> Worker | None:
        """The next worker to serve in this turn, if any."""
        for queue, left_s in zip(self._queues, self._left_s, strict=True):
            if left_s > 0 and len(queue):
                return queue.pop()
        return None


def share_of(client: Client) -> int:
    return AUTHENTICATED if client.authenticated else ANONYMOUS
