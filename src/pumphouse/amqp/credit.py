"""Credit, windows and budgets: how much a peer may still send.

Two limits apply to a sender. The *link credit* counts deliveries of one link; the *session window*
counts transfer frames of all links of a session. A peer announces both as "received up to here,
this many more allowed", so the remainder follows from the number sent since. The counters wrap at
2^32 (RFC 1982 serial numbers).

A third limit is not part of AMQP: the *budget* of a connection counts the bytes that are held for
its peer, whatever they are (incomplete deliveries, links, replies that wait).
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.errors import RemoteProtocolError

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"

WRAP = 1 << 32
HALF = 1 << 31


def advance(number: int, by: int = 1) -> int:
    """A serial number advanced by `by` steps."""
    return (number + by) % WRAP


def distance(start: int, end: int) -> int:
    """The number of steps from `start` to `end`; negative if `end` lies before `start`."""
    gap = (end - start) % WRAP
    return gap - WRAP if gap >= HALF else gap


def allowed(seen: int, granted: int, sent: int) -> int:
    """The number that may still be sent: zero or more, and small enough for a frame.

    `seen` is the peer's counter, `granted` what the peer allows beyond it, `sent` our own counter.
    The result is bounded, because a peer may claim to have seen more than we have sent.

    >>> allowed(seen=100, granted=50, sent=120)
    30
    """
    return max(0, min(WRAP - 1, granted - distance(seen, sent)))


def needs_topping_up(remaining: int, full: int) -> bool:
    """Whether half of the credit or window is used, so that a new grant is due.

    A grant at half keeps flow frames rare, and it arrives before the peer has used up the rest.
    """
    return remaining <= full // 2


class Budget:
    """The bytes that are held for one peer, and their limit."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.held} of {self.limit} bytes>"

    def hold(self, amount: int) -> None:
        """Count bytes that are held from now on; a negative amount releases them."""
        self.held += amount

    @property
    def limited(self) -> int:
        """The bytes to which the limit applies."""
        return self.held

    def check(self) -> None:
        """RemoteProtocolError if more bytes are held than the limit allows."""
        if (held := self.limited) > self.limit:
            raise RemoteProtocolError(
                f"the connection holds {held} bytes, the limit is {self.limit}",
                RESOURCE_LIMIT,
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection. The first two are announced to the peer, the others enforced."""

    max_frame_size: int = 65536  # as the service; at 1 MiB the official client sends slower
    channel_max: int = 4999
    links_max: int = 4096  # on all sessions together
    # Incomplete deliveries, links, sessions and waiting replies. 4096 links need 9 MiB; without
    # many links there is room for about fifteen incomplete batches of 1 MiB.
    held_bytes_max: int = 16 * 1024 * 1024
