"""The order in which connections are served, and the time of one turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pumphouse.hub.limits.turns import (
    ANONYMOUS_S,
    AUTHENTICATED_S,
    PORTION_MAX_S,
    PORTIONS_S,
    RESERVE_S,
    Turns,
)

ALL_S = AUTHENTICATED_S + ANONYMOUS_S


@dataclass(frozen=True)
class Client:
    authenticated: bool


@dataclass(eq=False)
class Connection:
    """A worker with some seconds of work."""

    name: str
    turns: Turns
    served: list[str]
    work_s: float
    slot: Client = field(default_factory=lambda: Client(True))

    def take_turn(self) -> None:
        self.served.append(self.name)
        seconds = min(self.work_s, self.turns.allowance(self.slot))
        self.work_s -= seconds
        self.turns.spend(self.slot, seconds)
        if self.work_s > 1e-9:
            self.turns.wait(self, continued=True)


class Hub:
    """Turns whose calls a test makes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.turns = Turns(self.calls.append)
        self.served: list[str] = []

    def arrive(self, name: str, work_s: float = 0.0001, authenticated: bool = True) -> Connection:
        connection = Connection(name, self.turns, self.served, work_s, Client(authenticated))
        self.turns.wait(connection, continued=False)
        return connection

    def turn(self) -> list[str]:
        """One turn of the loop; returns the names that were served."""
        self.served.clear()
        (call,) = self.calls
        self.calls.clear()
        call()
        return list(self.served)


def test_a_client_is_served_at_once_while_time_is_left() -> None:
    hub = Hub()
    client = Client(False)
    for _ in range(4):
        assert hub.turns.allowance(client) == PORTIONS_S[1]
        hub.turns.spend(client, PORTIONS_S[1])
        assert not hub.calls
    hub.turns.spend(client, PORTIONS_S[1])
    assert hub.turns.allowance(client) == 0
    assert hub.turns.allowance(Client(True)) == PORTIONS_S[0]
    assert hub.turn() == []
    assert hub.turns.allowance(client) == PORTIONS_S[1]
    assert not hub.calls


def test_authenticated_clients_are_served_before_others() -> None:
    hub = Hub()
    hub.arrive("anonymous", authenticated=False)
    hub.arrive("known")
    assert hub.turn() == ["known", "anonymous"]
    assert not hub.calls


@pytest.mark.parametrize("count", [1, 20, 1000])
def test_the_time_of_a_turn_is_limited_for_all_clients_together(count: int) -> None:
    hub = Hub()
    flooding = [
        hub.arrive(f"{number}", work_s=1000.0, authenticated=number % 2 == 0)
        for number in range(2 * count)
    ]
    before = sum(connection.work_s for connection in flooding)
    for turn in range(1, 5):
        hub.turn()
        left = sum(connection.work_s for connection in flooding)
        assert before - left <= turn * (ALL_S + 2 * PORTION_MAX_S)


def test_a_new_client_waits_for_few_clients_that_send_without_end() -> None:
    hub = Hub()
    for number in range(1000):
        hub.arrive(f"flood {number}", work_s=1000.0, authenticated=False)
    for _ in range(2000):
        hub.turn()
    hub.arrive("login", authenticated=False)
    assert "login" in hub.turn()[:3]
    hub.arrive("known")
    assert hub.turn()[0] == "known"


def test_a_stream_of_new_clients_does_not_starve_clients_with_more_to_do() -> None:
    hub = Hub()
    large = hub.arrive("large", work_s=3 * PORTIONS_S[0])
    for number in range(20):
        for extra in range(10):
            hub.arrive(f"{number}.{extra}", work_s=PORTIONS_S[0])
        hub.turn()
    assert large.work_s < 1e-9


def test_busy_authenticated_clients_do_not_keep_others_from_logging_in() -> None:
    hub = Hub()
    for number in range(100):
        hub.arrive(f"{number}", work_s=1000.0)
    hub.turn()
    hub.arrive("login", authenticated=False)
    assert "login" in hub.turn()


def test_the_queue_leaves_time_for_authenticated_clients_that_send_now() -> None:
    hub = Hub()
    for number in range(10):
        hub.arrive(f"{number}", work_s=1000.0)
    hub.turn()
    assert hub.turns.allowance(Client(True)) == min(RESERVE_S, PORTIONS_S[0])
    assert hub.turns.allowance(Client(False)) > 0


def test_a_connection_that_has_ended_is_not_served() -> None:
    hub = Hub()
    gone, kept = hub.arrive("gone"), hub.arrive("kept")
    assert len(hub.turns) == 2
    hub.turns.discard(gone)
    hub.turns.discard(gone)
    assert hub.turn() == ["kept"]
    assert kept.work_s < 1e-9
