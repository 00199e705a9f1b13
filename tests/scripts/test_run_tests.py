"""`scripts/run-tests` runs a few failed tests once more, and no other failure passes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]

FAILS_ONCE = """
    from pathlib import Path
    import pytest

    @pytest.mark.xdist_group("shared")
    @pytest.mark.parametrize("name", ["a b", "[c]@d"])
    def test_fails_once(name):
        seen = Path(__file__).with_name(f"{len(name)}.seen")
        first = not seen.exists()
        seen.touch()
        assert not first
"""
FAILS_ALWAYS = "def test_fails():\n    assert False\n"
FAILS_OFTEN = "import pytest\n@pytest.mark.parametrize('n', range(4))\n" + FAILS_ALWAYS.replace(
    "()", "(n)"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the scripts and with the Python of these tests."""
    (tmp_path / "scripts").mkdir()
    for name in "run-tests", "lib.sh":
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_tests(project: Path, source: str) -> subprocess.CompletedProcess[str]:
    """The script, on one module of tests, with one worker."""
    (project / "test_module.py").write_text(dedent(source))
    command = [str(project / "scripts" / "run-tests"), "-n", "1", "-p", "xdist"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_tests_that_pass_the_second_time_are_named(project: Path) -> None:
    done = run_tests(project, FAILS_ONCE)
    assert done.returncode == 0, done.stdout + done.stderr
    warning = done.stdout.splitlines()[-1]
    assert "WARNING" in warning
    assert "test_fails_once[a b]" in warning
    assert "test_fails_once[[c]@d]" in warning


def test_a_test_that_fails_twice_fails_the_run(project: Path) -> None:
    done = run_tests(project, FAILS_ALWAYS)
    assert done.returncode == 1
    assert "failed twice" in done.stderr
    assert done.stdout.count("= 1 failed in") == 2


def test_many_failures_are_not_repeated(project: Path) -> None:
    done = run_tests(project, FAILS_OFTEN)
    assert done.returncode == 1
    assert "4 tests failed" in done.stderr
