"""Credit and window arithmetic: how much may still be sent.

Two gates stand before a sender. The *link credit* counts deliveries and belongs to one link; the
*session window* counts transfer frames and belongs to all links of a session. Both are told as
"I have seen up to here, and you may go this much further", so what is left is found by comparing
with what was sent since. The counters wrap at 2^32 (RFC 1982 serial numbers).
"""

from __future__ import annotations

WRAP = 1 << 32
HALF = 1 << 31


def advance(number: int, by: int = 1) -> int:
    """A serial number, `by` steps further on."""
    return (number + by) % WRAP


def distance(start: int, end: int) -> int:
    """How many steps lie from `start` to `end`; negative if `end` is behind."""
    gap = (end - start) % WRAP
    return gap - WRAP if gap >= HALF else gap


def allowed(seen: int, granted: int, sent: int) -> int:
    """What may still be sent: the peer has `seen` so many, `granted` more, and we have `sent`.

    >>> allowed(seen=100, granted=50, sent=120)
    30
    """
    return max(0, granted - distance(seen, sent))


def needs_topping_up(left: int, full: int) -> bool:
    """Grant anew at half: late enough to be rare, early enough that the peer never stalls."""
    return left <= full // 2
