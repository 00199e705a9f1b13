"""`pumphouse homes replay`: sends recorded sensor data from a CSV file for many homes."""

from __future__ import annotations

import click

from pumphouse.cli.common.options import (
    PROPERTY_TYPE,
    connection_option,
    output_option,
    verbose_option,
)
from pumphouse.cli.homes.send import (
    Speed,
    driver_option,
    first_reading_ms,
    homes_option,
    rate_option,
    send_source,
    start_option,
)
from pumphouse.errors import BadRecord


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--hub", default="sensors", show_default=True, help="The hub to send to.")
@homes_option(1, "Number of homes that replay the file, each from a different day and minute.")
@rate_option
@start_option("so that the last reading has the present time")
@click.option(
    "--sensor",
    "names",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=KIND",
    help="Kind of a sensor in the file: motion, door, window, glass, smoke, temperature or "
    "humidity; may be given several times.",
)
@driver_option
@connection_option
@output_option
@verbose_option
def replay(
    file: str,
    hub: str,
    homes: int,
    rate: Speed,
    start_ms: int | None,
    names: tuple[tuple[str, str], ...],
    driver: str,
    connection: str | None,
    output: str,
) -> None:
    """Send the sensor data in FILE, a CSV with the columns time, sensor and value.

    The columns home, mode and battery are optional. Values are numbers, ON, OFF, OPEN or CLOSE. A
    time without a zone is UTC. At --rate realtime the first reading is sent with the present time.
    At another rate the last reading has the present time. --from selects another start.
    """
    from pumphouse.homes.simulator.replay import ReplaySource, read_recording

    try:
        with open(file, encoding="utf-8", newline="") as lines:
            recording = read_recording(lines, dict(names))
    except BadRecord as error:
        raise click.ClickException(f"{file}, {error}") from None
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} is not UTF-8 text: {error.reason}") from None
    start_ms = first_reading_ms(start_ms, rate.times, recording.span_ms)
    slot_s = 60 if rate.times is None or rate.times >= 60 else 1
    source = ReplaySource(recording, homes, start_ms, slot_s)
    send_source(connection, hub, driver, source, rate.times, recording.readings(homes), output)
