"""The fields of files in deploy/ that have no schema of Kubernetes: ScaledObject and compose.yaml.

Written down from KEDA's definition of the resource and from the Compose specification, as far as
the files use them. A field that is not here is an error: add it after a look at the specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# A dict is a mapping with these keys ("name!" must be there, "*" allows other keys), a list is a
# list of such items, a tuple is a choice, a range is an integer in it, and a str is this text.
Shape = Any

COUNT, TEXTS = range(2**31), {"*": str}

SCALED_OBJECT: Shape = {
    "apiVersion!": "keda.sh/v1alpha1",
    "kind!": "ScaledObject",
    "metadata!": {"name!": str, "namespace": str, "labels": TEXTS, "annotations": TEXTS},
    "spec!": {
        "scaleTargetRef!": {
            "name!": str,
            "apiVersion": str,
            "kind": str,
            "envSourceContainerName": str,
        },
        "minReplicaCount": COUNT,
        "maxReplicaCount": range(1, 2**31),
        "idleReplicaCount": COUNT,
        "pollingInterval": range(1, 2**31),
        "cooldownPeriod": COUNT,
        "initialCooldownPeriod": COUNT,
        "fallback": {"failureThreshold!": COUNT, "replicas!": COUNT},
        "triggers!": [
            {
                "type!": ("external", "external-push"),
                "name": str,
                "metadata!": TEXTS,  # KEDA accepts texts only
                "metricType": ("AverageValue", "Value", "Utilization"),
                "useCachedMetrics": bool,
            }
        ],
    },
}

SERVICE: Shape = {
    "image": str,
    "build": {"context!": str, "dockerfile": str},
    "command": [str],
    "environment": TEXTS,
    "ports": [str],
    "volumes": [str],
    "depends_on": ([str], {"*": {"condition!": ("service_started", "service_healthy")}}),
    "deploy": {"replicas": COUNT},
    "restart": ("no", "always", "on-failure", "unless-stopped"),
    "read_only": bool,
    "tmpfs": [str],
    "cap_drop": [str],
    "security_opt": [str],
    "stop_grace_period": str,
}
COMPOSE: Shape = {
    "name": str,
    "services!": {"*": SERVICE},
    "volumes": {"*": (None, {})},
    "x-pumphouse": SERVICE,  # an extension: Compose ignores it
    "x-consumer": TEXTS,
}


def problems(value: Any, shape: Shape, where: str = "") -> Iterator[str]:
    """What differs from a shape, with its place in the file."""
    if isinstance(shape, dict) and isinstance(value, dict):
        yield from problems_of_keys(value, shape, where)
    elif isinstance(shape, list) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from problems(item, shape[0], f"{where}[{number}]")
    elif isinstance(shape, tuple):
        found = [list(problems(value, each, where)) for each in shape]
        yield from [] if [] in found else max(found, key=lambda each: where_of(each[0]))
    elif not fits(value, shape):
        yield f"{where}: {value!r} is not {shape!r}"


def problems_of_keys(value: dict[str, Any], shape: Shape, where: str) -> Iterator[str]:
    known = {name.removesuffix("!"): each for name, each in shape.items()}
    for name, each in value.items():
        if name not in known and "*" not in known:
            yield f"{where}.{name}: unknown"
        else:
            yield from problems(each, known.get(name, known.get("*")), f"{where}.{name}")
    for name in shape:
        if name.endswith("!") and name[:-1] not in value:
            yield f"{where}.{name[:-1]}: missing"


def fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, range):
        return type(value) is int and value in shape
    if isinstance(shape, type):
        return type(value) is shape
    return not isinstance(shape, dict | list) and bool(value == shape)


def where_of(problem: str) -> int:
    """How deep it is: the choice that fits best has its problem deepest."""
    return len(problem.partition(":")[0])
