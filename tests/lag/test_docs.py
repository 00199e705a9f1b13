"""docs/observability.md: its tables are those of the definitions, its configuration is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pumphouse.lag.exporter import OBSERVED
from pumphouse.telemetry import definitions
from pumphouse.telemetry.definitions import COUNTER, METRICS, POLL_FAILURES, POLL_SECONDS, Metric
from pumphouse.telemetry.prometheus import metric_name, name_of
from tests.deploy.boards import metrics_of
from tests.lag.prometheus_server import promtool

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()

# Heading -> the metrics below it. Add the section of a part when the part records its metrics.
SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Consumer groups": (*OBSERVED, POLL_FAILURES, POLL_SECONDS),
    "Clients": (
        definitions.OPERATION_DURATION,
        definitions.SENT_MESSAGES,
        definitions.CONSUMED_MESSAGES,
        definitions.PROCESS_DURATION,
    ),
    "Processors": tuple(
        metric for name, metric in METRICS.items() if name.startswith("pumphouse.processor.")
    ),
    "Hub": tuple(metric for name, metric in METRICS.items() if name.startswith("pumphouse.hub.")),
    "Streaming queries": tuple(
        metric for name, metric in METRICS.items() if name.startswith("pumphouse.spark.")
    ),
    "Homes": tuple(metric for name, metric in METRICS.items() if name.startswith("homes.")),
}


def row(metric: Metric) -> str:
    name = metric_name(metric) + ("_total" if metric.kind == COUNTER else "")
    labels = " ".join(f"`{name_of(label)}`" for label in metric.labels) or "-"
    return f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} |"


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_table_of_a_section(heading: str) -> None:
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(metric) for metric in SECTIONS[heading]]


def test_every_metric_is_documented() -> None:
    documented = [metric.name for metrics in SECTIONS.values() for metric in metrics]
    assert sorted(documented) == sorted(METRICS)


def test_every_table_has_a_section_here() -> None:
    metrics = PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    sections = (section.partition("\n") for section in metrics.split("\n### ")[1:])
    assert [name for name, _, text in sections if "\n| metric |" in text] == list(SECTIONS)


def test_alerts_read_metrics_that_exist() -> None:
    rules = re.findall(r"^ +expr: (.+)$", PAGE, re.MULTILINE)
    assert len(rules) == 2
    for query in (*rules, *re.findall(r"`(\w+\(eventhub_.+\) > 0)`", PAGE)):
        assert metrics_of(query), query
    with pytest.raises(KeyError, match="eventhub_consumergroup_state"):
        metrics_of("eventhub_consumergroup_state >= 3")


def test_the_configuration_and_the_alerts_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["demo.yml", "prometheus.yml", "alerts.yml"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    # It also checks the alerts, which the second configuration includes.
    for name in ("demo.yml", "prometheus.yml"):
        checked = promtool("check", "config", str(tmp_path / name))
        assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rules found" in checked.stdout
