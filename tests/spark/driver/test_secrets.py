"""References to secrets in options: they are resolved, and no error shows a secret."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pumphouse.errors import OptionError
from pumphouse.spark.driver import secrets
from pumphouse.spark.driver.secrets import Environment, resolve, resolve_options
from pumphouse.spark.options import read_source
from pumphouse.spark.session import take_connections

KEY = "c2VjcmV0"
STRING = f"Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey={KEY};EntityPath=sensors"


@pytest.fixture(autouse=True)
def _vault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user that holds secrets."""

    def look_up(name: str) -> str:
        if name == "missing":
            raise KeyError(STRING)
        return {"hub": STRING, "empty": ""}[name]

    monkeypatch.setitem(sys.modules, "vault", SimpleNamespace(look_up=look_up))
    monkeypatch.setenv("PUMPHOUSE_SECRETS", "vault:look_up")
    secrets._kept.clear()


def test_a_name_is_resolved_by_the_function_of_the_user() -> None:
    given = resolve_options(
        {"eventhubs.connectionstring": "secret:hub", "consumerGroup": "secret:hub"}
    )
    assert given == {"eventhubs.connectionstring": STRING, "consumerGroup": "secret:hub"}
    options = read_source(given, streaming=True, now_ms=0)
    assert options.identity.hub == "sensors"
    assert KEY not in repr(options)
    assert KEY in pickle.dumps(options).decode("latin-1")  # the tasks need it


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "hub").write_text(STRING + "\n")
    assert resolve("connectionString", f"secret:file:{tmp_path}/hub") == STRING


def test_a_variable_of_the_environment_may_be_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMPHOUSE_CONNECTION_SENSORS", "secret:hub")
    monkeypatch.setenv("PUMPHOUSE_CONNECTION_OTHER", "secret:missing")  # not used
    options = read_source({"alias": "sensors"}, streaming=True, now_ms=0, environment=Environment())
    assert options.identity.hub == "sensors"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("secret:missing", "connectionString=secret:missing: vault:look_up raised KeyError"),
        ("secret:empty", "returned an empty text"),
        ("secret:file:/nowhere/hub", "cannot read the file /nowhere/hub on the driver: No such"),
        ("secret:file:/dev/null", "the file /dev/null is empty"),
    ],
)
def test_a_secret_that_is_missing_is_named_and_not_shown(value: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as failed:
        resolve("connectionString", value)
    assert KEY not in str(failed.value)
    assert failed.value.__context__ is None or failed.value.__suppress_context__


def test_a_name_without_a_function_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUMPHOUSE_SECRETS")
    with pytest.raises(OptionError, match=r"set PUMPHOUSE_SECRETS=module:callable.*secret:file:"):
        resolve("connectionString", "secret:hub")


def test_the_vault_is_asked_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, names = [0.0], []

    def look_up(name: str) -> str:
        names.append(name)
        return STRING

    monkeypatch.setitem(sys.modules, "vault", SimpleNamespace(look_up=look_up))
    monkeypatch.setattr("pumphouse.spark.driver.secrets.time.monotonic", lambda: now_s[0])
    for now_s[0] in (0.0, 59.0, 61.0):
        assert resolve("connectionString", "secret:hub") == STRING
    assert names == ["hub", "hub"]


def test_a_session_passes_the_function_to_the_processes_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PUMPHOUSE_SECRETS", "")
    monkeypatch.setattr(sys.modules["pumphouse.spark.session"], "is_spark_running", lambda: False)
    settings = {"spark.pumphouse.secrets": "vault:look_up"}
    take_connections(settings)
    assert settings == {}
    assert resolve("connectionString", "secret:hub") == STRING
