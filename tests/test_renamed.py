"""Import paths of the last version still work, and warn."""

import subprocess
import sys
from importlib import import_module

import pytest

from pumphouse._renamed import RENAMED


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_import_path_warns_and_gives_the_new_module(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {RENAMED[old]}"):
        module = import_module(old)
    assert module is import_module(RENAMED[old])
    monkeypatch.delitem(sys.modules, old)


def test_the_warning_names_the_line_of_the_caller() -> None:
    code = "from pumphouse.leases.sqlite import SqliteStore"
    run = [sys.executable, "-W", "default::DeprecationWarning", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.startswith("<string>:1: DeprecationWarning: pumphouse.leases.sqlite is now")
