"""compose.yaml and the manifests: commands, ports, probes and names agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pumphouse.cli.common.options import parse_duration
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.homes.pipeline import STOP_S
from pumphouse.homes.schema import GROUPS, HUBS
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.scaler.decisions import trigger_of
from tests.deploy.manifests import (
    CONFIG,
    DEPLOY,
    ROOT,
    YAML,
    Container,
    compose,
    composed,
    containers,
    documents,
    groups_of,
    hubs,
    kubernetes,
    objects,
    parse,
    pods,
    repeated_keys,
)
from tests.lag.prometheus_server import promtool

# Variables for Kubernetes and for the HEALTHCHECK of the image, besides those of options.
OWN_VARIABLES = {"POD_NAME", "PUMPHOUSE_KEY", "HEALTH_PORT", "HEALTH_PAGE"}
RELEASE_S = 10  # for checkpoints and leases, after the handlers have ended
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def each(values: list[Container]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("container", values, ids=lambda one: one.where)


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_file_is_valid_yaml(path: Path) -> None:
    assert all(isinstance(one, dict) for one in yaml.safe_load_all(path.read_text()))
    assert repeated_keys(path.read_text()) == []


def test_a_key_that_occurs_twice_is_noticed() -> None:
    assert repeated_keys("spec: [{image: a, args: [up], image: b}]") == ["image"]


@each(containers())
def test_the_command_line_accepts_the_arguments(container: Container) -> None:
    assert container.parsed()


def test_a_wrong_argument_is_noticed() -> None:
    with pytest.raises(click.UsageError, match="--metrics-prot"):
        parse(["up", "--metrics-prot", "9464"])


@each(containers())
def test_variables_are_those_of_options(container: Container) -> None:
    args = [str(CONFIG) if arg.endswith("config.json") else arg for arg in container.args]
    options = parse(args).command.params
    known = {name for one in options for name in names_of(one.envvar)} | OWN_VARIABLES
    assert set(container.env) <= known


def names_of(envvar: Any) -> list[str]:
    return [envvar] if isinstance(envvar, str) else list(envvar or ())


@each([one for one in containers() if "EVENT_HUB_CONN_STR" in one.env])
def test_connection_strings_name_the_hub(container: Container) -> None:
    address = parse_connection_string(container.env["EVENT_HUB_CONN_STR"])
    same = composed() if container.where.startswith("compose") else kubernetes()
    assert address.authority == f"hub:{same['hub'].parsed()['port']}"
    command = container.args[0]
    if command == "homes":
        assert not address.hub
        return
    assert address.hub in hubs()
    if command == "process":
        assert container.parsed()["group"] in groups_of(address.hub)


@each(list(kubernetes().values()))
def test_ports_and_probes_are_those_of_the_command(container: Container) -> None:
    served = container.parsed()
    if container.ports and container.args[0] not in ("process", "homes"):
        assert served["host"] == "0.0.0.0"
    if "metrics_port" in served:
        assert served["metrics_host"] == "0.0.0.0"
        assert container.ports["metrics"] == served["metrics_port"]
    own = {"up": "amqp", "lag-exporter": "metrics", "scaler": "grpc"}.get(container.args[0])
    if own is not None:
        assert container.ports[own] == served["port"]
    for probe in (container.spec[name] for name in PROBES if name in container.spec):
        (action,) = (probe[name] for name in ("httpGet", "tcpSocket") if name in probe)
        assert action["port"] in container.ports
        assert action.get("path", "/livez") in ("/livez", "/readyz")
        assert ("path" in action) == (action["port"] == "metrics")


def test_services_lead_to_ports_of_pods() -> None:
    for name, service in objects("Service").items():
        labels = service["spec"]["selector"]
        (pod,) = [key for key, one in pods().items() if one["metadata"]["labels"] == labels]
        ports = kubernetes()[pod].ports
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"], name


def test_selectors_select_their_own_pods() -> None:
    for _, document in documents():
        if "selector" in document.get("spec", {}) and "template" in document["spec"]:
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"] == labels


def test_mounts_have_volumes() -> None:
    for name, container in kubernetes().items():
        volumes = {one["name"] for one in container.pod.get("volumes", [])}
        claims = (
            objects("StatefulSet").get(name, {}).get("spec", {}).get("volumeClaimTemplates", [])
        )
        volumes |= {one["metadata"]["name"] for one in claims}
        mounts = container.spec.get("volumeMounts", [])
        assert {one["name"] for one in mounts} == volumes
        data = container.parsed().get("data")
        assert data is None or str(data) in {one["mountPath"] for one in mounts}


def test_config_maps_are_generated_from_files() -> None:
    folder = DEPLOY / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert all((folder / name).is_file() for name in kustomization["resources"])
    generated = {one["name"]: one["files"] for one in kustomization["configMapGenerator"]}
    assert all((folder / file).is_file() for files in generated.values() for file in files)
    volumes = [one for pod in pods().values() for one in pod["spec"].get("volumes", [])]
    assert {one["configMap"]["name"] for one in volumes if "configMap" in one} == set(generated)


def test_the_scaled_object_agrees_with_scaler_processor_and_hub() -> None:
    (scaled,) = objects("ScaledObject").values()
    spec, (trigger,) = scaled["spec"], scaled["spec"]["triggers"]
    processor = kubernetes()[spec["scaleTargetRef"]["name"]]
    assert spec["scaleTargetRef"]["name"] in objects("Deployment")
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert trigger_of(trigger["metadata"]).group == processor.parsed()["group"]
    hub = parse_connection_string(processor.env["EVENT_HUB_CONN_STR"]).hub
    assert hub == parse_connection_string(kubernetes()["scaler"].env["EVENT_HUB_CONN_STR"]).hub
    assert spec["maxReplicaCount"] == hubs()[hub]["PartitionCount"]
    namespace = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["namespace"]
    port = kubernetes()["scaler"].ports["grpc"]
    assert trigger["metadata"]["scalerAddress"] == f"scaler.{namespace}.svc:{port}"
    assert "replicas" not in objects("Deployment")["processor"]["spec"]
    assert spec["fallback"]["replicas"] >= 1


def test_a_host_has_the_name_of_its_pod() -> None:
    processor = kubernetes()["processor"]
    assert "$(POD_NAME)" in processor.args
    (variable,) = [one for one in processor.spec["env"] if one["name"] == "POD_NAME"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_a_host_has_time_to_stop() -> None:
    grace_s = kubernetes()["processor"].pod["terminationGracePeriodSeconds"]
    assert grace_s >= kubernetes()["processor"].parsed()["stop_timeout"] + RELEASE_S
    assert kubernetes()["homes"].pod["terminationGracePeriodSeconds"] >= STOP_S + RELEASE_S
    service = composed()["processor"]
    grace_s = parse_duration(service.spec["stop_grace_period"])
    assert grace_s >= service.parsed()["stop_timeout"] + RELEASE_S


@each(list(kubernetes().values()))
def test_a_pod_has_few_rights(container: Container) -> None:
    assert container.pod["automountServiceAccountToken"] is False
    user = container.pod["securityContext"]
    assert user["runAsNonRoot"]
    assert f"USER {user['runAsUser']}\n" in (DEPLOY / "Dockerfile").read_text()
    rights = container.spec["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container.spec["resources"]["limits"]


def test_the_homes_find_their_hubs_and_groups() -> None:
    assert set(HUBS) <= set(hubs())
    assert all(groups_of(hub) == set(GROUPS) for hub in HUBS)
    with EmbeddedHub(config=CONFIG) as hub:
        assert hub.hubs == {name: one["PartitionCount"] for name, one in hubs().items()}


def test_the_spark_job_submits_our_command_line() -> None:
    homes = kubernetes()["homes"]
    program, *_, script = homes.spec["command"]
    assert program == "spark-submit"
    package = script.removeprefix("/opt/pumphouse/lib/python3.12/site-packages/")
    assert (ROOT / "src" / package).is_file()


def test_compose_publishes_ports_of_this_machine_only() -> None:
    services = compose()["services"]
    ports = [port for one in services.values() for port in one.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_files_that_compose_mounts_exist_and_volumes_are_declared() -> None:
    for service in compose()["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            exists = (DEPLOY / source).exists()
            assert exists if source.startswith("./") else source in compose()["volumes"]


def test_health_checks_of_compose_ask_the_port_of_the_command() -> None:
    (default,) = re.findall(r"HEALTH_PORT=(\d+)", (DEPLOY / "Dockerfile").read_text())
    for container in composed().values():
        params = container.parsed()
        port = params["metrics_port"] if "metrics_port" in params else params["port"]
        assert container.env.get("HEALTH_PORT", default) == str(port)


def test_prometheus_scrapes_the_ports_of_the_commands() -> None:
    path = DEPLOY / "prometheus.yml"
    jobs = {one["job_name"]: one for one in yaml.safe_load(path.read_text())["scrape_configs"]}
    params = {name: one.parsed() for name, one in composed().items()}
    assert set(jobs) == set(params)
    for name in ("hub", "lag-exporter"):
        port = params[name].get("metrics_port") or params[name]["port"]
        assert jobs[name]["static_configs"] == [{"targets": [f"{name}:{port}"]}]
    (found,) = jobs["processor"]["dns_sd_configs"]
    assert found == {
        "names": ["processor"], "type": "A", "port": params["processor"]["metrics_port"],
    }  # fmt: skip
    checked = promtool("check", "config", str(path))
    assert checked.returncode == 0, checked.stderr
