"""Credit and window arithmetic: the number of deliveries and frames that may still be sent.

Two limits apply to a sender. The *link credit* counts deliveries of one link; the *session window*
counts transfer frames of all links of a session. A peer announces both as "received up to here,
this many more allowed", so the remainder follows from the number sent since. The counters wrap at
2^32 (RFC 1982 serial numbers).
"""

from __future__ import annotations

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
    """What may still be sent: the peer has `seen` some and `granted` more, and we `sent` some.

    >>> allowed(seen=100, granted=50, sent=120)
    30
    """
    return max(0, granted - distance(seen, sent))


def needs_topping_up(left: int, full: int) -> bool:
    """Whether to grant again: at half, which keeps flows rare and never stalls the peer."""
    return left <= full // 2
