"""Writes docs/benchmarks.md from the results of a full run.

    python -m benchmarks._report FOLDER
    python -m benchmarks._report --join FOLDER   # the other sections of the page stay
    python -m benchmarks._report                 # only the texts: the figures on the page stay

The folder holds the output of `python -m benchmarks.NAME -o json` as NAME.json. A section consists
of the benchmark's docstring, pictures and a table. A benchmark without figures has failed.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import date
from html import escape
from pathlib import Path

from benchmarks import _curves
from benchmarks._figures import Figure, markdown_table, show, text_table
from benchmarks._machine import describe
from benchmarks._processes import ROOT

DOCS = ROOT / "docs"
PICTURES = "benchmarks"  # a folder beside the page
COMMAND = r"^`python -m benchmarks\.(\w+)`$"

INTRODUCTION = """\
# Benchmarks

`make bench` writes this page; do not edit it. Each figure compares Pumphouse with a peer that is
measured in the same run. The numbers are medians of all rounds. *Ratio* is how many times better
Pumphouse is than the peer; below 1 the peer is better. *Range* contains the ratios of the worst and
the best round. If a figure has no peer, its goal applies to the number itself. Most costs are CPU
seconds of the measured process, so other work on the machine has little influence. In the pictures
a bar is a ratio, and a vertical line is its goal: green is met, red is missed, grey has no goal.
"""

BAR_HEIGHT, GAP, LABEL_HEIGHT, WIDTH, MARGIN = 14, 12, 16, 720, 16
GOOD, MISSED, NEUTRAL, INK = "#2f7d5b", "#c0392b", "#7f8c8d", "#2c3e50"


def page(results: dict[str, list[Figure]], today: date) -> str:
    """The whole page."""
    machine = "\n".join(f"| {name} | {value} |" for name, value in describe().items())
    parts = [INTRODUCTION, f"Measured on {today.isoformat()}:\n\n| | |\n|:--|:--|\n{machine}\n"]
    parts += [section(name, figures) for name, figures in results.items()]
    return "\n".join(parts)


def section(name: str, figures: Sequence[Figure]) -> str:
    title, prose = explanation(name)
    if not figures:
        return f"## {title}\n\nThis benchmark failed.\n"
    lines = [f"## {title}", "", prose, "", f"`python -m benchmarks.{name}`", ""]
    if any(figure.ratio is not None for figure in figures):
        lines += [f"![Ratios of {name}]({PICTURES}/{name}.svg)", ""]
    if _curves.by_curve(figures):
        lines += [f"![Curves of {name}]({PICTURES}/{name}-curves.svg)", ""]
    return "\n".join([*lines, *tables(figures), ""])


def tables(figures: Sequence[Figure]) -> list[str]:
    """A table, or one below its title for each group."""
    groups: dict[str | None, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.group, []).append(figure)
    lines: list[str] = []
    for group, members in groups.items():
        lines += ["", f"### {group}", ""] if group is not None else []
        lines.append(markdown_table(members))
    return lines[1:] if lines[0] == "" else lines


def explanation(name: str) -> tuple[str, str]:
    """Title and text from a benchmark's docstring, without importing it."""
    source = (ROOT / "benchmarks" / f"{name}.py").read_text()
    title, _, prose = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    return title.strip(), prose.strip()


# -- pictures -------------------------------------------------------------------------------------


def picture(figures: Sequence[Figure]) -> str:
    """A bar for each ratio, and a mark where its goal is.

    Groups of figures are many: then only those with a goal are drawn.
    """
    shown = [
        figure
        for figure in figures
        if figure.ratio is not None and (figure.group is None or figure.goal is not None)
    ]
    largest = max(max(figure.ratio or 0, figure.goal or 0) for figure in shown)
    scale = (WIDTH - 2 * MARGIN - 60) / largest  # 60: the number behind the longest bar
    row = LABEL_HEIGHT + BAR_HEIGHT + GAP
    height = 2 * MARGIN + row * len(shown) - GAP
    bars = [bar(figure, MARGIN + row * number, scale) for number, figure in enumerate(shown)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
            *bars,
            "</svg>",
            "",
        ]
    )


def bar(figure: Figure, top: int, scale: float) -> str:
    ratio = figure.ratio or 0
    colour = {True: GOOD, False: MISSED, None: NEUTRAL}[figure.met]
    length, below = ratio * scale, top + LABEL_HEIGHT
    drawn = [
        f'<text x="{MARGIN}" y="{top + 11}">{escape(figure.figure)}</text>',
        f'<rect x="{MARGIN}" y="{below}" width="{length:.1f}" height="{BAR_HEIGHT}" '
        f'fill="{colour}"/>',
        f'<text x="{MARGIN + length + 6:.1f}" y="{below + 11}">{show(ratio)}x</text>',
    ]
    if figure.goal is not None:
        at = MARGIN + figure.goal * scale
        drawn.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{below - 3}" y2="{below + BAR_HEIGHT + 3}" '
            f'stroke="{INK}" stroke-width="2"><title>goal {figure.goal:g}x</title></line>'
        )
    return "\n".join(drawn)


# -- files ----------------------------------------------------------------------------------------


def read_results(folder: Path) -> dict[str, list[Figure]]:
    """The figures of every benchmark that was run, by name."""
    return {
        file.stem: [Figure.from_json(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("*.json"))
    }


def write(results: dict[str, list[Figure]], docs: Path) -> None:
    (docs / PICTURES).mkdir(parents=True, exist_ok=True)
    (docs / "benchmarks.md").write_text(page(results, date.today()))
    draw(results, docs)


def join(results: dict[str, list[Figure]], docs: Path) -> None:
    """Add sections to the page, or replace them."""
    page_now = (docs / "benchmarks.md").read_text()
    text = joined(page_now, results, date.today(), os.getloadavg()[2])
    (docs / "benchmarks.md").write_text(text)
    draw(results, docs)


def joined(page: str, results: dict[str, list[Figure]], today: date, load: float) -> str:
    """The page with new sections, in the order of their names.

    Each has its own date, and the load of the machine: it may have done other work.
    """
    introduction, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    kept = {name_of(text): text.rstrip("\n") + "\n" for text in sections}
    for name, figures in results.items():
        command = f"`python -m benchmarks.{name}`\n"
        when = f"Measured on {today.isoformat()}, at the end with a load average of {load:.0f}."
        dated = f"{command}\n{when}\n"
        kept[name] = section(name, figures).replace(command, dated)
    return "\n".join([introduction.rstrip("\n") + "\n", *(kept[name] for name in sorted(kept))])


def name_of(text: str) -> str:
    """The benchmark of a section; its title if it has failed."""
    command = re.search(COMMAND, text, re.MULTILINE)
    return command[1] if command else text.partition("\n")[0]


def draw(results: dict[str, list[Figure]], docs: Path) -> None:
    (docs / PICTURES).mkdir(parents=True, exist_ok=True)
    for name, figures in results.items():
        if any(figure.ratio is not None for figure in figures):
            (docs / PICTURES / f"{name}.svg").write_text(picture(figures))
        if _curves.by_curve(figures):
            (docs / PICTURES / f"{name}-curves.svg").write_text(_curves.picture(figures))


def with_current_texts(page: str) -> str:
    """The page with its introduction and sections as the docstrings are now, and its figures."""
    introduction, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    measured = introduction[introduction.index("Measured on ") :]
    return "\n".join([INTRODUCTION, measured]) + "".join(map(section_with_current_text, sections))


def section_with_current_text(text: str) -> str:
    command = re.search(COMMAND, text, re.MULTILINE)
    if command is None:  # the benchmark failed
        return text
    title, prose = explanation(command[1])
    return f"## {title}\n\n{prose}\n\n{text[command.start() :]}"


def main(folder: Path, save: Callable[[dict[str, list[Figure]], Path], None]) -> None:
    results = read_results(folder)
    save(results, DOCS)
    for name, figures in results.items():
        print(f"\n{name}\n{text_table(figures)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--join"]:
        main(Path(sys.argv[2]), join)
    elif sys.argv[1:]:
        main(Path(sys.argv[1]), write)
    else:
        texts = with_current_texts((DOCS / "benchmarks.md").read_text())
        (DOCS / "benchmarks.md").write_text(texts)
