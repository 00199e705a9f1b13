"""The tests that share a worker: those of all files with the same `xdist_group`.

pytest-xdist appends the group to the test id, which newer versions of pytest do not allow. Without
groups every worker would start a Spark and a browser, so the groups are read from the files. Files
with slow fixtures are groups too. Four groups start Spark, and `make test` runs one more beside
them. More would be too many for two cores: Python workers have ten seconds to connect to Spark.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

ROOT = Path(__file__).parents[1]


class GroupsFromFiles(LoadGroupScheduling):  # type: ignore[misc]  # it ships no types
    """Runs the tests of a group one after the other in one worker, and all others in any worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0]) or nodeid


@cache
def group_of(path: str) -> str | None:
    match = re.search(r'xdist_group\("(\w+)"\)', (ROOT / path).read_text())
    return match and match[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupsFromFiles | None:
    return GroupsFromFiles(config, log) if config.getoption("dist") == "loadgroup" else None
