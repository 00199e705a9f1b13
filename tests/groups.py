"""Which tests share a worker: those of the files that name the same `xdist_group`.

pytest-xdist writes the group of a test into its id, which newer pytests no longer let it do; then
both workers would start a Spark and a browser each. So the groups are read from the files.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

ROOT = Path(__file__).parents[1]


class ByFile(LoadGroupScheduling):  # type: ignore[misc]  # it ships no types
    """Tests of a group one after the other in one worker; all others wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0]) or nodeid


@cache
def group_of(path: str) -> str | None:
    found = re.search(r'xdist_group\("(\w+)"\)', (ROOT / path).read_text())
    return found and found[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadgroup" else None
