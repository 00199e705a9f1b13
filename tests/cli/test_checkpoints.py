"""`pumphouse checkpoints`: list, export, import and reset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Ownership
from tests.cli.conftest import good, objects, refused
from tests.cli.orders_group import OrdersGroup, event_at


def test_list_shows_checkpoints(orders: OrdersGroup) -> None:
    orders.write(orders.checkpoint("1", 4))
    head, row = good(orders.run("checkpoints", "list")).splitlines()
    assert head.split() == ["PARTITION", "SEQUENCE", "OFFSET", "ENQUEUED", "EPOCH"]
    assert row.split()[:2] == ["1", "4"]
    (result,) = objects(good(orders.run("checkpoints", "list", "-o", "json")))
    assert (result["partition"], result["sequence"], result["epoch"]) == ("1", 4, 1)


def test_list_of_an_empty_store(orders: OrdersGroup) -> None:
    orders.write()
    done = orders.run("checkpoints", "list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "has no checkpoints in this store" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("checkpoints", "list"),
        ("checkpoints", "export", "saved.jsonl"),
        ("groups", "describe", "$Default"),
        ("groups", "describe", "$Default", "--watch"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["typo.db", "typo/leases.db", "a file/leases.db"])
def test_a_command_that_reads_creates_no_store(
    orders: OrdersGroup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    before = set(tmp_path.iterdir())
    orders.path = tmp_path / name
    error = refused(orders.run(*args))
    assert error.startswith(f"no store at {tmp_path / name}: check --store")
    assert set(tmp_path.iterdir()) == before


def test_a_command_that_writes_creates_its_store(orders: OrdersGroup) -> None:
    assert not orders.path.exists()
    assert orders.run("checkpoints", "reset", "--to", "latest", "--execute").exit_code == 0
    assert [row.sequence for row in orders.stored().values()] == [9, 9]


def test_an_export_can_be_imported(orders: OrdersGroup, tmp_path: Path) -> None:
    orders.write(orders.checkpoint("0", 3), orders.checkpoint("1", 7))
    before = orders.stored()
    file = str(tmp_path / "saved.jsonl")
    saved = orders.run("checkpoints", "export", file)
    assert (saved.exit_code, saved.stderr) == (0, "wrote 2 checkpoints\n")
    assert orders.run("checkpoints", "reset", "--to", "latest", "--execute").exit_code == 0
    assert [row.sequence for row in orders.stored().values()] == [9, 9]
    preview = orders.run("checkpoints", "import", file)
    assert "re-reads 6 events" in preview.stdout
    assert [row.sequence for row in orders.stored().values()] == [9, 9]
    assert orders.run("checkpoints", "import", file, "--execute").exit_code == 0
    after = orders.stored()
    for partition, checkpoint in before.items():
        same = ("sequence", "offset", "enqueued_ms")
        assert [getattr(after[partition], name) for name in same] == [
            getattr(checkpoint, name) for name in same
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file contains no checkpoints"),
        ("hello\n", "invalid checkpoint in line 1"),
        ('{"partition": "0"}\n', "invalid checkpoint in line 1"),
        ('{"partition": "9", "sequence": 1}\n', "hub orders has no partition 9; it has 0, 1"),
    ],
)
def test_an_invalid_file_is_rejected(
    orders: OrdersGroup, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "saved.jsonl"
    file.write_text(text)
    assert message in refused(orders.run("checkpoints", "import", str(file), "--execute"), code=2)


@pytest.mark.parametrize(
    ("to", "sequences"),
    [
        ("earliest", [-1, -1]),
        ("latest", [9, 9]),
        ("seq:4", [3, 3]),
        ("seq:99", [9, 9]),
        ("time:-1h", [-1, -1]),
        ("time:2099-01-01T00:00:00Z", [9, 9]),
    ],
)
def test_reset_to_a_position(orders: OrdersGroup, to: str, sequences: list[int]) -> None:
    orders.write(orders.checkpoint("0", 5))
    assert orders.run("checkpoints", "reset", "--to", to, "--execute").exit_code == 0
    assert [row.sequence for row in orders.stored().values()] == sequences


def test_reset_sets_the_offset_of_the_previous_event(orders: OrdersGroup) -> None:
    """Some clients resume by the offset alone."""
    assert orders.run("checkpoints", "reset", "--to", "seq:4", "--execute").exit_code == 0
    assert orders.stored()["0"].offset == event_at(orders.connection, "0", 3).offset


def test_a_preview_changes_nothing(orders: OrdersGroup) -> None:
    orders.write(orders.checkpoint("0", 5), orders.checkpoint("1", 9))
    done = orders.run("checkpoints", "reset", "--to", "seq:4")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "PARTITION  CURRENT  NEW  EFFECT",
        "0          5        3    re-reads 2 events",
        "1          9        3    re-reads 6 events",
    ]
    assert done.stderr == "Preview only. Add --execute to write the changes.\n"
    assert orders.stored()["0"].sequence == 5


@pytest.mark.parametrize(
    ("to", "cells"),
    [
        ("earliest", "-        beginning  starts at the beginning"),
        ("seq:4", "-        3    starts at event 4"),
    ],
)
def test_a_preview_without_checkpoints_shows_where_reading_starts(
    orders: OrdersGroup, to: str, cells: str
) -> None:
    done = orders.run("checkpoints", "reset", "--to", to)
    assert done.stdout.splitlines()[1:] == [f"0          {cells}", f"1          {cells}"]


def test_reset_shifts_one_partition(orders: OrdersGroup) -> None:
    orders.write(orders.checkpoint("0", 5), orders.checkpoint("1", 5))
    done = orders.run(
        "checkpoints", "reset", "--shift-by", "-2", "-p", "1", "--execute", "-o", "json"
    )
    assert done.exit_code == 0
    assert objects(done.stdout) == [
        {"partition": "1", "from": 5, "to": 3, "effect": "re-reads 2 events"}
    ]
    assert [row.sequence for row in orders.stored().values()] == [5, 3]


def test_reset_is_refused_while_an_official_sdk_owns_the_partition(orders: OrdersGroup) -> None:
    """It has no epoch, and would overwrite the checkpoint."""
    orders.write(Ownership("0", "anna", 0), orders.checkpoint("0", 5))
    preview = orders.run("checkpoints", "reset", "--to", "earliest")
    assert preview.stderr == (
        "Preview only. anna owns these partitions and would overwrite the change: "
        "stop them, then add --execute.\n"
    )
    done = orders.run("checkpoints", "reset", "--to", "earliest", "--execute")
    assert done.exit_code == 1
    assert "nothing was changed: anna owns these partitions" in done.stderr
    assert orders.stored()["0"].sequence == 5
    assert (
        orders.run("checkpoints", "reset", "--to", "earliest", "--execute", "--force").exit_code
        == 0
    )
    assert orders.stored()["0"].sequence == -1
    assert orders.stored()["0"].epoch == 1  # the epoch does not change: no host is fenced off


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "use either --to POSITION or --shift-by N"),
        (["--to", "latest", "--shift-by", "1"], "use either --to"),
        (["--to", "soon"], "invalid position 'soon'"),
        (["--to", "latest", "-p", "7"], "hub orders has no partition 7; it has 0, 1"),
        (["--shift-by", "1"], "the checkpoint of partition 0 has no sequence number"),
    ],
)
def test_an_invalid_reset_is_rejected(orders: OrdersGroup, args: list[str], message: str) -> None:
    assert message in refused(orders.run("checkpoints", "reset", *args), code=2)


def test_the_export_is_json_lines(orders: OrdersGroup) -> None:
    orders.write(orders.checkpoint("0", 3))
    done = orders.run("checkpoints", "export")
    result = json.loads(done.stdout)
    assert (result["partition"], result["sequence"]) == ("0", 3)


# -- consumer groups that do not exist ------------------------------------------------------------

WARNING = "WARNING: hub orders has no consumer group typo; it has $Default, archive\n"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("checkpoints", "list", "--group", "typo"), 0),
        (("checkpoints", "reset", "--group", "typo", "--to", "latest", "--execute"), 0),
        (("checkpoints", "export", "--group", "typo"), 0),
        (("groups", "describe", "typo"), 3),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_an_unknown_group_is_reported(
    orders: OrdersGroup, event_hub: EmbeddedHub, args: tuple[str, ...], code: int
) -> None:
    """The exit code is that of a group that exists and has no hosts."""
    event_hub.create_group("orders", "archive")
    orders.write(orders.checkpoint("0", 5))
    done = orders.run(*args)
    assert done.exit_code == code
    assert done.stderr.startswith(WARNING)
    known = orders.run(*("ARCHIVE" if arg == "typo" else arg for arg in args))
    assert known.exit_code == code
    assert "WARNING" not in known.stderr


def test_an_import_into_an_unknown_group_is_reported(
    orders: OrdersGroup, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    event_hub.create_group("orders", "archive")
    orders.write(orders.checkpoint("0", 5))
    file = str(tmp_path / "saved.jsonl")
    assert orders.run("checkpoints", "export", file).exit_code == 0
    done = orders.run("checkpoints", "import", file, "--group", "typo", "--execute")
    assert done.exit_code == 0
    assert done.stderr.startswith(WARNING)
    assert list(orders.stored("typo")) == ["0"]


def test_groups_that_cannot_be_listed_are_not_reported(
    orders: OrdersGroup, event_hub: EmbeddedHub
) -> None:
    event_hub.create_rule("reader", [Claim.LISTEN], "orders")
    orders.write(orders.checkpoint("0", 5))
    connection = event_hub.connection_string("orders", "reader")
    store = ("--store", str(orders.path))
    done = orders.call("checkpoints", "list", "--group", "typo", *store, connection=connection)
    assert done.exit_code == 0
    assert "WARNING" not in done.stderr
