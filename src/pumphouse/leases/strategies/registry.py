"""All strategies by name. The command line, Spark's options, errors and docs take them from here.

    "steady", "fixed:4" -> parse_strategy -> Strategy
                           ^^^^^^^^^^^^^^ this module

To add a strategy, write its rule in a module of this package and add it to STRATEGIES below, and a
row to the table in docs/leases.md.
"""

from __future__ import annotations

from pumphouse.errors import OptionError
from pumphouse.leases.strategies import classic
from pumphouse.leases.strategies.steady import steady, steady_by_rate
from pumphouse.leases.strategies.strategy import Strategy, limited

BALANCED = Strategy("balanced", classic.balanced, paced=True)
GREEDY = Strategy("greedy", classic.greedy, eager=True)
EPH = Strategy("eph", classic.eph, grabs=True)
EPH_JS = Strategy("eph_js", classic.eph_js, grabs=True, looks_again=True)
STEADY = Strategy("steady", steady, joins_first=True)
STEADY_BY_RATE = Strategy("steady:rates", steady_by_rate, joins_first=True)

# In the order in which help texts and documents list them.
STRATEGIES = {
    strategy.name: strategy for strategy in (STEADY, STEADY_BY_RATE, GREEDY, BALANCED, EPH, EPH_JS)
}
FIXED_FORM = "fixed:N"


def fixed(count: int, *, paced: bool = False) -> Strategy:
    """At most `count` partitions; never steals, and hands nothing over while it runs.

    `paced` claims at most one per interval, however often cycles come.
    """
    if count < 1:
        raise OptionError(f"a fixed number of partitions must be at least 1 (got {count})")
    return Strategy(
        f"fixed:{count}",
        classic.fixed,
        steals=False,
        yields=False,
        paced=paced,
        retries_claims=True,  # after a lost claim it claims another partition at once
        max_partitions=count,
    )


def strategy_forms(*, grabbing: bool = True) -> str:
    """How strategies are written, as a list for help texts and errors.

    `grabbing=False` leaves out those that take held partitions without a hand-over.
    """
    names = [name for name, strategy in STRATEGIES.items() if grabbing or not strategy.grabs]
    return ", ".join([*names, FIXED_FORM])


def parse_strategy(text: str, max_partitions: int | None = None) -> Strategy:
    """The strategy of this name: steady, greedy, fixed:4 and so on."""
    name = text.strip().lower()
    kind, _, count = name.partition(":")
    if kind == "fixed" and count.isdecimal():
        return limited(fixed(int(count)), max_partitions)
    if (strategy := STRATEGIES.get(name)) is not None:
        return limited(strategy, max_partitions)
    raise OptionError(f"unknown strategy {text!r}: use one of {strategy_forms()}")


def choose_strategy(strategy: str | Strategy, max_partitions: int | None) -> Strategy:
    """The strategy, given by name or as an object, limited to `max_partitions`."""
    if isinstance(strategy, Strategy):
        return limited(strategy, max_partitions)
    if not isinstance(strategy, str):
        raise OptionError(
            f"strategy must be a name or a Strategy (got {strategy!r}): use one of "
            f"{strategy_forms()}"
        )
    return parse_strategy(strategy, max_partitions)
