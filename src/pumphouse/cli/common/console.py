"""Output of the command line: results on stdout, messages and errors on stderr.

Exit codes: 0 success, 1 failure, 2 invalid command line, 3 the command succeeded and found a
problem (`doctor`, `groups describe`), 130 Ctrl-C. A closed stdout (`pumphouse tail ... | head`) is
not an error.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.escapes import json_text, printable, printable_lines
from pumphouse.private_files import private_opener, replace_private

FAILED, MISUSED, UNHEALTHY, INTERRUPTED = 1, 2, 3, 130
REPORT_EVERY_S = 5.0
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Turn expected errors into one line and an exit code; a bug keeps its traceback."""
    try:
        yield
    except click.UsageError as error:
        exit_with_usage_error(error)
    except click.ClickException as error:
        exit_with(error.exit_code, error.format_message())
    except OptionError as error:
        exit_with(MISUSED, str(error))
    except PumphouseError as error:
        exit_with(FAILED, str(error))
    except OSError as error:
        discard_stdout()
        exit_with(FAILED, os_error_text(error))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def os_error_text(error: OSError) -> str:
    """What is wrong with which file; a write error without a file is one of stdout."""
    otherwise = "the output" if error.errno in WRITE_ERRORS else type(error).__name__
    return f"{error.filename or otherwise}: {error.strerror or error}"


def exit_with_usage_error(error: click.UsageError) -> None:
    text, path = error.format_message(), error.ctx.command_path if error.ctx else "pumphouse"
    if text.startswith("Usage:"):  # a group without a command: click's text is the whole help
        message(text)
        sys.exit(MISUSED)
    exit_with(MISUSED, f"{text.rstrip('.')} (see {path} --help)")


def exit_with(code: int, text: str) -> None:
    # A line break in the text of a peer must not look like a line of ours.
    message("pumphouse: " + text.replace("\n", "\n  "))
    sys.exit(code)


def message(text: str) -> None:
    """Print a message for people to stderr. Control characters are escaped."""
    print(printable_lines(text), file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """Print one line to stdout. Control characters are escaped."""
    print(printable(text), flush=True)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python does not fail when it closes a broken pipe."""
    with suppress(OSError):  # a stdout without a descriptor has no pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    """Open /dev/null for stdin, stdout and stderr if they are closed (`pumphouse ... >&-`).

    Otherwise the next file or connection gets their number, and output goes there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115 (for good)


def escape_what_stdout_cannot_encode() -> None:
    """On a stdout that is not UTF-8, write other characters as JSON's escapes, also in text."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("json-escapes", json_escapes)
        sys.stdout.reconfigure(errors="json-escapes")


def json_escapes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(json.dumps(character)[1:-1] for character in characters), error.end


def write_result(file: str, text: str) -> None:
    """Write a result to a file, or to stdout if it is `-`. A file gets all of it or nothing."""
    if file == "-":
        click.echo(text, nl=False)
        return
    path = Path(file)
    try:
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
            with open(path, "w", encoding="utf-8", opener=private_opener) as device:
                device.write(text)
        else:
            replace_private(path, text.encode())
    except OSError as error:
        raise PumphouseError(f"{file} cannot be written: {error.strerror}") from error


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line, and flush it for the program that reads it."""
    print(json_text(value), flush=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell. No cell is cut off; text is escaped."""
    shown = [
        [cell if isinstance(cell, Styled) else printable(cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(headers, *shown, strict=True)]
    for row in (headers, *shown):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def use_colour() -> bool:
    """True on a terminal unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def clear_screen() -> None:
    """Clear a terminal before the next table; print an empty line to a file or pipe."""
    if sys.stdout.isatty():
        print("\x1b[2J\x1b[H", end="")
    else:
        print()


class Styled(str):
    """A text of ours with escape codes, which are printed as they are."""

    __slots__ = ()


def highlight(word: str, *, bad: bool) -> str:
    """A word, red if it is bad. For the last column only: escape codes count as width."""
    return Styled(f"\x1b[31m{printable(word)}\x1b[0m") if bad and use_colour() else word


def number_text(value: int | None) -> str:
    """A number with thousands separators; a dash for an unknown value."""
    return "-" if value is None else f"{value:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress(title: str, total: int | None, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the amount of work just done and shows progress on stderr."""
    if shown and sys.stderr.isatty():
        with progress_bar(title, total) as advance:
            yield advance
    else:
        yield progress_lines(title)


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)


def progress_lines(title: str) -> Callable[[int], None]:
    """Print one line every few seconds, for log files. Short work prints nothing."""
    done, reported_at = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, reported_at
        done += amount
        if (now := time.monotonic()) - reported_at >= REPORT_EVERY_S:
            reported_at = now
            message(f"{title}: {plural(done, 'event')} so far")

    return advance
