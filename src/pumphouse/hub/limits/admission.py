"""Which connections the hub accepts, and the bytes that it holds for them.

Every accepted socket of every listener has a slot until it is closed. A slot belongs to an address
and has a budget of bytes, which is small until the client has authenticated and large after that. A
common budget limits all slots together.

    accept -> Admission.admit -> Slot -> TLS, WebSocket -> HubConnection -> authenticated, release

A client that has not authenticated never keeps another one out: if a limit is reached, the slot
that has waited longest for authentication is closed in favour of the new one. Only if all slots are
authenticated, the new connection is refused. If the common budget is exceeded, the slot that holds
the most bytes is closed or, if none holds many, the one that has waited longest. While those that
wait hold more than their share of it, only they are closed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pumphouse.amqp.credit import Budget

FEW_BYTES = 1024 * 1024  # a slot that holds no more is not the cause if the budget is exceeded
# If the slots that wait for authentication hold more than a quarter of the limit together, they are
# the cause. A client needs a fraction of a second to authenticate, so few of them wait at a time.
ANONYMOUS_SHARE = 4
# When the descriptors are used up, the number of connections at that moment is the limit for this
# time. Otherwise, after one connection is closed, two new ones could be accepted.
DESCRIPTORS_S = 1.0
PROCESS, ADDRESS, DESCRIPTORS = "process", "address", "descriptors"  # reasons of a refusal


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of the connections of one hub, or of one listener."""

    connections_max: int
    per_address_max: int
    anonymous_bytes_max: int  # of a connection before authentication
    connection_bytes_max: int  # of a connection after authentication
    total_bytes_max: int  # of all connections together


class SlotBudget(Budget):
    """The budget of one slot. The bytes held count towards the budget of all slots too.

    Bytes that the client has not read yet count only towards the budget of all slots. They have a
    limit of their own, at which the hub stops sending, so a client that reads slowly is not closed.
    """

    __slots__ = ("_total", "_unread")

    def __init__(self, limit: int, total: TotalBudget) -> None:
        super().__init__(limit)
        self._total: TotalBudget | None = total  # None after the end of the slot
        self._unread = 0

    def hold(self, amount: int) -> None:
        self.held += amount
        if self._total is not None:
            self._total.hold(amount)

    def hold_unread(self, amount: int) -> None:
        """Count bytes that were sent to the client, and that it has not read yet."""
        self._unread += amount
        self.hold(amount)

    @property
    def limited(self) -> int:
        return self.held - self._unread

    def close(self) -> None:
        """Release everything. What the connection releases later does not count twice."""
        self.hold(-self.held)
        self._total, self._unread = None, 0


class TotalBudget(Budget):
    """The bytes that are held for all clients; `on_exceeded` is called beyond the limit."""

    __slots__ = ("on_exceeded",)

    def __init__(self, limit: int, on_exceeded: Callable[[], None]) -> None:
        super().__init__(limit)
        self.on_exceeded = on_exceeded

    def hold(self, amount: int) -> None:
        self.held += amount
        if amount > 0 and self.held > self.limit:
            self.on_exceeded()


def address_key(address: Any) -> str:
    """The address that a socket counts for: a host, or an IPv6 network of one customer."""
    host = str(address[0]) if address else ""
    if ":" not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return host
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def ignore(reason: str) -> None:
    """The slot has no socket: there is nothing to close."""


def do_nothing() -> None:
    """No action is needed."""


class Slot:
    """One accepted socket."""

    __slots__ = (
        "__weakref__",
        "accepted_at",
        "address",
        "admission",
        "authenticated",
        "budget",
        "close",
        "fixed_bytes",
        "listener",
        "on_authenticated",
        "released",
    )

    def __init__(self, admission: Admission, address: str, accepted_at: float) -> None:
        self.admission = admission
        self.address = address
        self.accepted_at = accepted_at  # on the loop's clock
        self.budget = SlotBudget(admission.limits.anonymous_bytes_max, admission.total)
        self.listener = "amqp"  # the listener that accepted it
        self.fixed_bytes = 0  # they count towards the budget of all slots only
        self.authenticated = False
        self.released = False
        # Set by the owner of the socket. Closing must free the socket and release the slot soon.
        self.close: Callable[[str], None] = ignore
        self.on_authenticated: Callable[[], None] = do_nothing

    def set_authenticated(self) -> None:
        """The client has authenticated: it gets the large budget and keeps its slot."""
        if not self.authenticated and not self.released:
            self.authenticated = True
            self.budget.limit = self.admission.limits.connection_bytes_max
            self.admission.stop_waiting(self)
            self.on_authenticated()

    def hold_fixed(self, amount: int) -> None:
        """Count bytes that every client may need: of its transport, and of an incomplete frame."""
        if not self.released:
            self.fixed_bytes += amount
            self.admission.total.hold(amount)

    def renew(self) -> None:
        """Restart the waiting time of the slot, because its client has just been served."""
        if not self.authenticated and not self.released:
            self.admission.stop_waiting(self)
            self.admission.start_waiting(self)

    def release(self) -> None:
        """Give the slot back, with everything that it holds. A second call has no effect."""
        if not self.released:
            self.released = True
            self.budget.close()
            self.admission.total.hold(-self.fixed_bytes)
            self.close, self.on_authenticated = ignore, do_nothing
            self.admission.forget(self)


class Admission:
    """The slots of all accepted sockets."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.total = TotalBudget(limits.total_bytes_max, do_nothing)
        # Called if a limit is reached: the limit, the address, whether the socket is refused.
        self.on_full: Callable[[str, str, bool], None] = lambda limit, address, refused: None
        self.slots: dict[Slot, None] = {}
        # The limit that the descriptors set, and until when it holds.
        self._descriptors_max, self._descriptors_until = 0, float("-inf")
        self._counts: dict[str, int] = {}  # of the slots of each address
        # The slots that wait for authentication, oldest first: all, and those of each address.
        self._waiting: dict[Slot, None] = {}
        self._waiting_from: dict[str, dict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def count(self, address: str) -> int:
        return self._counts.get(address, 0)

    def admit(self, address: str, now: float, low_descriptors: bool = False) -> Slot | None:
        """A slot for a new socket; None if it is refused."""
        if low_descriptors:
            self._descriptors_max, self._descriptors_until = len(self.slots), now + DESCRIPTORS_S
        reason = self.full(address, now)
        if reason is not None:
            evicted = self.evict(address if reason == ADDRESS else None, reason)
            self.on_full(reason, address, not evicted)
            if not evicted:
                return None
        slot = Slot(self, address, now)
        self.slots[slot] = None
        self.start_waiting(slot)
        self._counts[address] = self.count(address) + 1
        return slot

    def full(self, address: str, now: float) -> str | None:
        """The limit that is reached, if any."""
        if self.count(address) >= self.limits.per_address_max:
            return ADDRESS
        if len(self.slots) >= self.limits.connections_max:
            return PROCESS
        if now < self._descriptors_until and len(self.slots) >= self._descriptors_max:
            return DESCRIPTORS
        return None

    def evict(self, address: str | None, reason: str) -> bool:
        """Close the slot that has waited longest, of an address if given; False if none waits."""
        waiting = self._waiting if address is None else self._waiting_from.get(address, {})
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self.shut(oldest, f"limit of connections: {reason}")
        return True

    def shed(self) -> Iterator[tuple[Slot, int]]:
        """Close slots until the total fits; yields each with its bytes."""
        while self.slots and self.total.held > self.total.limit:
            slot = self.to_shed()
            held = slot.budget.held + slot.fixed_bytes
            self.shut(slot, "limit of bytes of all connections")
            yield slot, held

    def to_shed(self) -> Slot:
        """The slot that holds most; if that is little, the one that has waited longest."""
        candidates = self._waiting if self.anonymous_hold_much() else self.slots
        largest = max(candidates, key=lambda slot: slot.budget.held)
        if largest.budget.held > FEW_BYTES:
            return largest
        return next(iter(self._waiting), largest)

    def anonymous_hold_much(self) -> bool:
        """Whether the slots that wait hold more than their share; then one of them is closed."""
        left = self.total.limit // ANONYMOUS_SHARE
        for slot in self._waiting:
            left -= slot.budget.held + slot.fixed_bytes
            if left < 0:
                return True
        return False

    def shut(self, slot: Slot, reason: str) -> None:
        # The slot is released first: its bytes and its place are free at once, but the socket only
        # in the next turn of the event loop.
        close = slot.close
        slot.release()
        close(reason)

    # -- for slots --------------------------------------------------------------------------------

    def start_waiting(self, slot: Slot) -> None:
        self._waiting[slot] = None
        self._waiting_from.setdefault(slot.address, {})[slot] = None

    def stop_waiting(self, slot: Slot) -> None:
        self._waiting.pop(slot, None)
        same_address = self._waiting_from.get(slot.address, {})
        same_address.pop(slot, None)
        if not same_address:
            self._waiting_from.pop(slot.address, None)

    def forget(self, slot: Slot) -> None:
        del self.slots[slot]
        self.stop_waiting(slot)
        self._counts[slot.address] -= 1
        if not self._counts[slot.address]:
            del self._counts[slot.address]
