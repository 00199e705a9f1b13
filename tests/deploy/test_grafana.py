"""deploy/grafana: the boards are strict JSON, show metrics that exist, and are provisioned.

tests/cli/demo runs every query against a Prometheus that scrapes a demonstration.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from math import nan
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from pumphouse.telemetry.definitions import METRICS
from pumphouse.telemetry.prometheus import name_of
from tests.deploy.boards import (
    FILES,
    FOLDER,
    metrics_of,
    panels,
    queries,
    query_of,
    read_board,
)
from tests.deploy.manifests import DEPLOY, compose
from tests.lag.prometheus_server import Prometheus, promtool

BY = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")
OF_PROMETHEUS = {"le", "job", "instance", "process"}  # `process` is a label of the demo's list
NOT_ON_A_BOARD = {
    # Part of the sums, maxima and statuses that the boards show.
    "eventhub_consumergroup_group_lag_seconds",
    "eventhub_consumergroup_group_max_lag",
    "eventhub_consumergroup_group_offset",
    "eventhub_partition_earliest_offset",
    "eventhub_partition_latest_offset",
    "eventhub_consumergroup_poll",
    # Of applications that send; the hub counts what it receives.
    "messaging.client.sent.messages",
}

Expected = list[tuple[str, float]]  # labels and value of each series


def test_there_are_two_boards() -> None:
    assert [path.stem for path in FILES] == ["fleet", "homes"]
    boards = [read_board(path) for path in FILES]
    assert len({board["uid"] for board in boards}) == 2
    assert all(board["title"] and board["description"] for board in boards)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_their_own_ids_and_places(path: Path) -> None:
    found = read_board(path)["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    cells: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        rows = range(place["y"], place["y"] + place["h"])
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in rows}
        assert not cells & own, panel["title"]
        cells |= own


def test_every_panel_says_what_it_shows_and_uses_the_chosen_data_source() -> None:
    for board, panel in panels():
        assert panel["title"], board
        assert panel["description"].endswith("."), panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_reads_defined_metrics_and_labels(where: str, query: str) -> None:
    metrics = metrics_of(query)
    assert metrics or query == "up"
    labels = {name_of(label) for metric in metrics for label in metric.labels} | OF_PROMETHEUS
    used = {name.strip() for names in BY.findall(query) for name in names.split(",")}
    assert used <= labels, where


def test_legends_name_labels_of_the_query() -> None:
    for _, panel in panels():
        for target in panel["targets"]:
            grouped = {
                name.strip() for names in BY.findall(target["expr"]) for name in names.split(",")
            }
            used = set(LEGEND.findall(target["legendFormat"]))
            labels = {
                name_of(one) for metric in metrics_of(target["expr"]) for one in metric.labels
            }
            assert used <= ((grouped - {"le"}) or labels | OF_PROMETHEUS), target


def test_promtool_accepts_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:query:{number}", "expr": query}
        for number, (_, query) in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}))
    checked = promtool("check", "rules", "--lint=none", str(file))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def test_the_boards_show_every_other_metric() -> None:
    shown = {metric.name for _, query in queries() for metric in metrics_of(query)}
    assert METRICS.keys() - shown == NOT_ON_A_BOARD


def test_no_query_replaces_a_missing_exporter_by_a_number() -> None:
    assert [query for _, query in queries() if re.search(r"\b(vector|absent)\b", query)] == []


WATERMARK = "pumphouse_spark_watermark_delay_seconds"
HUB_UP = {'pumphouse_hub_throttled_total{hub="orders"}': "0+0x20"}


@pytest.mark.parametrize(
    ("title", "series", "expected"),
    [
        ("Refused and throttled", {}, []),
        ("Refused and throttled", HUB_UP, [("{}", 0)]),
        (
            "Refused and throttled",
            HUB_UP | {'pumphouse_hub_rejected_sends_total{hub="orders"}': "0+30x20"},
            [("{}", 2)],
        ),
        (
            "Sync to disk, 99 %",
            {
                'pumphouse_hub_sync_seconds_bucket{le="0.1"}': "0+0x20",
                'pumphouse_hub_sync_seconds_bucket{le="0.2"}': "0+100x20",
                'pumphouse_hub_sync_seconds_bucket{le="+Inf"}': "0+100x20",
            },
            [("{}", 0.199)],
        ),
        (
            "Watermark",
            {f'{WATERMARK}{{query="{n}"}}': f"{n}+0x20" for n in (7, 9)},
            [('{query="7"}', 7), ('{query="9"}', 9)],
        ),
    ],
)
def test_the_values_of_a_query(
    tmp_path: Path, title: str, series: dict[str, str], expected: Expected
) -> None:
    """Of queries that have no series, or no value, in the demonstration."""
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": query_of("fleet", title),
                "eval_time": "5m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [test]}))
    checked = promtool("test", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("values", "found"), [([], False), ([nan], False), ([nan, 0.0], True)])
def test_a_query_that_finds_only_nan_finds_no_value(
    tmp_path: Path, values: list[float], found: bool
) -> None:
    """In the test of the demonstration, which asks every query of the boards."""
    prometheus = Prometheus(tmp_path, [], limit_s=0.0)
    answers: list[tuple[dict[str, str], float]] = [({}, value) for value in values]
    outcome = nullcontext() if found else pytest.raises(AssertionError, match="no values")
    with patch.object(prometheus, "ask", lambda query: answers), outcome:
        prometheus.until_series("up")


def test_an_unknown_metric_is_noticed() -> None:
    with pytest.raises(KeyError, match="homes_reading_total"):
        metrics_of('sum by (kind) (rate(homes_reading_total{kind="door"}[30s]))')


def test_grafana_finds_boards_and_prometheus() -> None:
    services = compose()["services"]
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    folder = "provisioning/dashboards/pumphouse.yaml"
    (provider,) = yaml.safe_load((FOLDER / folder).read_text())["providers"]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())
    (found,) = source["datasources"]
    assert found["url"] == "http://prometheus:9090"
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert found["jsonData"]["timeInterval"] == scraped
