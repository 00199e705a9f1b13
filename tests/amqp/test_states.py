"""The three state machines as graphs: reachable states, no dead ends, errors of the right side."""

from __future__ import annotations

from itertools import product

import pytest

from pumphouse.amqp.states import CONNECTION, LINK, SESSION, Table, step
from pumphouse.errors import LocalProtocolError, RemoteProtocolError

MACHINES = {
    "connection": (CONNECTION, "START", "END"),
    "session": (SESSION, "UNMAPPED", "UNMAPPED"),
    "link": (LINK, "DETACHED", "DETACHED"),
}
machines = pytest.mark.parametrize(("table", "start", "end"), MACHINES.values(), ids=MACHINES)


def states(table: Table) -> set[str]:
    return {state for state, _ in table} | set(table.values())


def reachable(table: Table, start: str) -> set[str]:
    states, new = set(), {start}
    while new:
        states |= new
        new = {after for (before, _), after in table.items() if before in states} - states
    return states


@machines
def test_every_state_is_reached(table: Table, start: str, end: str) -> None:
    assert reachable(table, start) == states(table)


@machines
def test_no_state_is_a_dead_end(table: Table, start: str, end: str) -> None:
    for state in states(table):
        assert end in reachable(table, state), state


@machines
def test_an_illegal_action_raises_the_error_of_its_side(table: Table, start: str, end: str) -> None:
    actions = {action for _, action in table}
    for state, action in product(states(table), actions):
        if (state, action) in table:
            assert step(table, "it", None, state, action) == table[state, action]
        elif action.startswith("send "):
            with pytest.raises(LocalProtocolError, match=f"it in state {state} cannot {action}"):
                step(table, "it", None, state, action)
        else:
            with pytest.raises(RemoteProtocolError, match=f"state {state} cannot") as caught:
                step(table, "it", None, state, action)
            assert caught.value.condition == "amqp:illegal-state"


def exchanged(action: str) -> str:
    """The action of the peer that corresponds to ours."""
    verb, _, what = action.partition(" ")
    what = what.removesuffix(" with error")  # the peer receives an end in both cases
    return f"{'receive' if verb == 'send' else 'send'} {what}"


@pytest.mark.parametrize(
    ("table", "start", "walk", "end"),
    [
        (SESSION, "UNMAPPED", "send begin, receive begin, send end, receive end", "UNMAPPED"),
        (SESSION, "UNMAPPED", "receive begin, send begin, receive end, send end", "UNMAPPED"),
        (SESSION, "UNMAPPED", "send begin, receive begin, send end with error", "DISCARDING"),
        (LINK, "DETACHED", "send attach, receive attach, receive detach, send detach", "DETACHED"),
        (LINK, "DETACHED", "receive attach, send attach, send detach", "DETACH_SENT"),
        (CONNECTION, "HDR_EXCH", "send open, receive open, send close, receive close", "END"),
    ],
)
def test_an_action_of_one_peer_is_legal_for_the_other(
    table: Table, start: str, walk: str, end: str
) -> None:
    near = far = start
    for action in walk.split(", "):
        near = step(table, "near", None, near, action)
        far = step(table, "far", None, far, exchanged(action))
    assert near == end


@pytest.mark.parametrize(
    ("table", "state", "verb", "end"),
    [
        (LINK, "ATTACHED", "detach", "DETACHED"),
        (SESSION, "MAPPED", "end", "UNMAPPED"),
        (CONNECTION, "OPENED", "close", "END"),
    ],
)
def test_both_peers_may_close_at_once(table: Table, state: str, verb: str, end: str) -> None:
    state = step(table, "it", None, state, f"send {verb}")
    assert step(table, "it", None, state, f"receive {verb}") == end
