"""Import paths of the last version still work, and warn."""

import subprocess
import sys
from importlib import import_module

import pytest

from pumphouse import SqliteStore, open_store
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


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("pumphouse.client.bulk", "BATCH_ROWS_MAX", "pumphouse.client.bulk.ranges.BATCH_ROWS_MAX"),
        ("pumphouse.client.bulk", "CREDIT_WINDOW", "pumphouse.client.bulk.ranges.CREDIT_WINDOW"),
        ("pumphouse.client.native", "Client", "pumphouse.client.native.client.NativeClient"),
        (
            "pumphouse.client.native",
            "WireOptions",
            "pumphouse.client.native.connection.ConnectionOptions",
        ),
        ("pumphouse.leases.flaky_store", "Rates", "pumphouse.leases.flaky_store.RandomFaults"),
        ("pumphouse.leases.flaky_store", "Script", "pumphouse.leases.flaky_store.ScriptedFaults"),
    ],
)
def test_an_old_name_warns_and_gives_the_new_object(module: str, old: str, new: str) -> None:
    target, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} is now .*{name}"):
        found = getattr(import_module(module), old)
    assert found is getattr(import_module(target), name)


def test_an_unknown_name_of_a_package_with_old_names_is_an_attribute_error() -> None:
    for module in ("pumphouse.client.bulk", "pumphouse.client.native"):
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            import_module(module).Nothing  # noqa: B018


def test_the_old_keyword_of_open_store_warns_and_works() -> None:
    with pytest.warns(DeprecationWarning, match="place= of open_store is now url="):
        store = open_store(place="leases.db")
    assert isinstance(store, SqliteStore)
    assert "leases.db" in repr(store)


def test_the_warning_names_the_line_of_the_caller() -> None:
    code = "from pumphouse.leases.sqlite import SqliteStore"
    run = [sys.executable, "-W", "default::DeprecationWarning", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.startswith("<string>:1: DeprecationWarning: pumphouse.leases.sqlite is now")
