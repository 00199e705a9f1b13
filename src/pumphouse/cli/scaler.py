"""`pumphouse scaler`: an external scaler for KEDA."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.lag_observation import observes_lag, serves_lag
from pumphouse.errors import OptionError

if TYPE_CHECKING:
    from pumphouse.lag.options import LagOptions

PORT = 6000  # that of the examples of KEDA


@click.command("scaler", short_help="Serve the lag of consumer groups to KEDA.")
@observes_lag(
    "5s",
    "How long a measured lag is reused, and how often a trigger of the type external-push checks "
    "the lag.",
)
@serves_lag(PORT, "gRPC service", "calls")
def scaler(options: LagOptions, port: int, host: str, output: str) -> None:
    """Serve the lag of consumer groups to KEDA, which then sets the number of hosts.

    It is an external scaler. A ScaledObject of KEDA contains its address, a consumer group
    (consumerGroup, default $Default) and the target lag per host (lagThreshold, default 1000
    events). The connection string and the store come from the options and variables of this command
    only. If the hub or the store does not respond, the status is UNAVAILABLE. It needs the extra
    `scaler`. Ctrl-C and SIGTERM stop it. With `-o json` it prints one line when it is ready:
    {"address": ..., "port": ...}.
    """

    def announce(bound: int) -> None:
        address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        if output == "json":
            console.print_json({"address": address, "port": bound})
        else:
            print(f"scaler     {address}\nCtrl-C stops it.", flush=True)

    asyncio.run(serve(options, port, host, announce))


async def serve(options: LagOptions, port: int, host: str, announce: Callable[[int], None]) -> None:
    """Run the scaler until SIGINT or SIGTERM."""
    from pumphouse.cli.up import stop_on_signal

    try:
        from pumphouse.scaler.service import ExternalScaler, serving
    except ImportError as missing:
        raise OptionError(
            f"the scaler needs the extra `scaler`: pip install 'pumphouse[scaler]' ({missing})"
        ) from None
    from pumphouse.scaler.observed_lag import ObservedLag

    lag = ObservedLag(options, console.message)
    try:
        with stop_on_signal() as stop:
            async with serving(ExternalScaler(lag, options.interval_s), port, host) as bound:
                announce(bound)
                await stop.wait()
    finally:
        await lag.close()
