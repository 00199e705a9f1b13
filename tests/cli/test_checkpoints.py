"""`pumphouse groups describe` and `pumphouse checkpoints`: seeing and moving how far a group is."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Granted, Group, Ownership
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Call, Program, good, objects, refused


class Shop:
    """The hub `orders` with events in it, a store, and commands that know both."""

    def __init__(self, call: Call, event_hub: EmbeddedHub, folder: Path) -> None:
        self.call, self.hub, self.path = call, event_hub, folder / "leases.db"
        self.connection = event_hub.connection_string("orders")
        with_client(self.connection, self.fill)

    async def fill(self, client: Any) -> None:
        self.group = Group(client.namespace, "orders")
        for partition in ("0", "1"):
            sender = await client.sender(partition)
            await sender.send([Event(b"%d" % number) for number in range(10)])

    def run(self, *args: str) -> Result:
        store = ("--store", str(self.path), "--hub", "orders")
        return self.call(*args, *store)

    def write(self, *rows: Ownership | Checkpoint) -> None:
        async def work() -> None:
            async with SqliteStore(self.path) as store:
                for row in rows:
                    if isinstance(row, Ownership):
                        (outcome,) = await store.claim_ownership(self.group, [row])
                        assert isinstance(outcome, Granted)
                    else:
                        assert isinstance(await store.update_checkpoint(row), Granted)

        asyncio.run(work())

    def checkpoint(self, partition: str, sequence: int) -> Checkpoint:
        found = event_at(self.connection, partition, sequence)
        return Checkpoint(
            self.group, partition, sequence, found.offset, 1, enqueued_ms=found.enqueued_ms
        )

    def stored(self) -> dict[str, Checkpoint]:
        async def work() -> list[Checkpoint]:
            async with SqliteStore(self.path) as store:
                return await store.list_checkpoints(self.group)

        return {one.partition: one for one in asyncio.run(work())}


def with_client(connection: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with open_client(connection) as client:
            return await work(client)

    return asyncio.run(run())


def event_at(connection: str, partition: str, sequence: int) -> Event:
    from pumphouse.client.base import ReaderOptions
    from pumphouse.events import Position

    async def read(client: Any) -> Event:
        position = Position("sequence", str(sequence), inclusive=True)
        reader = await client.reader(ReaderOptions(partition, position=position))
        events: list[Event] = await reader.receive(1, 30)
        return events[0]

    found: Event = with_client(connection, read)
    return found


@pytest.fixture
def shop(call: Call, event_hub: EmbeddedHub, tmp_path: Path) -> Shop:
    return Shop(call, event_hub, tmp_path)


# -- describe -------------------------------------------------------------------------------------


def test_who_owns_what_and_how_far_they_are(shop: Shop) -> None:
    shop.write(Ownership("0", "anna", 4), shop.checkpoint("0", 9))
    shop.write(Ownership("1", "bert", 7), shop.checkpoint("1", 4))
    lines = good(shop.run("groups", "describe", "$Default")).splitlines()
    assert lines[0].split() == [
        "GROUP",
        "HUB",
        "STATE",
        "HOSTS",
        "SHARE",
        "TOTAL-LAG",
        "MAX-LAG",
        "MAX-LAG-TIME",
    ]
    assert lines[1].split()[:7] == ["$Default", "orders", "stable", "2", "1", "5", "5"]
    first, second = (line.split() for line in lines[4:])
    assert first[:3] == ["0", "anna", "4"]
    assert first[5:] == ["9", "9", "0", "0.0s", "ok"]
    assert second[:3] == ["1", "bert", "7"]
    assert second[5:8] == ["4", "9", "5"]


def test_a_partition_without_an_owner_is_not_well(shop: Shop) -> None:
    shop.write(Ownership("0", "anna", 4), shop.checkpoint("0", 9))
    found = shop.run("groups", "describe", "$Default", "-o", "json")
    assert found.exit_code == 3
    (told,) = objects(found.stdout)
    assert told["state"] == "moving"
    assert [line["verdict"] for line in told["partitions"]] == ["ok", "no owner"]
    assert told["partitions"][1]["owner"] is None
    assert told["partitions"][0]["lease_left_seconds"] > 0


def test_a_group_that_nobody_ever_read(shop: Shop) -> None:
    found = shop.run("groups", "describe", "$Default")
    assert found.exit_code == 3
    assert "nobody" in found.stdout
    assert found.stdout.count("no owner") == 2


def test_watching_shows_what_changes_until_ctrl_c(
    shop: Shop, program: Callable[..., Program]
) -> None:
    shop.write(Ownership("0", "anna", 4))
    watching = program(
        *("groups", "describe", "$Default", "--watch", "--every", "100ms", "-o", "json"),
        *("--store", str(shop.path), "--hub", "orders"),
        connection=shop.connection,
    )

    def owners() -> list[str | None]:
        return [one["owner"] for one in json.loads(watching.line())["partitions"]]

    assert owners() == ["anna", None]
    shop.write(Ownership("1", "bert", 1))
    while owners() != ["anna", "bert"]:
        pass
    assert watching.end(signal.SIGINT) == (130, "\n")


def test_a_hub_that_is_not_there(call: Call, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "leases.db"))
    assert "nowhere" in refused(call("groups", "describe", "g", "--hub", "nowhere", *store))


# -- list, export and import ----------------------------------------------------------------------


def test_listing(shop: Shop) -> None:
    shop.write(shop.checkpoint("1", 4))
    head, row = good(shop.run("checkpoints", "list")).splitlines()
    assert head.split() == ["PARTITION", "SEQUENCE", "OFFSET", "ENQUEUED", "EPOCH"]
    assert row.split()[:2] == ["1", "4"]
    (told,) = objects(good(shop.run("checkpoints", "list", "-o", "json")))
    assert (told["partition"], told["sequence"], told["epoch"]) == ("1", 4, 1)


def test_nothing_to_list(shop: Shop) -> None:
    found = shop.run("checkpoints", "list")
    assert (found.exit_code, found.stdout) == (0, "")
    assert "has no checkpoint in this store" in found.stderr


def test_saved_and_restored(shop: Shop, tmp_path: Path) -> None:
    shop.write(shop.checkpoint("0", 3), shop.checkpoint("1", 7))
    before = shop.stored()
    file = str(tmp_path / "saved.jsonl")
    saved = shop.run("checkpoints", "export", file)
    assert (saved.exit_code, saved.stderr) == (0, "wrote 2 checkpoints\n")
    assert shop.run("checkpoints", "reset", "--to", "latest", "--execute").exit_code == 0
    assert [one.sequence for one in shop.stored().values()] == [9, 9]
    preview = shop.run("checkpoints", "import", file)
    assert "re-reads 6 events" in preview.stdout
    assert [one.sequence for one in shop.stored().values()] == [9, 9]
    assert shop.run("checkpoints", "import", file, "--execute").exit_code == 0
    after = shop.stored()
    for partition, mark in before.items():
        same = ("sequence", "offset", "enqueued_ms")
        assert [getattr(after[partition], name) for name in same] == [
            getattr(mark, name) for name in same
        ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file holds no checkpoint"),
        ("hello\n", "line 1 is no checkpoint"),
        ('{"partition": "0"}\n', "line 1 is no checkpoint"),
        ('{"partition": "9", "sequence": 1}\n', "hub orders has no partition 9; it has 0, 1"),
    ],
)
def test_a_file_that_cannot_be_restored(shop: Shop, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "saved.jsonl"
    file.write_text(text)
    assert why in refused(shop.run("checkpoints", "import", str(file), "--execute"), code=2)


# -- reset ----------------------------------------------------------------------------------------


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
def test_to_a_position(shop: Shop, to: str, sequences: list[int]) -> None:
    shop.write(shop.checkpoint("0", 5))
    assert shop.run("checkpoints", "reset", "--to", to, "--execute").exit_code == 0
    assert [one.sequence for one in shop.stored().values()] == sequences


def test_the_offset_is_that_of_the_last_event_handled(shop: Shop) -> None:
    """Some clients resume by the offset alone."""
    assert shop.run("checkpoints", "reset", "--to", "seq:4", "--execute").exit_code == 0
    assert shop.stored()["0"].offset == event_at(shop.connection, "0", 3).offset


def test_a_preview_changes_nothing(shop: Shop) -> None:
    shop.write(shop.checkpoint("0", 5), shop.checkpoint("1", 9))
    found = shop.run("checkpoints", "reset", "--to", "seq:4")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "PARTITION  CURRENT  NEW  EFFECT",
        "0          5        3    re-reads 2 events",
        "1          9        3    re-reads 6 events",
    ]
    assert found.stderr == "Preview only. Add --execute to do it.\n"
    assert shop.stored()["0"].sequence == 5


def test_by_so_many_events_and_one_partition_only(shop: Shop) -> None:
    shop.write(shop.checkpoint("0", 5), shop.checkpoint("1", 5))
    done = shop.run(
        "checkpoints", "reset", "--shift-by", "-2", "-p", "1", "--execute", "-o", "json"
    )
    assert done.exit_code == 0
    assert objects(done.stdout) == [
        {"partition": "1", "from": 5, "to": 3, "effect": "re-reads 2 events"}
    ]
    assert [one.sequence for one in shop.stored().values()] == [5, 3]


def test_not_while_somebody_owns_it(shop: Shop) -> None:
    shop.write(Ownership("0", "anna", 4), shop.checkpoint("0", 5))
    preview = shop.run("checkpoints", "reset", "--to", "earliest")
    assert preview.stderr == (
        "Preview only. anna owns these partitions: stop them, then add --execute.\n"
    )
    done = shop.run("checkpoints", "reset", "--to", "earliest", "--execute")
    assert done.exit_code == 1
    assert "nothing was changed: anna owns these partitions" in done.stderr
    assert shop.stored()["0"].sequence == 5
    assert (
        shop.run("checkpoints", "reset", "--to", "earliest", "--execute", "--force").exit_code == 0
    )
    assert shop.stored()["0"].sequence == -1
    assert shop.stored()["0"].epoch == 1  # nobody is fenced off by it


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([], "say where to: either --to POSITION or --shift-by N"),
        (["--to", "latest", "--shift-by", "1"], "say where to"),
        (["--to", "soon"], "invalid position 'soon'"),
        (["--to", "latest", "-p", "7"], "hub orders has no partition 7; it has 0, 1"),
        (["--shift-by", "1"], "the checkpoint of partition 0 has no sequence number"),
    ],
)
def test_what_cannot_be_reset(shop: Shop, args: list[str], why: str) -> None:
    assert why in refused(shop.run("checkpoints", "reset", *args), code=2)


def test_the_export_is_json_lines(shop: Shop) -> None:
    shop.write(shop.checkpoint("0", 3))
    found = shop.run("checkpoints", "export")
    told = json.loads(found.stdout)
    assert (told["partition"], told["sequence"]) == ("0", 3)
