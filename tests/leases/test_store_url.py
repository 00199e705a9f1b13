"""Store URLs: parsing, opening, and errors without keys."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.errors import OptionError
from pumphouse.homes.watch.sharing import HELP
from pumphouse.leases.store_url import (
    STORE_KINDS,
    StoreUrl,
    open_store,
    parse_store_url,
    shared_forms,
    store_forms,
)
from pumphouse.leases.stores.blob.machine_identity import MachineIdentity
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.spark.tenancy.options import SHARED_STORES
from tests.leases.contract.calls import first, rows

KEY = "c2VjcmV0LXNlY3JldA=="
CONNECTION_STRING = (
    f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};"
    "EndpointSuffix=core.windows.net"
)
URL = "https://acct.blob.core.windows.net"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("memory:", StoreUrl("memory")),
        ("MEMORY:", StoreUrl("memory")),
        ("memory://", StoreUrl("memory")),
        ("sqlite:///var/lib/leases.db", StoreUrl("sqlite", path="/var/lib/leases.db")),
        ("sqlite:////var/lib/leases.db", StoreUrl("sqlite", path="/var/lib/leases.db")),
        ("sqlite:/var/lib/leases.db", StoreUrl("sqlite", path="/var/lib/leases.db")),
        ("sqlite:leases.db", StoreUrl("sqlite", path="leases.db")),
        ("leases.db", StoreUrl("sqlite", path="leases.db")),
        (
            "postgres://u:p@h:5/db?sslmode=require",
            StoreUrl("postgres", connection_string="postgres://u:p@h:5/db?sslmode=require"),
        ),
        ("redis://:p@h:5/1", StoreUrl("redis", connection_string="redis://:p@h:5/1")),
        ("REDISS://h", StoreUrl("redis", connection_string="rediss://h")),
        ("PostgreSQL:///db", StoreUrl("postgres", connection_string="postgres:///db")),
        ("./a b/leases.db", StoreUrl("sqlite", path="./a b/leases.db")),
        (Path("/x/leases.db"), StoreUrl("sqlite", path="/x/leases.db")),
        ("blob://acct/leases", StoreUrl("blob", account_url=URL, container="leases")),
        ("bloblease://acct/leases/", StoreUrl("bloblease", account_url=URL, container="leases")),
        (
            "blob://acct.blob.core.chinacloudapi.cn/leases",
            StoreUrl(
                "blob",
                account_url="https://acct.blob.core.chinacloudapi.cn",
                container="leases",
            ),
        ),
        (
            f"{CONNECTION_STRING};Container=leases",
            StoreUrl("blob", container="leases", connection_string=CONNECTION_STRING),
        ),
        (
            f"bloblease:ContainerName=leases;{CONNECTION_STRING}",
            StoreUrl("bloblease", container="leases", connection_string=CONNECTION_STRING),
        ),
        (
            "blob:UseDevelopmentStorage=true;Container=leases",
            StoreUrl("blob", container="leases", connection_string="UseDevelopmentStorage=true"),
        ),
    ],
)
def test_a_store_url_is_parsed(text: str | Path, url: StoreUrl) -> None:
    assert parse_store_url(text) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the store URL has no path"),
        ("sqlite:", "the store URL has no path"),
        ("sqlite://", r"names a machine.*sqlite:///PATH"),
        ("sqlite://host/leases.db", r"names a machine.*sqlite:///PATH"),
        ("memory:somewhere", "invalid memory: store; use memory:"),
        ("mongodb://localhost", "unknown store mongodb:; use memory:"),
        ("redis:6379", "invalid redis: store; use .*redis://HOST:PORT/DB"),
        ("postgres:leases", "invalid postgres: store; use .*postgres://USER@HOST/DATABASE"),
        ("blob://acct", "blob://ACCOUNT/CONTAINER"),
        ("blob:///leases", "blob://ACCOUNT/CONTAINER"),
        ("bloblease://acct/leases/more", "bloblease://ACCOUNT/CONTAINER"),
        ("blob://acct/leases?sig=abc", "blob://ACCOUNT/CONTAINER"),
        (CONNECTION_STRING, ";Container=NAME"),
        (f"Endpoint=sb://house/;SharedAccessKey={KEY}", "event hub"),
        (f"host=db user=me password={KEY}", "not a list of NAME=VALUE: use postgres://"),
        (f"Password = {KEY};Host=db", "not a list of NAME=VALUE: use postgres://"),
    ],
)
def test_an_invalid_store_url_is_refused_without_secrets(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        parse_store_url(text)
    assert KEY not in str(raised.value)
    assert "sig=" not in str(raised.value)


def test_a_container_can_be_a_separate_argument() -> None:
    assert parse_store_url(CONNECTION_STRING, "leases").container == "leases"
    assert parse_store_url(f"{CONNECTION_STRING};Container=leases", "leases").container == "leases"
    with pytest.raises(OptionError, match="two different containers"):
        parse_store_url(f"{CONNECTION_STRING};Container=leases", "others")


def test_the_repr_of_a_store_url_shows_no_key() -> None:
    assert KEY not in repr(parse_store_url(CONNECTION_STRING, "leases"))


async def test_memory_and_sqlite_stores_open(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    for text in (f"sqlite://{tmp_path}/a.db", tmp_path / "b.db", str(tmp_path / "c.db")):
        store = open_store(text, deadline_s=60)
        assert isinstance(store, SqliteStore)
        async with store:
            await first(store)
            assert "0" in await rows(store)
            assert str(store.path).startswith(str(tmp_path))


@pytest.mark.parametrize("kind", ["blob", "bloblease"])
def test_blob_stores_open_by_url_and_connection_string(kind: str) -> None:
    for store in (
        open_store(f"{kind}://acct/leases", credential=KEY),
        open_store(f"{kind}:{CONNECTION_STRING};Container=leases"),
        open_store(f"{kind}://acct/leases"),
    ):
        assert type(store).__name__ == {"blob": "BlobStore", "bloblease": "BlobLeaseStore"}[kind]
        assert f"{URL}/leases" in repr(store)
        assert KEY not in repr(store)


async def test_the_machine_identity_is_called_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = MachineIdentity()
    calls: list[Any] = []

    class RecordingCredential:
        def get_token(self, *scopes: str, **options: Any) -> str:
            calls.append((scopes, options))
            return "token"

    monkeypatch.setattr(identity, "_credential", RecordingCredential())
    async with identity:
        assert await identity.get_token("scope", enable_cae=True) == "token"
    assert calls == [(("scope",), {"enable_cae": True})]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pumphouse.leases.stores.postgres.store", None)
    with pytest.raises(OptionError, match=r"pip install 'pumphouse\[postgres\]'"):
        open_store(f"postgres://u:{KEY}@h/x")


def test_the_repr_of_a_database_url_shows_no_password() -> None:
    assert "secret" not in repr(parse_store_url("postgres://u:secret@h/x"))


def test_every_list_of_stores_has_every_kind() -> None:
    runner = CliRunner()
    helps = {
        name: " ".join(runner.invoke(main, [*name.split(), "--help"]).stdout.split())
        for name in (
            "process", "doctor", "lag-exporter", "scaler", "groups describe", "checkpoints list",
            "homes run",
        )
    }  # fmt: skip
    texts = helps | {
        "Spark": SHARED_STORES,
        "homes": HELP["store"],
        "module": (Path(__file__).parents[2] / "src/pumphouse/leases/store_url.py").read_text(),
    }
    for name, text in texts.items():
        for form in shared_forms().split(", "):
            assert form.replace(" ", "") in text.replace(" ", ""), (name, form)


def test_the_docs_list_every_kind_of_store() -> None:
    docs = Path(__file__).parents[2] / "docs/leases.md"
    _, _, section = docs.read_text().partition("\n## Stores\n")
    table = section.strip().partition("\n\n")[0]
    for kind in STORE_KINDS.values():
        assert f"`{kind.form}`" in table
        assert kind.form in store_forms()


def test_a_blob_lease_url_selects_the_format_and_the_prefix_of_its_blobs() -> None:
    url = parse_store_url("bloblease://acct/leases?format=java&prefix=app-")
    assert url.settings == (("format", "java"), ("prefix", "app-"))
    assert "java" in repr(open_store(url, credential=KEY))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("formats=java", "no setting 'formats': did you mean format?"),
        ("sig=abc", "no setting 'sig': it has format, prefix"),
        ("format=ruby", "must be one of net, java, javascript, python"),
        ("format=java&format=net", "format of a bloblease: store is given twice"),
    ],
)
def test_an_invalid_setting_of_a_blob_lease_url_is_refused(query: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)) as raised:
        parse_store_url(f"bloblease://acct/leases?{query}")
    assert "abc" not in str(raised.value)
