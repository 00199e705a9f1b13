"""The files in deploy/: their containers, and what our command line makes of their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from pumphouse.cli import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
YAML = sorted(DEPLOY.rglob("*.y*ml"))
CONFIG = DEPLOY / "kubernetes/files/config.json"
KEY = "a2V5"  # in the place of the secret


@dataclass(frozen=True, slots=True)
class Container:
    """A container of our image."""

    where: str
    image: str
    args: list[str]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    spec: Mapping[str, Any]
    pod: Mapping[str, Any]

    def parsed(self) -> dict[str, Any]:
        """The parameters of the command, by name."""
        return dict(parse([self._replaced(arg) for arg in self.args]).params)

    def _replaced(self, arg: str) -> str:
        """As the container gets it. The file of the hubs is mounted there."""
        if arg == "/etc/pumphouse/config.json":
            return str(CONFIG)
        return expanded(arg, self.env)


def repeated_keys(text: str) -> list[str]:
    """The keys that occur twice in a mapping. YAML forbids it; its loader uses the last value."""
    found: list[str] = []
    nodes = list(yaml.compose_all(text, yaml.SafeLoader))
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            found += sorted({key for key in keys if keys.count(key) > 1})
            nodes += [value for _, value in node.value]
    return found


def expanded(text: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], text)


def parse(args: list[str]) -> click.Context:
    """The context of the command with its parameters; click.UsageError if it is not accepted."""
    command: click.Command = main
    context, words = click.Context(main), list(args)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]}")
        command, words = found, words[1:]
    return command.make_context(command.name, words)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of Kubernetes, with its file."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def objects(kind: str) -> dict[str, dict[str, Any]]:
    """The objects of this kind, by name."""
    found = (document for _, document in documents() if document["kind"] == kind)
    return {document["metadata"]["name"]: document for document in found}


def pods() -> dict[str, dict[str, Any]]:
    """The templates of pods, by the name of their object."""
    found = (document for _, document in documents() if "template" in document.get("spec", {}))
    return {document["metadata"]["name"]: document["spec"]["template"] for document in found}


def kubernetes() -> dict[str, Container]:
    return {
        name: container_of(f"kubernetes {name}", spec, pod["spec"])
        for name, pod in pods().items()
        for spec in pod["spec"]["containers"]
    }


def container_of(where: str, spec: dict[str, Any], pod: dict[str, Any]) -> Container:
    env: dict[str, str] = {}
    for each in spec["env"]:
        env[each["name"]] = expanded(each.get("value", KEY), env)
    ports = {each["name"]: int(each["containerPort"]) for each in spec.get("ports", [])}
    return Container(where, spec["image"], spec["args"], env, ports, spec, pod)


def compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{PUMPHOUSE_KEY:\?[^}]*\}", KEY, text))
    return found


def composed() -> dict[str, Container]:
    """The services of compose.yaml that run our image."""
    return {
        name: Container(
            f"compose {name}", service["image"], service["command"], service["environment"], {},
            service, {},
        )
        for name, service in compose()["services"].items()
        if "command" in service
    }  # fmt: skip


def containers() -> list[Container]:
    return [*composed().values(), *kubernetes().values()]


def hubs() -> dict[str, dict[str, Any]]:
    """The hubs of config.json, by name."""
    entities = json.loads(CONFIG.read_text())["UserConfig"]["NamespaceConfig"][0]["Entities"]
    return {each["Name"]: each for each in entities}


def groups_of(hub: str) -> set[str]:
    return {each["Name"] for each in hubs()[hub]["ConsumerGroups"]}
