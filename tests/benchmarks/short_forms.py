"""Runs the short form of a benchmark. What it prints can be read; its speed is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIELDS = {"figure", "ours", "peer", "unit", "ratio", "goal"}

NAMES = frozenset(file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py"))
WITH_SPARK = NAMES & {"homes", "spark_catch_up", "spark_sink", "spark_source", "tenancy"}


def run_short_form(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", "-o", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    # Status 1 with all figures printed is a missed goal, which a busy machine may well cause.
    assert done.returncode in (0, 1), done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert figures, done.stderr
    assert all(set(figure) >= FIELDS for figure in figures)
