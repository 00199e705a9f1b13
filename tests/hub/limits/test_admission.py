"""Slots of accepted sockets: limits, who makes room for whom, and budgets of bytes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.credit import RESOURCE_LIMIT
from pumphouse.errors import RemoteProtocolError
from pumphouse.hub.limits import admission
from pumphouse.hub.limits.admission import (
    ANONYMOUS_SHARE,
    DESCRIPTORS,
    DESCRIPTORS_S,
    FEW_BYTES,
    Admission,
    AdmissionLimits,
    Slot,
    address_key,
)


class Recorder:
    """An admission that records which slots it closes, and which limits it reports."""

    def __init__(self, connections: int = 4, per_address: int = 3, total: int = 1000) -> None:
        limits = AdmissionLimits(connections, per_address, 100, 500, total)
        self.admission = Admission(limits)
        self.admission.on_full = lambda limit, address, refused: self.full.append((limit, refused))
        self.full: list[tuple[str, bool]] = []
        self.closed: list[Slot] = []

    def admit(self, address: str, now: float = 0.0, low: bool = False) -> Slot | None:
        slot = self.admission.admit(address, now, low)
        if slot is not None:
            slot.close = lambda reason: self.closed.append(slot)
        return slot

    def slot(self, address: str) -> Slot:
        slot = self.admit(address)
        assert slot is not None
        return slot


def test_the_oldest_anonymous_connection_makes_room() -> None:
    hub = Recorder()
    first, *_ = [hub.slot(address) for address in "abcd"]
    assert hub.admit("e") is not None
    assert hub.closed == [first]
    assert first.released
    assert len(hub.admission) == 4
    assert hub.full == [("process", False)]


def test_an_authenticated_connection_keeps_its_slot() -> None:
    hub = Recorder()
    for address in "abcd":
        hub.slot(address).set_authenticated()
    assert hub.admit("e") is None
    assert hub.closed == []
    assert hub.full == [("process", True)]


def test_an_address_makes_room_among_its_own() -> None:
    hub = Recorder(connections=10)
    other = hub.slot("b")
    first, *_ = [hub.slot("a") for _ in range(3)]
    assert hub.admit("a") is not None
    assert hub.closed == [first]
    assert (hub.admission.count("a"), hub.admission.count("b")) == (3, 1)
    assert not other.released


def test_an_address_whose_connections_are_all_authenticated_is_refused() -> None:
    hub = Recorder(connections=10)
    for _ in range(3):
        hub.slot("a").set_authenticated()
    assert hub.admit("a") is None
    assert hub.admit("b") is not None
    assert hub.full == [("address", True)]


def test_a_renewed_slot_is_not_the_oldest() -> None:
    hub = Recorder()
    first, second, *_ = [hub.slot(address) for address in "abcd"]
    first.renew()
    hub.slot("e")
    assert hub.closed == [second]


def test_low_descriptors_limit_the_number_for_a_while() -> None:
    hub = Recorder(connections=100, per_address=100)
    for _ in range(5):
        hub.slot("a")
    assert hub.admit("a", 0.0, low=True) is not None
    assert len(hub.admission) == 5  # one was closed for it
    # The next descriptor is a low number again, that of the closed one.
    assert hub.admit("a", 0.5) is not None
    assert len(hub.admission) == 5
    assert hub.full == [(DESCRIPTORS, False)] * 2
    assert hub.admit("a", DESCRIPTORS_S) is not None
    assert len(hub.admission) == 6


def test_a_released_slot_leaves_nothing() -> None:
    hub = Recorder()
    slots = [hub.slot(address) for address in "aab"]
    slots[0].set_authenticated()
    for slot in slots:
        slot.budget.hold(50)
        slot.release()
        slot.release()
        slot.budget.hold(-50)  # what a connection releases later counts no more
        slot.set_authenticated()
        slot.renew()
    assert len(hub.admission) == 0
    assert hub.admission.total.held == 0
    assert (hub.admission.count("a"), hub.admission.count("b")) == (0, 0)
    assert hub.closed == []


def test_the_budget_grows_with_authentication() -> None:
    slot = Recorder().slot("a")
    called = []
    slot.on_authenticated = lambda: called.append(slot)
    slot.budget.hold(100)
    slot.budget.check()
    slot.budget.hold(1)
    with pytest.raises(RemoteProtocolError) as refused:
        slot.budget.check()
    assert refused.value.condition == RESOURCE_LIMIT
    slot.set_authenticated()
    slot.set_authenticated()
    slot.budget.check()
    assert called == [slot]


@pytest.fixture
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FEW_BYTES", 200)


@pytest.mark.usefixtures("_few_bytes")
def test_without_a_large_one_the_oldest_anonymous_connection_is_closed() -> None:
    """Each TLS connection needs memory of its own, which is not its client's fault."""
    hub = Recorder(total=1000)
    authenticated, oldest, newest = (hub.slot(address) for address in "abc")
    for slot in (authenticated, oldest, newest):
        slot.hold_fixed(300)
    authenticated.set_authenticated()
    authenticated.budget.hold(150)
    assert [*hub.admission.shed()] == [(oldest, 300)]
    assert hub.admission.total.held == 750
    newest.release()
    assert hub.admission.total.held == 450
    assert authenticated.budget.held == 150  # the fixed bytes do not use its own budget


@pytest.mark.usefixtures("_few_bytes")
def test_the_connection_that_holds_most_is_closed_first() -> None:
    hub = Recorder(total=1000)
    exceeded: list[int] = []
    hub.admission.total.on_exceeded = lambda: exceeded.append(hub.admission.total.held)
    small, large, middle = (hub.slot(address) for address in "abc")
    small.budget.hold(100)
    middle.budget.hold(300)
    large.budget.hold(600)
    assert exceeded == []
    small.budget.hold(1)
    assert exceeded == [1001]
    assert [*hub.admission.shed()] == [(large, 600)]
    assert hub.closed == [large]
    assert hub.admission.total.held == 401
    assert [*hub.admission.shed()] == []


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (("10.0.0.7", 1234), "10.0.0.7"),
        (("::1", 1, 0, 0), "::1"),
        (("::ffff:10.0.0.7", 1, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_client_counts_for_its_network(address: object, key: str) -> None:
    assert address_key(address) == key


def test_unread_bytes_count_for_all_slots_only() -> None:
    admission = Admission(AdmissionLimits(9, 9, 1000, 1 << 20, 5000))
    slot = admission.admit("a", 0.0)
    assert slot is not None
    slot.budget.hold_unread(3000)
    slot.budget.hold(1000)
    slot.budget.check()
    assert admission.total.held == 4000
    slot.budget.hold(1)
    with pytest.raises(RemoteProtocolError, match="holds 1001 bytes, the limit is 1000"):
        slot.budget.check()
    slot.budget.hold_unread(-2000)
    assert (slot.budget.held, admission.total.held) == (2001, 2001)
    slot.release()
    assert (slot.budget.held, admission.total.held) == (0, 0)


# -- who is closed if the bytes of all connections exceed their limit ------------------------------

MIB = 1 << 20
TOTAL = 16 * MIB
BYTES = st.sampled_from([0, 1000, 300_000, MIB, MIB + 1, 3 * MIB, 7 * MIB])
# Whether a slot has authenticated, and its bytes: counted, unread, of its transport.
SLOTS = st.lists(st.tuples(st.booleans(), BYTES, BYTES, BYTES), max_size=30)


def loaded(slots: list[tuple[bool, int, int, int]]) -> Recorder:
    hub = Recorder(connections=100, per_address=100, total=TOTAL)
    for authenticated, held, unread, fixed in slots:
        slot = hub.slot("a")
        if authenticated:
            slot.set_authenticated()
        slot.budget.hold(held)
        slot.budget.hold_unread(unread)
        slot.hold_fixed(fixed)
    return hub


def bytes_of(slots: Iterable[Slot]) -> int:
    return sum(slot.budget.held + slot.fixed_bytes for slot in slots)


def anonymous(hub: Recorder) -> list[Slot]:
    return [slot for slot in hub.admission.slots if not slot.authenticated]


def test_many_anonymous_connections_do_not_close_an_authenticated_one() -> None:
    """Each of them holds little, such as the buffers of TLS."""
    hub = loaded([(True, 3 * MIB, 0, 0), *[(False, 0, 0, 300_000)] * 50])
    shed = [slot for slot, _ in hub.admission.shed()]
    assert shed
    assert not any(slot.authenticated for slot in shed)


def test_a_large_authenticated_connection_does_not_close_those_that_log_in() -> None:
    hub = loaded([*[(False, 0, 0, 300_000)] * 5, (True, 3 * MIB, 0, 0), (True, 13 * MIB, 0, 0)])
    (shed,) = [slot for slot, _ in hub.admission.shed()]
    assert shed.authenticated


@given(SLOTS)
def test_an_authenticated_connection_is_closed_only_if_others_are_not_the_cause(
    slots: list[tuple[bool, int, int, int]],
) -> None:
    hub = loaded(slots)
    while hub.admission.total.held > TOTAL and hub.admission.slots:
        chosen = hub.admission.to_shed()
        if chosen.authenticated:
            held = [slot.budget.held for slot in hub.admission.slots]
            assert chosen.budget.held == max(held)
            assert bytes_of(anonymous(hub)) <= TOTAL // ANONYMOUS_SHARE
            assert chosen.budget.held > FEW_BYTES or not anonymous(hub)
        hub.admission.shut(chosen, "test")
    assert hub.admission.total.held == bytes_of(hub.admission.slots) <= TOTAL


@given(SLOTS)
def test_no_more_connections_are_closed_than_needed(
    slots: list[tuple[bool, int, int, int]],
) -> None:
    hub = loaded(slots)
    total = hub.admission.total.held
    shed = [held for _, held in hub.admission.shed()]
    assert hub.admission.total.held == total - sum(shed) <= TOTAL
    if shed:
        assert total - sum(shed[:-1]) > TOTAL
