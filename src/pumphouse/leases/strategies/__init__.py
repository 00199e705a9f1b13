"""Strategies: pure functions that choose the partitions a host claims next from a census.

A strategy takes a census (the ownership of all partitions at one instant) and returns the
partitions to claim or to request. It does no IO, reads no clock and keeps no state, so that a fleet
of a thousand hosts can be balanced inside a unit test. `registry` lists all of them by name.

    store.list_ownership -> take_census -> strategy -> store.claim_ownership -> start and stop pumps
                                           ^^^^^^^^ this package
"""

from pumphouse.leases.strategies.registry import (
    BALANCED,
    EPH,
    EPH_JS,
    GREEDY,
    STEADY,
    STEADY_BY_RATE,
    STRATEGIES,
    choose_strategy,
    fixed,
    parse_strategy,
    strategy_forms,
)
from pumphouse.leases.strategies.strategy import Rule, Strategy, limited, settled

__all__ = [
    "BALANCED",
    "EPH",
    "EPH_JS",
    "GREEDY",
    "STEADY",
    "STEADY_BY_RATE",
    "STRATEGIES",
    "Rule",
    "Strategy",
    "choose_strategy",
    "fixed",
    "limited",
    "parse_strategy",
    "settled",
    "strategy_forms",
]
