"""The options of the commands that observe the lag of consumer groups and serve it.

--connection, --hub, --store, ... -> LagOptions -> `lag-exporter`, `scaler`
                                     ^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common.options import (
    DURATION_TYPE,
    LEASE_OF_HOSTS,
    ca_file,
    connection_option,
    hub_option,
    lease_option,
    listen_option,
    need_connection,
    output_option,
    store_option,
    verbose_option,
)

if TYPE_CHECKING:
    from pumphouse.lag.options import LagOptions

Command = Callable[..., None]


def observes_lag(interval: str, meaning: str) -> Callable[[Command], Command]:
    """Add the options of hub and store; the command gets them as `options`, which are checked."""
    interval_option = click.option(
        "--interval",
        "interval_s",
        type=DURATION_TYPE,
        default=interval,
        show_default=True,
        help=meaning,
    )
    added = (hub_option, connection_option, store_option, lease_option(LEASE_OF_HOSTS))

    def decorate(command: Command) -> Command:
        @wraps(command)
        def checked(**given: Any) -> None:
            command(options=pop_lag_options(given), **given)

        return with_options(checked, *added, interval_option)

    return decorate


def serves_lag(port: int, what: str, callers: str) -> Callable[[Command], Command]:
    """Add --port, --host, --output and --verbose."""
    added = (listen_option(port, what, callers), output_option, verbose_option)
    return lambda command: with_options(command, *added)


def with_options(command: Command, *added: Callable[[Command], Command]) -> Command:
    """The command with these options, in this order."""
    return reduce(lambda decorated, add: add(decorated), reversed(added), command)


def pop_lag_options(given: dict[str, Any]) -> LagOptions:
    """Remove the options of hub, store and groups from `given`, and return them."""
    from pumphouse.lag.options import lag_options

    connection, hub = need_connection(given.pop("connection")), given.pop("hub") or ""
    store, groups = given.pop("store"), given.pop("groups", ())
    interval_s, lease_s = given.pop("interval_s"), given.pop("lease_s")
    return lag_options(connection, hub, store, groups, interval_s, lease_s, ca_file())
