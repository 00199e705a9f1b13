"""`pumphouse homes replay`: real sensor data, from a CSV file, on as many homes as are wanted."""

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
@homes_option(1, "How many homes send_source it, each from another day and minute of it.")
@rate_option
@start_option
@click.option(
    "--sensor",
    "names",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=KIND",
    help="What a sensor of the file is: motion, door, window, glass, smoke, temperature or "
    "humidity; may be given again.",
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

    It may have columns home, mode and battery as well. Values are numbers, or ON, OFF, OPEN, CLOSE;
    a time without a zone is UTC. The recording begins now, or at --from.
    """
    from pumphouse.homes.simulator.replay import ReplaySource, read_recording

    try:
        with open(file, encoding="utf-8", newline="") as lines:
            recording = read_recording(lines, dict(names))
    except BadRecord as wrong:
        raise click.ClickException(f"{file}, {wrong}") from None
    except UnicodeDecodeError as wrong:
        raise click.ClickException(f"{file} is not text in UTF-8: {wrong.reason}") from None
    start_ms = first_reading_ms(start_ms, rate.times, recording.span_ms)
    slot_s = 60 if rate.times is None or rate.times >= 60 else 1
    source = ReplaySource(recording, homes, start_ms, slot_s)
    send_source(connection, hub, driver, source, rate.times, recording.readings(homes), output)
