"""Which of several hosts gets which partition, so that all of them answer alike?

Hosts and partitions are set around a ring by the hash of their names; a partition goes to the first
host behind it that still has room. Hosts with the same census deal exactly the same. One that knows
of a host more or less deals nearly the same (nine in ten partitions), where dealing in turns or in
blocks would change most of them: so even then few claims meet.

    steady -> deal -> partition -> host
              ^^^^ this module
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from zlib import crc32

POINTS = 8  # of each host: more agree better, and cost more
MASK = 0xFFFFFFFF
STEP = 0x9E3779B1  # the golden ratio: the points of a host lie far apart


def deal(pool: Iterable[str], room: Mapping[str, int]) -> dict[str, str]:
    """Give partitions to hosts, to none more than it has room for; what finds none is left out."""
    left = {host: count for host, count in room.items() if count > 0}
    points = sorted((mix(hashed(host) + n * STEP), host) for host in left for n in range(POINTS))
    places, hosts = [place for place, _ in points], [host for _, host in points]
    ahead = [*range(1, len(points)), 0]
    dealt: dict[str, str] = {}
    free = sum(left.values())
    for place, partition in sorted((hashed(name), name) for name in pool)[:free]:
        at = next_with_room(bisect_left(places, place) % len(points), hosts, left, ahead)
        dealt[partition] = hosts[at]
        left[hosts[at]] -= 1
    return dealt


def next_with_room(at: int, hosts: list[str], left: Mapping[str, int], ahead: list[int]) -> int:
    """The first point from `at` on whose host has room. The way there is remembered in `ahead`."""
    passed = []
    while left[hosts[at]] == 0:
        passed.append(at)
        at = ahead[at]
    for point in passed:
        ahead[point] = at
    return at


def hashed(name: str) -> int:
    """A place on the ring, the same in every process (Python's own hash is not)."""
    return mix(crc32(name.encode()))


def mix(number: int) -> int:
    """Spread 32 bits well: the sums of similar names are similar."""
    number &= MASK
    number = ((number ^ (number >> 16)) * 0x7FEB352D) & MASK
    number = ((number ^ (number >> 15)) * 0x846CA68B) & MASK
    return number ^ (number >> 16)
