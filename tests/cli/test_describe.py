"""`pumphouse groups describe`: owner, lag and health of partitions."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

from pumphouse.leases.model import Ownership
from tests.cli.conftest import Call, Program, good, objects, refused
from tests.cli.orders_group import OrdersGroup


def test_describe_shows_owner_lag_and_status(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    orders.write(Ownership("1", "bert", 7), orders.checkpoint("1", 4))
    lines = good(orders.run("groups", "describe", "$Default")).splitlines()
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


def test_a_partition_without_an_owner_is_a_problem(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    done = orders.run("groups", "describe", "$Default", "-o", "json")
    assert done.exit_code == 3
    (result,) = objects(done.stdout)
    assert result["state"] == "moving"
    assert [line["verdict"] for line in result["partitions"]] == ["ok", "no owner"]
    assert result["partitions"][1]["owner"] is None
    assert result["partitions"][0]["lease_left_seconds"] > 0


def test_describe_of_an_unused_group(orders: OrdersGroup) -> None:
    done = orders.run("groups", "describe", "$Default")
    assert done.exit_code == 3
    assert "nobody" in done.stdout
    assert done.stdout.count("no owner") == 2


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


def test_an_unknown_hub_is_reported(call: Call, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "leases.db"))
    assert "nowhere" in refused(call("groups", "describe", "g", "--hub", "nowhere", *store))
