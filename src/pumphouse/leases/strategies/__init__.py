"""Which partitions should this host claim next? Pure functions of a census.

A strategy looks at a census (who owns what, judged at one instant) and answers with the partitions
to claim. It does no IO, reads no clock and keeps no state, so that a fleet of a thousand hosts can
be balanced inside a unit test.

    store.list_ownership -> take_census -> strategy -> store.claim_ownership -> start and stop pumps
                                           ^^^^^^^^ this package
"""

from pumphouse.leases.strategies.strategy import (
    BALANCED,
    EPH,
    EPH_JS,
    GREEDY,
    NAMED,
    STEADY,
    STEADY_BY_RATE,
    Rule,
    Strategy,
    fixed,
    limited,
    parse_strategy,
    settled,
)

__all__ = [
    "BALANCED",
    "EPH",
    "EPH_JS",
    "GREEDY",
    "NAMED",
    "STEADY",
    "STEADY_BY_RATE",
    "Rule",
    "Strategy",
    "fixed",
    "limited",
    "parse_strategy",
    "settled",
]
