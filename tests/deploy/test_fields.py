"""compose.yaml and the ScaledObject have known fields, and Prometheus finds the pods."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

from tests.deploy.manifests import ROOT, compose, kubernetes, objects, pods
from tests.deploy.shapes import COMPOSE, SCALED_OBJECT, problems
from tests.lag.prometheus_server import promtool


def test_the_scaled_object_and_compose_have_the_specified_fields() -> None:
    """`make check-deploy` validates the objects of Kubernetes; it has no schema of these two."""
    (scaled,) = objects("ScaledObject").values()
    assert list(problems(scaled, SCALED_OBJECT)) == []
    assert list(problems(compose(), COMPOSE)) == []


def test_a_field_that_is_wrong_is_noticed() -> None:
    (scaled,) = objects("ScaledObject").values()
    wrong = deepcopy(scaled)
    del wrong["spec"]["fallback"]["replicas"]
    wrong["spec"] |= {"maxReplicas": 8, "pollingInterval": 0}
    wrong["spec"]["triggers"][0]["metadata"]["lagThreshold"] = 1000
    assert sorted(problems(wrong, SCALED_OBJECT)) == [
        ".spec.fallback.replicas: missing",
        ".spec.maxReplicas: unknown",
        ".spec.pollingInterval: 0 is not range(1, 2147483648)",
        ".spec.triggers[0].metadata.lagThreshold: 1000 is not <class 'str'>",
    ]
    service = {"image": "a", "depends_on": {"hub": {"condition": "healthy"}}, "commands": ["up"]}
    assert list(problems({"services": {"hub": service}}, COMPOSE)) == [
        ".services.hub.depends_on.hub.condition: 'healthy' is not 'service_started'",
        ".services.hub.commands: unknown",
    ]


def test_prometheus_finds_the_pods_that_serve_metrics() -> None:
    for name, container in kubernetes().items():
        found = pods()[name]["metadata"].get("annotations", {})
        expected = {}
        if "metrics" in container.ports:
            port = str(container.ports["metrics"])
            expected = {"prometheus.io/scrape": "true", "prometheus.io/port": port}
        assert found == expected, name


def test_the_documented_scrape_of_pods_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (text,) = re.findall(r"^```yaml\n(# prometheus\.yml\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    # Debian's Prometheus does not know Kubernetes; it checks the rest.
    rest = re.sub(
        r"kubernetes_sd_configs:\n.*\n.*\n", "static_configs: [{targets: ['a:1']}]\n", text
    )
    assert rest.count("\n") == text.count("\n") - 2
    (tmp_path / "prometheus.yml").write_text(rest)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
