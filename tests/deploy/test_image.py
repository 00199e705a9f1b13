"""The Dockerfile as text, its health check as a program, images and secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from pumphouse.telemetry import serve_health
from pumphouse.telemetry.health import HealthChecks
from pumphouse.telemetry.server import TelemetryServer
from tests.deploy.dockerfile import DOCKERFILE, build_steps, instructions, of
from tests.deploy.manifests import DEPLOY, ROOT, containers
from tests.lag.prometheus_server import free_port

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs/deployment.md").read_text()
STORES = {"postgres": "postgres", "redis": "redis", "blob": "azure"}  # and their extras
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env")


def test_the_base_image_is_the_same_in_both_stages() -> None:
    assert of("FROM") == ["python:3.12-slim AS build", "python:3.12-slim"]


def test_the_process_is_not_root() -> None:
    order = [name for name, _ in instructions()]
    (user,) = of("USER")
    assert int(user) > 0
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert "RUN" not in order[order.index("USER") :]
    assert f"useradd --uid {user} " in DOCKERFILE


def test_packages_are_installed_with_their_hashes() -> None:
    installs = [run for run in of("RUN") if "pip install" in run]
    assert len(installs) == 2
    assert all("--require-hashes" in run for run in installs)
    assert "--constraint requirements.lock" in installs[1]
    assert not re.search(r"curl|wget|\| *(ba)?sh\b|sudo|chmod 777", DOCKERFILE)


@pytest.mark.parametrize("run", of("RUN"))
def test_a_step_is_valid_for_the_shell(run: str) -> None:
    done = subprocess.run(["sh", "-n", "-c", run], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_steps_of_the_build_stage_run_below_a_folder() -> None:
    script = build_steps("/clean/folder")
    assert subprocess.run(["sh", "-n", "-c", script]).returncode == 0
    assert script.count("pip install") == 2
    # Nothing is read from the source but what the image copies, nothing is written elsewhere.
    paths = set(re.findall(r"(?<![\w./$*])/\w[\w./-]*", script.replace(f"{ROOT}/", "")))
    assert {path for path in paths if not path.startswith("/clean/folder/")} == set()


def test_the_extras_exist() -> None:
    named = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE)
    assert len(named) == 2
    assert {extra for one in named for extra in one.split(",")} <= set(
        PROJECT["optional-dependencies"]
    )
    # Of the commands in compose.yaml and the manifests, and of the stores that the page lists.
    needed = {"scaler", "telemetry"} | {extra for form, extra in STORES.items() if form in PAGE}
    assert STORES.keys() <= set(re.findall(r"`(\w+)://", PAGE))
    assert needed <= set(of("ARG")[0].removeprefix("EXTRAS=").split(","))


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.M))
    copied = {word for one in of("COPY") if "--from" not in one for word in one.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def health_check(port: int, **variables: str) -> int:
    _, _, command = of("HEALTHCHECK")[0].partition("CMD ")
    program, *arguments = json.loads(command)
    assert program == "python"
    own = dict(word.split("=") for word in of("ENV")[0].split())
    env = os.environ | own | {"PATH": os.environ["PATH"], "HEALTH_PORT": str(port)} | variables
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, timeout=60)
    return done.returncode


def test_the_health_check_asks_livez() -> None:
    with serve_health(0) as server:
        assert health_check(server.port) == 0
    assert health_check(free_port()) != 0


def test_the_health_check_fails_with_livez() -> None:
    checks = HealthChecks()
    checks.add("live", "event loop", lambda: "it is blocked")
    with TelemetryServer(0, "127.0.0.1", None, checks) as server:
        assert health_check(server.port) != 0


def test_the_health_check_can_ask_readyz() -> None:
    checks = HealthChecks()
    checks.add("ready", "hub", lambda: "it does not listen")
    with TelemetryServer(0, "127.0.0.1", None, checks) as server:
        assert health_check(server.port) == 0
        assert health_check(server.port, HEALTH_PAGE="readyz") != 0


def test_images_have_the_version_of_the_package() -> None:
    version = PROJECT["version"]
    assert {one.image for one in containers()} == {
        f"pumphouse:{version}", f"pumphouse-spark:{version}",
    }  # fmt: skip
    for path in FILES:
        tags = re.findall(r"pumphouse(?:-spark)?:(\d\S*)|newTag: (\S+)", path.read_text())
        assert {tag for pair in tags for tag in pair if tag} <= {version}, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_there_are_no_secrets(path: os.PathLike[str]) -> None:
    with open(path) as file:
        text = file.read()
    keys = re.findall(r"(?:SharedAccessKey|AccountKey|PUMPHOUSE_KEY|Password)=([^;\n]*)", text)
    assert all(key.startswith("$") or key.startswith('"$') for key in keys), keys
    assert not re.search(r"kind: Secret|BEGIN [A-Z ]*PRIVATE KEY|[A-Za-z0-9+/]{43}=", text)
    assert not re.search(r"ENV .*(KEY|SECRET|TOKEN|CONN)", text)
