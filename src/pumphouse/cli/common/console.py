"""How the command line speaks: results on stdout, all else on stderr, errors in one sentence.

Exit codes: 0 done, 1 it could not be done, 2 the command was not understood, 3 it was done and what
it found is not well (`doctor`, `groups describe`), 130 Ctrl-C. A reader
that leaves early (`pumphouse tail ... | head`) is no error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from pumphouse.errors import OptionError, PumphouseError

FAILED, MISUSED, UNHEALTHY, INTERRUPTED = 1, 2, 3, 130
REPORT_EVERY_S = 5.0


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Turn what may well happen into a sentence and an exit code; bugs keep their traceback."""
    try:
        yield
    except click.UsageError as wrong:
        misused(wrong)
    except click.ClickException as failed:
        end(failed.exit_code, failed.format_message())
    except OptionError as wrong:
        end(MISUSED, str(wrong))
    except PumphouseError as failed:
        end(FAILED, str(failed))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def misused(wrong: click.UsageError) -> None:
    message, path = wrong.format_message(), wrong.ctx.command_path if wrong.ctx else "pumphouse"
    if message.startswith("Usage:"):  # a group was called without a command: click tells all of it
        say(message)
        sys.exit(MISUSED)
    end(MISUSED, f"{message.rstrip('.')} (see {path} --help)")


def end(code: int, message: str) -> None:
    say(f"pumphouse: {message}")
    sys.exit(code)


def say(text: str) -> None:
    """A word to the person, not to the next program."""
    print(text, file=sys.stderr, flush=True)


def hush() -> None:
    """Whoever read our output has left. Python would complain when it closes stdout: let it not."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def put(value: dict[str, Any]) -> None:
    """One JSON object on a line of its own, at once: a program waits for it."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they must be. Nothing is ever cut off."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def colour_wanted() -> bool:
    """Colours are for people at a terminal who did not ask to be spared them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def clear() -> None:
    """A clean screen for the next look; in a file or pipe one look follows the other."""
    if sys.stdout.isatty():
        print("\x1b[2J\x1b[H", end="")
    else:
        print()


def mark(word: str, *, bad: bool) -> str:
    """A verdict, red if it asks for a look. For the last column only: colours have no width."""
    return f"\x1b[31m{word}\x1b[0m" if bad and colour_wanted() else word


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress(what: str, total: int | None, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with each piece of work done; what is shown goes to stderr."""
    if shown and sys.stderr.isatty():
        with bar(what, total) as advance:
            yield advance
    else:
        yield lines(what)


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda amount: shown.advance(task, amount)


def lines(what: str) -> Callable[[int], None]:
    """A line every few seconds, for logs. Short work says nothing."""
    done, reported_at = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, reported_at
        done += amount
        if (now := time.monotonic()) - reported_at >= REPORT_EVERY_S:
            reported_at = now
            say(f"{what}: {plural(done, 'event')} so far")

    return advance
