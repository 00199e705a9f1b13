"""`pumphouse groups describe`: owner, lag and health of partitions."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from pumphouse.cli.common.group_access import GroupAccess
from pumphouse.cli.describe import take_overview
from pumphouse.client.base import PartitionProperties
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from tests.cli.conftest import Call, Program, good, objects, refused
from tests.cli.orders_group import OrdersGroup


def test_describe_shows_owner_lag_and_status(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    orders.write(Ownership("1", "bert", 7), orders.checkpoint("1", 4))
    lines = good(orders.run("groups", "describe", "$Default")).splitlines()
    assert lines[0].split() == [
        "GROUP",
        "HUB",
        "STATUS",
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
    assert second[9] == "ok"
    (row,) = (row for row in orders.rows() if row.partition == "1")
    orders.write(replace(row, state="stopped"))
    stopped = orders.run("groups", "describe", "$Default").stdout.splitlines()[-1]
    assert stopped.split()[-1] == "stopped"


def test_a_partition_without_an_owner_is_a_problem(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    done = orders.run("groups", "describe", "$Default", "-o", "json")
    assert done.exit_code == 3
    (result,) = objects(done.stdout)
    assert result["status"] == "moving"
    assert [line["status"] for line in result["partitions"]] == ["ok", "no owner"]
    assert result["partitions"][1]["owner"] is None
    assert result["partitions"][0]["lease_left_seconds"] > 0


def test_the_ownership_table_has_the_age_of_the_lease_and_the_offset(orders: OrdersGroup) -> None:
    checkpoint = orders.checkpoint("0", 9)
    orders.write(Ownership("0", "anna", 4), checkpoint)
    (result,) = objects(orders.run("groups", "describe", "$Default", "-o", "json").stdout)
    first, second = result["partitions"]
    assert first["lease_age_seconds"] >= 0
    assert first["offset"] == checkpoint.offset is not None
    assert (second["lease_age_seconds"], second["offset"]) == (None, None)


class BusyGroup:
    """A group with one partition. A new event is handled before each request."""

    group = Group("localhost", "orders")

    def __init__(self) -> None:
        self.end = 0

    def handle(self) -> int:
        self.end += 1
        return self.end

    async def partitions(self) -> list[PartitionProperties]:
        return [PartitionProperties("orders", "0", 0, self.handle(), "0", 0, False)]

    async def listing(self) -> Listing:
        self.handle()
        return Listing((Ownership("0", "anna", 1),))

    async def checkpoints(self) -> dict[str, Checkpoint]:
        return {"0": Checkpoint(self.group, "0", self.handle(), "0", 1)}


async def test_a_checkpoint_that_moves_meanwhile_is_not_ahead_of_its_partition() -> None:
    shown = await take_overview(cast(GroupAccess, BusyGroup()), 30.0, None)
    assert [line.status for line in shown.lines] == ["ok"]


def test_describe_of_an_unused_group(orders: OrdersGroup) -> None:
    orders.write()
    done = orders.run("groups", "describe", "$Default")
    assert done.exit_code == 3
    assert "unowned" in done.stdout
    assert done.stdout.count("no owner") == 2


def test_the_old_keys_state_and_verdict_stay_for_one_version(orders: OrdersGroup) -> None:
    def described() -> dict[str, Any]:
        (result,) = objects(orders.run("groups", "describe", "$Default", "-o", "json").stdout)
        return result

    orders.write()
    unowned = described()
    assert (unowned["status"], unowned["state"]) == ("unowned", "nobody")
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    moving = described()
    assert moving["state"] == moving["status"] == "moving"
    assert [line["verdict"] for line in moving["partitions"]] == ["ok", "no owner"]


def test_watch_shows_changes_until_ctrl_c(
    orders: OrdersGroup, program: Callable[..., Program]
) -> None:
    orders.write(Ownership("0", "anna", 4))
    watching = program(
        *("groups", "describe", "$Default", "--watch", "--every", "100ms", "-o", "json"),
        *("--store", str(orders.path), "--hub", "orders"),
        connection=orders.connection,
    )

    def owners() -> list[str | None]:
        return [row["owner"] for row in json.loads(watching.line())["partitions"]]

    assert owners() == ["anna", None]
    orders.write(Ownership("1", "bert", 1))
    while owners() != ["anna", "bert"]:
        pass
    assert watching.end(signal.SIGINT) == (130, "\n")


def test_an_unknown_hub_is_reported(call: Call) -> None:
    store = ("--store", "memory:")
    assert "nowhere" in refused(call("groups", "describe", "g", "--hub", "nowhere", *store))
