"""What the documents show works: snippets run, commands exist, links and names resolve."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.processor.reporting import TODO, recovery_of
from scripts.check_docs import PAGES, broken_links, undocumented_names
from tests.postgres.server import PostgresServer
from tests.test_architecture import INSIDE, MAP

pytestmark = pytest.mark.xdist_group("documents")  # one Spark of this file at a time

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = sorted(ROOT.glob("docs/**/*.md"))
API_PAGES = sorted(ROOT.glob("docs/api/*.md"))
PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for kind, block in fenced if kind == language]


SNIPPETS = [
    pytest.param(code, id=f"{path.relative_to(ROOT)}-{number}")
    for path in (ROOT / "README.md", *DOCS)
    for number, code in enumerate(blocks(path.read_text(), "python"))
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("code", SNIPPETS)
def test_python_snippets_run(code: str, tmp_path: Path) -> None:
    script = tmp_path / "test_snippet.py"
    script.write_text(code)
    runner = ["-m", "pytest", "-q"] if "def test_" in code else ["-W", "error"]
    done = subprocess.run(
        [sys.executable, *runner, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_examples_run_and_are_short(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 48
    environment = dict(os.environ)
    if "DATABASE_URL" in text:
        server: PostgresServer = request.getfixturevalue("postgres")
        environment["DATABASE_URL"] = server.database()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.fixture
def shell() -> Iterator[dict[str, str]]:
    """The environment of a shell in which the README's hub runs, on a free port."""
    up = subprocess.Popen(
        [PUMPHOUSE, "up", "--hubs", "sensors:16", "--port", "0", "-o", "json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert up.stdout is not None
    try:
        ready = json.loads(up.stdout.readline())
        yield {**os.environ, "EVENT_HUB_CONN_STR": ready["namespace_connection_string"]}
    finally:
        up.terminate()
        assert up.wait(10) == 0
        up.stdout.close()


def test_the_commands_of_the_readme_run(shell: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handle(partition, batch):\n    print(partition.id)\n")
    lines = [line for block in blocks(README, "") for line in block.splitlines()]
    commands = [line for line in lines if re.search(r"pumphouse (?!up\b)", line)]
    assert len(commands) >= 8
    env = {**shell, "PATH": f"{PUMPHOUSE.parent}:{os.environ['PATH']}"}
    for line in commands:
        # A tail that follows never ends: without that option the same line must show the event.
        command = line.split("#")[0].replace(" --follow", "")
        if " process " in command:
            handle_one_event(command, env, tmp_path)
            continue
        done = subprocess.run(
            command, shell=True, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        # No partition has an owner by then, which `describe` reports with status 3.
        accepted = (0, 3) if " describe " in command else (0,)
        assert done.returncode in accepted, f"{command}: {done.stdout} {done.stderr}"
        if " tail " in command:
            assert '{"coffee": 1}' in done.stdout


def handle_one_event(command: str, env: dict[str, str], folder: Path) -> None:
    """Run a command that runs until Ctrl-C, and stop it after it has handled an event."""
    with subprocess.Popen(
        f"exec {command}", shell=True, env=env, cwd=folder, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip().isdecimal(), command
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


def commands(group: click.Group, path: str = "pumphouse") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(commands(main)), ids=lambda v: str(v)[:40])
def test_every_command_has_help_and_is_documented(path: str, command: click.Command) -> None:
    result = CliRunner().invoke(main, [*shlex.split(path)[1:], "--help"])
    assert result.exit_code == 0
    assert command.help, f"{path} has no help"
    assert path in (ROOT / "docs/cli.md").read_text(), f"{path} is not in docs/cli.md"


def test_links_and_anchors_resolve() -> None:
    assert list(broken_links(PAGES)) == []


def test_a_broken_link_and_a_missing_anchor_are_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page: the first\n[a](gone.md) [b](#a-page-the-first) [c](page.md#other)")
    assert list(broken_links([page], tmp_path)) == [
        "page.md: gone.md does not exist",
        "page.md: page.md has no heading #other",
    ]


def test_public_names_are_documented() -> None:
    assert list(undocumented_names(API_PAGES)) == []


def test_an_undocumented_and_an_unknown_name_are_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- api: pumphouse.Nothing -->")
    problems = list(undocumented_names([page]))
    assert "docs/api lists pumphouse.Nothing, which does not exist" in problems
    listed = "add <!-- api: pumphouse.Event -->"
    assert f"pumphouse.Event is public but not in docs/api: {listed}" in problems


def test_the_import_table_of_the_architecture_page_is_the_one_that_is_checked() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| ([-`. \w]+) \|$", page, re.MULTILINE)
    written = {name: set(re.findall(r"`([.\w]+)`", allowed)) for name, allowed in rows}
    checked = {room: set(allowed.split()) for room, allowed in MAP.items() if room in INSIDE}
    del checked["cli"]  # it may import every package
    checked |= {
        f"{room}.{name}": set(allowed.split())
        for room, names in INSIDE.items()
        for name, allowed in names.items()
    }
    assert written == checked


def snake_words(names: Iterable[str]) -> set[str]:
    return {name for name in names if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}


def literals(tree: ast.AST) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return snake_words(value for value in constants if isinstance(value, str))


def logged_events(tree: ast.AST) -> set[str]:
    """The literal names of events: first arguments of `line` and of the methods of a reporter."""
    events = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        owner = ast.unparse(call.func)
        if owner == "line" or re.search(r"reporter\.(debug|info|warning|failed)$", owner):
            events |= literals(call.args[0])
        elif owner.endswith("reporter.recovered"):
            events |= {recovery_of(event) for event in literals(call.args[0])}
    return events


def test_every_log_event_is_documented_and_every_documented_one_exists() -> None:
    paths = [path for path in (ROOT / "src/pumphouse").rglob("*.py") if path.name != "logs.py"]
    trees = [ast.parse(path.read_text()) for path in paths]
    page = (ROOT / "docs/logging.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \| [A-Z]", page, re.MULTILINE))
    logged = set().union(*map(logged_events, trees), TODO)
    assert logged - documented == set(), "add these to docs/logging.md"
    known = set().union(*map(literals, trees))
    known |= {recovery_of(event) for event in known}
    assert documented - known == set(), "these are logged nowhere"
