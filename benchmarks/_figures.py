"""Figures: the results of a benchmark, and how it is run and printed.

A figure compares Pumphouse with a named peer. Both are measured several times in one run, in turns,
so that other work on the machine affects both; the result is the median. A benchmark is a function
that measures and returns figures; `run` gives it a command line.

    alternate -> compare -> Figure, Figure, ... -> a table or lines of JSON, and the exit status
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

EVENTS_PER_CPU_S = "events/cpu-s"
COLUMNS = ("figure", "ours", "peer", "unit", "ratio", "range", "goal", "met")
NUMBER_COLUMNS = ("ours", "peer", "ratio", "range", "goal")
METRICS_GOAL = 0.98  # metrics cost at most 2 %

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One comparison.

    With a peer, the goal is the ratio to reach. Without one, or if a number is zero, it is a limit
    for our own number: the least it may be, or the most where lower is better.
    """

    figure: str
    ours: float
    unit: str
    peer: float | None = None
    goal: float | None = None
    lower_is_better: bool = False
    rounds: int = 1
    low: float | None = None  # the ratio of the worst round
    high: float | None = None  # the ratio of the best round
    curve: str | None = None  # the curve of which this figure is a point
    at: float | None = None  # the position on the curve
    group: str | None = None  # the figures of a group have a table of their own

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer Pumphouse is; None if one of them is zero."""
        if self.peer is None or not self.ours or not self.peer:
            return None
        return times_better(self.ours, self.peer, self.lower_is_better)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        if self.ratio is not None:
            return self.ratio >= self.goal
        return self.ours <= self.goal if self.lower_is_better else self.ours >= self.goal

    def to_json(self) -> str:
        shown = {**asdict(self), "ratio": rounded(self.ratio), "met": self.met}
        first = ("figure", "ours", "peer", "unit", "ratio", "goal", "met")
        return json.dumps({key: shown.pop(key) for key in first} | shown)

    @classmethod
    def from_json(cls, line: str) -> Figure:
        fields: dict[str, Any] = json.loads(line)
        return cls(**{key: fields[key] for key in fields if key not in ("ratio", "met")})


def compare(
    figure: str,
    unit: str,
    ours: Sequence[float],
    peer: Sequence[float] = (),
    *,
    goal: float | None = None,
    lower_is_better: bool = False,
    summary: Callable[[Sequence[float]], float] = median,
) -> Figure:
    """The figure of all rounds: medians, and the range of the ratios."""
    pairs = zip(ours, peer, strict=bool(peer))
    ratios = [times_better(*pair, lower_is_better) for pair in pairs if all(pair)]
    return Figure(
        figure,
        shorten(summary(ours)),
        unit,
        peer=shorten(summary(peer)) if peer else None,
        goal=goal,
        lower_is_better=lower_is_better,
        rounds=len(ours),
        low=shorten(min(ratios)) if ratios else None,
        high=shorten(max(ratios)) if ratios else None,
    )


def times_better(ours: float, peer: float, lower_is_better: bool) -> float:
    over, under = (peer, ours) if lower_is_better else (ours, peer)
    return over / under


def shorten(number: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{number:.4g}")


def rounded(number: float | None) -> float | None:
    return None if number is None else shorten(number)


def alternate(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Run every side once per round, in turns, so that a busy minute affects all sides."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, side in sides.items():
            progress(f"round {number} of {rounds}: {name}")
            results[name].append(side())
    return results


def metrics_sides(measure: Callable[[bool], T]) -> dict[str, Callable[[], T]]:
    """With metrics, and twice without: how much the last two differ is the noise."""
    return {
        "with metrics": partial(measure, True),
        "without metrics": partial(measure, False),
        "without metrics again": partial(measure, False),
    }


def compare_metrics(figure: str, unit: str, costs: Iterable[Sequence[float]]) -> Iterator[Figure]:
    """The cost of metrics, and the noise of this comparison. `costs` are those of the sides.

    The cheapest round of each side counts: other work on the machine only adds to a cost.
    """
    with_metrics, without, again = costs
    yield compare(
        f"{figure} with metrics vs without", unit, with_metrics, without,
        goal=METRICS_GOAL, lower_is_better=True, summary=min,
    )  # fmt: skip
    yield compare(
        f"{figure} without metrics vs again without", unit, again, without,
        lower_is_better=True, summary=min,
    )  # fmt: skip


def progress(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# -- showing --------------------------------------------------------------------------------------


def cells(figure: Figure) -> dict[str, str]:
    """The texts of a figure's row, by column."""
    spread = "" if figure.low is None else f"{show(figure.low)}-{show(figure.high)}"
    bound = "at most " if figure.lower_is_better and figure.ratio is None else ""
    return {
        "figure": figure.figure,
        "ours": show(figure.ours),
        "peer": show(figure.peer),
        "unit": figure.unit,
        "ratio": show(figure.ratio),
        "range": spread,
        "goal": "" if figure.goal is None else f"{bound}{figure.goal:g}",
        "met": {None: "", True: "yes", False: "NO"}[figure.met],
    }


def show(number: float | None) -> str:
    """A number with three or four digits and thousands separators."""
    if number is None:
        return ""
    size = abs(number)
    if size >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if size < 10 else f"{number:.1f}"


def text_table(figures: Iterable[Figure]) -> str:
    rows = [dict(zip(COLUMNS, COLUMNS, strict=True)), *map(cells, figures)]
    widths = {column: max(len(row[column]) for row in rows) for column in COLUMNS}
    return "\n".join(
        "  ".join(
            row[column].rjust(width) if column in NUMBER_COLUMNS else row[column].ljust(width)
            for column, width in widths.items()
        ).rstrip()
        for row in rows
    )


def markdown_table(figures: Iterable[Figure]) -> str:
    ruler = ["--:" if column in NUMBER_COLUMNS else ":--" for column in COLUMNS]
    rows = [COLUMNS, ruler, *(cells(figure).values() for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# -- running --------------------------------------------------------------------------------------


Measure = Callable[[bool], Iterable[Figure]]
MeasureMetrics = Callable[[int], Iterable[Figure]]  # of the number of rounds
METRICS_ROUNDS = 20  # a cost of 2 % is less than the difference of two runs on a busy machine


def run(
    measure: Measure, argv: Sequence[str] | None = None, metrics: MeasureMetrics | None = None
) -> int:
    """The command line of a benchmark; the exit status is 0 only if every goal is met.

    `metrics` measures only the cost of metrics, for the option --metrics.
    """
    parser = command_line()
    if metrics is not None:
        parser.add_argument(
            "--metrics", metavar="ROUNDS", nargs="?", type=int, const=METRICS_ROUNDS,
            help=f"measure only the cost of metrics; {METRICS_ROUNDS} rounds without a number",
        )  # fmt: skip
    options = parser.parse_args(argv)
    if metrics is not None and options.metrics is not None:
        if options.metrics < 1:
            parser.error(f"--metrics needs at least 1 round (got {options.metrics})")
        return shown(list(metrics(options.metrics)), options.output)
    return shown(list(measure(options.quick)), options.output)


def run_parts(
    parts: Mapping[str, Measure], in_short: Sequence[str], argv: Sequence[str] | None = None
) -> int:
    """The command line of a benchmark with selectable parts of several minutes each."""
    parser = parts_command_line(parts, in_short)
    return run_selected(parts, in_short, parser, parser.parse_args(argv))


def parts_command_line(parts: Iterable[str], in_short: Sequence[str]) -> argparse.ArgumentParser:
    parser = command_line()
    text = f"some of {', '.join(parts)}; default: all, with --quick {', '.join(in_short)}"
    parser.add_argument("--parts", metavar="NAMES", help=text)
    return parser


def run_selected(
    parts: Mapping[str, Measure],
    in_short: Sequence[str],
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
) -> int:
    """Run the parts that the options of `parts_command_line` select."""
    names = options.parts.split(",") if options.parts else in_short if options.quick else parts
    if unknown := [name for name in names if name not in parts]:
        parser.error(f"unknown part {unknown[0]}: use {', '.join(parts)}")
    figures = []
    for figure in (figure for name in names for figure in parts[name](options.quick)):
        progress(f"{figure.figure}: {show(figure.ours)} {figure.unit}")
        figures.append(figure)
    return shown(figures, options.output)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, within 45 s")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def shown(figures: Sequence[Figure], output: str) -> int:
    lines = map(Figure.to_json, figures) if output == "json" else [text_table(figures)]
    print("\n".join(lines))
    return 0 if all(figure.met is not False for figure in figures) else 1
