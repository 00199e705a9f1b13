"""`pumphouse homes send`: sends the readings of simulated homes to a hub, paced by the clock."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    FiniteRange,
    ParsedType,
    ca_file,
    connection_option,
    need_connection,
    output_option,
    verbose_option,
)
from pumphouse.cli.homes.kinds import kinds_option
from pumphouse.errors import OptionError

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient
    from pumphouse.homes.simulator.sender import Progress, SendTotals
    from pumphouse.homes.simulator.time_slices import SliceSource

RATE = re.compile(r"(?P<times>[0-9]+(?:\.[0-9]+)?)x", re.IGNORECASE)
DAY_S = 86_400.0
HOMES_MAX = 1_000_000  # their names have six digits


def parse_rate(text: str) -> float | None:
    """The speed as a multiple of real time: realtime is 1, 60x is 60, max is None."""
    rate = text.strip().lower()
    if rate in ("realtime", "max"):
        return 1.0 if rate == "realtime" else None
    match = RATE.fullmatch(rate)
    if match is None or float(match["times"]) <= 0:
        raise OptionError(f"invalid rate {text!r}: use realtime, max, or a factor such as 60x")
    return float(match["times"])


def parse_share(text: str) -> tuple[int, int]:
    """The index of a producer and the number of producers: 1/4 is the first of four."""
    number, slash, count = text.partition("/")
    are_numbers = slash and number.isdecimal() and count.isdecimal()
    if not (are_numbers and 1 <= int(number) <= int(count)):
        raise OptionError(f"invalid share {text!r}: use 1/4 for the first of four producers")
    return int(number) - 1, int(count)


def parse_start(text: str) -> int:
    """Milliseconds since 1970 from a time, with or without the prefix `time:` of a position."""
    from pumphouse.clock import SystemClock, now_ms
    from pumphouse.events import parse_position

    position = parse_position(
        text if text.startswith("time:") else f"time:{text}", now_ms(SystemClock())
    )
    return int(position.value)


def parse_incident_rates(text: str) -> Any:
    from pumphouse.homes.simulator.incidents import parse_incidents

    return parse_incidents(text)


def parse_traces(text: str) -> Any:
    from pumphouse.homes.simulator.traces import TraceOptions

    if text in ("none", "alarms"):
        return TraceOptions(alarms=text == "alarms")
    try:
        return TraceOptions(share=float(text))
    except ValueError:
        raise OptionError(
            f"invalid traces {text!r}: use none, alarms, or a share such as 0.001"
        ) from None


TRACES_TYPE = ParsedType("traces", parse_traces)
RATE_TYPE = ParsedType("rate", lambda text: Speed(parse_rate(text)))
SHARE_TYPE = ParsedType("share", parse_share)
START_TYPE = ParsedType("time", parse_start)
INCIDENTS_TYPE = ParsedType("incidents", parse_incident_rates)


class Speed:
    """A rate as a multiple of real time; None is max. click does not allow a bare None."""

    def __init__(self, times: float | None) -> None:
        self.times = times


rate_option = click.option(
    "--rate",
    type=RATE_TYPE,
    default="realtime",
    show_default=True,
    metavar="realtime|max|60x",
    help="Speed of the readings: real time, as fast as the hub accepts them, or a multiple.",
)


def homes_option(default: int, help: str) -> Callable[..., Any]:
    return click.option(
        "--homes",
        type=click.IntRange(1, HOMES_MAX),
        default=default,
        show_default=True,
        help=help,
    )


def start_option(past: str) -> Callable[..., Any]:
    """Add --from. `past` describes the default at a rate other than real time, for the help."""
    return click.option(
        "--from",
        "start_ms",
        type=START_TYPE,
        metavar="TIME",
        help="Time of the first reading: 2026-05-01T12:00:00Z, or -2h for two hours ago. Default "
        f"with --rate realtime: now. Default with another rate: {past}.",
    )


driver_option = click.option(
    "--driver",
    type=click.Choice(["auto", "native", "azure"]),
    default="auto",
    show_default=True,
    help="Client: native, azure (the official client), or auto: native for a hub without TLS or on "
    "this machine, azure for others.",
)


def share_option(name: str, help: str) -> Callable[..., Any]:
    return click.option(name, type=FiniteRange(0, 1), default=0.0, metavar="SHARE", help=help)


@click.command(short_help="Send the readings of simulated homes.")
@click.argument("hub", default="sensors")
@homes_option(100_000, "Number of homes; five readings a minute each.")
@rate_option
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed of the simulated homes. The same seed gives the same readings.",
)
@click.option(
    "--minutes",
    type=FiniteRange(min=0, min_open=True),
    help="Minutes of readings; without it the command runs until Ctrl-C.",
)
@start_option("--minutes ago, or a day ago without --minutes")
@click.option(
    "--incidents",
    type=INCIDENTS_TYPE,
    default="few",
    show_default=True,
    metavar="none|few|many|KIND=RATE,…",
    help="Incidents per thousand homes and day: break-in, fire, forgotten-window, silent-sensor.",
)
@share_option(
    "--late", "Share of the readings that are sent some minutes late (0.01 is one in 100)."
)
@click.option(
    "--late-minutes",
    type=click.IntRange(1, 60),
    default=5,
    show_default=True,
    help="Maximum delay of late readings.",
)
@share_option("--duplicates", "Share of the readings that are sent twice.")
@share_option("--malformed", "Share of the readings with an invalid body.")
@share_option("--faults", "Share of the readings that report a sensor fault.")
@share_option("--low-battery", "Share of the sensors with a low battery.")
@click.option(
    "--traces",
    type=TRACES_TYPE,
    default="none",
    show_default=True,
    metavar="none|alarms|SHARE",
    help="Readings that begin a trace (property traceparent): those that may raise an alert, or a "
    "share of all.",
)
@click.option(
    "--share",
    type=SHARE_TYPE,
    default="1/1",
    metavar="K/N",
    help="Send part K of N; N producers with the same seed together send all homes.",
)
@kinds_option
@driver_option
@connection_option
@output_option
@verbose_option
def send(
    hub: str,
    homes: int,
    rate: Speed,
    seed: int,
    minutes: float | None,
    start_ms: int | None,
    incidents: Any,
    late: float,
    late_minutes: int,
    duplicates: float,
    malformed: float,
    faults: float,
    low_battery: float,
    traces: Any,
    share: tuple[int, int],
    kinds: Any,
    driver: str,
    connection: str | None,
    output: str,
) -> None:
    """Send the readings of simulated homes to HUB (`sensors`).

    Each home sends five readings a minute, and one more for each kind of sensor that the file of
    --kinds adds and simulates.

    Every reading depends only on the seed, its home and its minute: two runs with the same options,
    including --from, send the same bytes. Ctrl-C and SIGTERM stop it cleanly, with a summary.
    """
    from pumphouse.homes.kinds.defaults import DEFAULT
    from pumphouse.homes.simulator.reading_faults import ReadingFaults
    from pumphouse.homes.simulator.sensors import HomeSimulator
    from pumphouse.homes.simulator.time_slices import SimulatorSource, choose_slot_s

    reading_faults = ReadingFaults(late, duplicates, malformed, faults, low_battery, late_minutes)
    simulator = HomeSimulator(homes, seed, incidents, reading_faults, kinds or DEFAULT)
    span_ms = None if minutes is None else int(minutes * 60_000)
    start_ms = first_reading_ms(start_ms, rate.times, span_ms)
    end_ms = None if span_ms is None else start_ms + span_ms
    slot_s = choose_slot_s(homes, rate.times)
    source = SimulatorSource(simulator, start_ms, end_ms, slot_s, share, traces)
    total = None if minutes is None else round(homes * len(simulator.sensors) * minutes / share[1])
    send_source(connection, hub, driver, source, rate.times, total, output)


def first_reading_ms(start_ms: int | None, speed: float | None, span_ms: int | None) -> int:
    """The time of the first reading; by default now in real time.

    At another speed the default is `span_ms` ago, or a day ago if the readings have no end.
    """
    from pumphouse.clock import SystemClock, now_ms

    if start_ms is not None:
        return start_ms
    ago_ms = 0 if speed == 1.0 else int(DAY_S * 1000) if span_ms is None else span_ms
    return (now_ms(SystemClock()) - ago_ms) // 1000 * 1000


def send_source(
    connection: str | None,
    hub: str,
    driver: str,
    source: SliceSource,
    speed: float | None,
    total: int | None,
    output: str,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Send all events of a source with progress, and print the totals. `facts` are further keys of
    the JSON summary."""
    from pumphouse.cli.up import stop_on_signal
    from pumphouse.clock import SystemClock
    from pumphouse.homes.simulator import sender

    client = connect(need_connection(connection), hub, driver)

    async def run() -> SendTotals:
        with console.progress("sending", total, shown=True) as advance, stop_on_signal() as stop:
            async with client:
                return await sender.send(
                    client, source, speed, SystemClock(), stop, SendReporter(advance)
                )

    totals = asyncio.run(run())
    if output == "json":
        console.print_json({**summary(totals, source.homes), **(facts or {})})
    else:
        print(summary_text(totals, source.homes))


def connect(connection: str, hub: str, driver: str) -> HubClient:
    """A client that retries while the hub throttles, and fails at once if it is not running."""
    from pumphouse.cli.common.hub_connection import CONNECT_RETRY
    from pumphouse.client.base import RetryOptions
    from pumphouse.client.factory import open_client

    retry = RetryOptions(attempts=30, most_s=5.0)
    return open_client(
        connection, hub, driver=driver, ca_file=ca_file(), retry=retry, first_retry=CONNECT_RETRY
    )


class SendReporter:
    """Reports progress; prints a message when sending falls behind, and when it has caught up."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self.behind = False

    def __call__(self, progress: Progress) -> None:
        from pumphouse.homes.simulator.sender import BEHIND_S

        self.advance(progress.acknowledged)
        if not self.behind and progress.behind_s >= BEHIND_S:
            self.behind = True
            console.message(
                f"{progress.behind_s:.0f} s behind: the hub accepts fewer events than are due; "
                "they are sent as soon as the hub accepts them"
            )
        elif self.behind and progress.behind_s < BEHIND_S / 2:
            self.behind = False
            console.message("caught up")


def summary(totals: SendTotals, homes: int) -> dict[str, Any]:
    return {
        "sent": totals.sent,
        "homes": homes,
        "seconds": round(totals.seconds, 3),
        "late": totals.late,
        "duplicates": totals.duplicates,
        "malformed": totals.malformed,
        "behind_s_max": round(totals.behind_s_max, 3),
    }


def summary_text(totals: SendTotals, homes: int) -> str:
    rate = totals.sent / totals.seconds if totals.seconds else 0.0
    text = f"sent {console.plural(totals.sent, 'event')} of {console.plural(homes, 'home')} in "
    text += f"{totals.seconds:.1f} s ({rate:,.0f}/s)"
    faults = [(totals.late, "late"), (totals.duplicates, "twice"), (totals.malformed, "malformed")]
    text += "".join(f", {count:,} {fault}" for count, fault in faults if count)
    return text + (
        f", at most {totals.behind_s_max:.1f} s behind" if totals.behind_s_max >= 1 else ""
    )
