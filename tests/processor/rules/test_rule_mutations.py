"""Every rule of docs/internals/rules.md has a mutation, and the test of the rule fails with it.

A mutation is a small patch of the source (rule_mutations.toml). It is applied to a copy of the
package, and the test that the rule names runs against the copy in a process of its own.
`make test` runs a few mutations, `make proof` runs all of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/pumphouse"
PAGE = (ROOT / "docs/internals/rules.md").read_text()
TESTS = dict(re.findall(r"^\| (.+) \| `(tests/[\w/]+\.py::\w+)` \|$", PAGE, re.MULTILINE))
TEST_S, DEADLINE_S = 60, 100.0  # they only bound a test that hangs with its mutation
FAILED = 1  # pytest's exit code for failed tests; another one means that it could not run them
# Fast ones, of different packages.
SAMPLE = (0, 4, 20, 60)


@dataclass(frozen=True)
class Mutation:
    """A patch that breaks a rule."""

    rule: str
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{re.sub(r'[^a-z0-9]+', '-', self.rule.lower())[:60]} {self.file}"

    def apply(self, package: Path) -> None:
        path = package / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


with (Path(__file__).parent / "rule_mutations.toml").open("rb") as file:
    MUTATIONS = [Mutation(**entry) for entry in tomllib.load(file)["mutation"]]


def test_every_rule_has_a_mutation() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == TESTS.keys()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mutation_patches_one_place(mutation: Mutation) -> None:
    source = (SOURCE / mutation.file).read_text()
    assert source.count(mutation.old) == 1, f"{mutation.file} has changed: adapt the mutation"
    compile(source.replace(mutation.old, mutation.new), mutation.file, "exec")


def run_test(test: str, source: Path) -> subprocess.CompletedProcess[str]:
    """Run one test with the package in `source`."""
    pytest_options = ("-q", "-x", "-p", "no:cacheprovider", f"--timeout={TEST_S}")
    command = [sys.executable, "-m", "pytest", *pytest_options, test]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def assert_caught(mutation: Mutation, folder: Path) -> None:
    package = folder / "pumphouse"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    mutation.apply(package)
    try:
        run = run_test(TESTS[mutation.rule], folder)
    except subprocess.TimeoutExpired:
        return  # a test that waits for ever has noticed it
    # A test that could not be set up proves nothing.
    caught = run.returncode == FAILED and " error" not in run.stdout.splitlines()[-1]
    assert caught, f"{mutation} was not caught:\n{run.stdout[-2000:]}"


@pytest.mark.parametrize("mutation", [MUTATIONS[n] for n in SAMPLE], ids=str)
def test_some_mutations_are_caught(mutation: Mutation, tmp_path: Path) -> None:
    assert_caught(mutation, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_every_mutation_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    assert_caught(mutation, tmp_path)
