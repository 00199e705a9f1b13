"""The boards in deploy/grafana, and the PromQL of their panels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pumphouse.telemetry.definitions import COUNTER, HISTOGRAM, METRICS, Metric
from pumphouse.telemetry.prometheus import metric_name

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
FILES = sorted((FOLDER / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(?:homes|pumphouse|eventhub|messaging)_\w+(?=[\[{\s)]|$)")


def read_board(path: Path) -> dict[str, Any]:
    """The board in a file, which must be strict JSON without duplicate keys."""
    board: dict[str, Any] = json.loads(
        path.read_text(), object_pairs_hook=without_duplicates, parse_constant=not_json
    )
    return board


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), keys
    return dict(pairs)


def not_json(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """The panels that show something, with the name of their board."""
    for path in FILES:
        for panel in read_board(path)["panels"]:
            if panel["type"] != "row":
                yield path.stem, panel


def queries() -> list[tuple[str, str]]:
    """Where it is, and PromQL without Grafana's variables."""
    return [
        (f"{board}: {panel['title']}", target["expr"].replace("$__rate_interval", "30s"))
        for board, panel in panels()
        for target in panel["targets"]
    ]


def query_of(board: str, title: str) -> str:
    """The first query of a panel."""
    return next(query for where, query in queries() if where == f"{board}: {title}")


def metrics_of(query: str) -> list[Metric]:
    """The definitions of the metrics that a query reads; KeyError for an unknown name."""
    names = names_of_samples()
    without_labels = re.sub(r"\bby \([^)]*\)", "", query)
    return [names[name] for name in NAME.findall(without_labels)]


def names_of_samples() -> dict[str, Metric]:
    """The metric of each name that a query may read."""
    suffixes = {COUNTER: ("_total",), HISTOGRAM: ("_bucket", "_sum", "_count")}
    return {
        metric_name(metric) + suffix: metric
        for metric in METRICS.values()
        for suffix in suffixes.get(metric.kind, ("",))
    }
