"""`pumphouse homes replay`: sends recorded sensor data from a file for many homes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    PROPERTY_TYPE,
    ParsedType,
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
from pumphouse.errors import BadRecord, OptionError

if TYPE_CHECKING:
    from pumphouse.homes.simulator.recording import Recording

DELIMITERS = {"tab": "\t", "space": " "}
Pairs = tuple[tuple[str, str], ...]


def parse_delimiter(text: str) -> str:
    delimiter = DELIMITERS.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise OptionError(f"invalid delimiter {text!r}: use tab, space, or one character")
    return delimiter


@click.command(short_help="Send recorded sensor data from a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--hub", default="sensors", show_default=True, help="The hub to send to.")
@homes_option(1, "Number of homes that replay the file, each from a different day and minute.")
@rate_option
@start_option("a time at which the last reading has the current time")
@click.option(
    "--column",
    "columns",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=COLUMN",
    help="Column of the file that is the time, sensor, value, home, mode or battery: its name in "
    "the header, or its number from 1 in a file without a header. time=date+clock joins two "
    "columns; may be given several times.",
)
@click.option(
    "--sensor",
    "kinds",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=KIND",
    help="Kind of a sensor in the file: motion, door, window, glass, smoke, temperature or "
    "humidity. NAME may be a pattern such as M*; may be given several times.",
)
@click.option(
    "--delimiter",
    type=ParsedType("delimiter", parse_delimiter),
    default=",",
    show_default=True,
    metavar="CHAR",
    help="Separator of the columns of a CSV file: one character, tab, or space (one or more "
    "spaces or tabs).",
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
    columns: Pairs,
    kinds: Pairs,
    delimiter: str,
    driver: str,
    connection: str | None,
    output: str,
) -> None:
    """Send the sensor data in FILE, a CSV or Parquet file with time, sensor and value.

    The columns home, mode and battery are optional. Values are numbers, ON, OFF, OPEN or CLOSE. A
    time without a zone is UTC. Rows that are not understood are skipped, and reported with the
    reason. With --rate realtime the first reading has the current time. With another rate the last
    reading has the current time. --from selects another start.
    """
    from pumphouse.homes.simulator.replay import ReplaySource

    recording = read_file(file, columns, kinds, delimiter)
    report_skipped(recording)
    start_ms = first_reading_ms(start_ms, rate.times, recording.span_ms)
    slot_s = 60 if rate.times is None or rate.times >= 60 else 1
    source = ReplaySource(recording, homes, start_ms, slot_s)
    total = recording.readings(homes)
    facts = skipped_facts(recording)
    send_source(connection, hub, driver, source, rate.times, total, output, facts)


def read_file(file: str, columns: Pairs, kinds: Pairs, delimiter: str) -> Recording:
    from pumphouse.homes.simulator.recorded_files import read_parquet, read_recording
    from pumphouse.homes.simulator.recording import parse_columns

    column_map = parse_columns(columns)
    try:
        if file.lower().endswith((".parquet", ".pq")):
            return read_parquet(file, dict(kinds), column_map)
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as lines:
            return read_recording(lines, dict(kinds), column_map, delimiter)
    except BadRecord as error:
        raise click.ClickException(f"{file}, {error}") from None


def report_skipped(recording: Recording) -> None:
    from pumphouse.homes.simulator.recording import describe_skipped

    if recording.skipped:
        console.message(describe_skipped(recording.rows, recording.skipped))


def skipped_facts(recording: Recording) -> dict[str, Any]:
    """The rows that were not understood, for the JSON summary."""
    reasons = [
        {
            "column": each.column,
            "rows": each.rows,
            "first_lines": each.first,
            "examples": each.examples,
        }
        for each in recording.skipped
    ]
    return {"rows": recording.rows, "not_understood": reasons}
