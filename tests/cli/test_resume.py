"""`pumphouse groups resume`: a partition that an event has stopped starts again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.leases.model import Ownership
from tests.cli.conftest import Program, good, objects, refused
from tests.cli.orders_group import OrdersGroup

HANDLER = """
from pathlib import Path

def handle(partition, batch):
    if partition.id == "0" and not Path("fixed").exists():
        raise ValueError("not fixed yet")
    with open("seen.txt", "a") as file:
        file.writelines(f"{partition.id} {event.body.decode()}\\n" for event in batch)
"""


def statuses(orders: OrdersGroup) -> tuple[str, list[str], int]:
    done = orders.run("groups", "describe", "$Default", "-o", "json")
    (seen,) = objects(done.stdout)
    return seen["status"], [line["status"] for line in seen["partitions"]], done.exit_code


def until_statuses(orders: OrdersGroup, state: str, expected: list[str], code: int) -> None:
    while statuses(orders) != (state, expected, code):  # the timeout of the test is the deadline
        time.sleep(0.1)


def test_a_host_that_poison_stopped_is_seen_and_resumed(
    orders: OrdersGroup,
    program: Callable[..., Program],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`groups describe` and `doctor` show it without waiting, and a request resumes it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app_that_stops.py").write_text(HANDLER)
    options = ("--host", "anna", "--retries", "0", "--lease", "6s", "--checkpoint-every", "1")
    process = program(
        *("process", "app_that_stops:handle", "-o", "json", "--store", str(orders.path)),
        *options,
        connection=orders.connection,
    )
    while json.loads(process.line())["event"] != "error":
        pass
    until_statuses(orders, "stopped", ["stopped", "ok"], 3)
    ill = orders.run("doctor")
    assert ill.exit_code == 3
    assert (
        "fail  partition 0 of consumer group $Default is stopped: it was stopped by" in ill.stdout
    )
    assert "then `pumphouse groups resume '$Default' --hub orders`" in ill.stdout
    (tmp_path / "fixed").touch()
    assert good(orders.run("groups", "resume", "$Default")) == "anna has resumed partition 0\n"
    until_statuses(orders, "stable", ["ok", "ok"], 0)
    well = orders.run("doctor")
    assert well.exit_code == 0, well.stdout
    assert "ok    2 of 2 partitions owned by 1 host" in well.stdout
    handled = (tmp_path / "seen.txt").read_text().splitlines()
    assert [line for line in handled if line[0] == "0"] == [f"0 {n}" for n in range(10)]


@pytest.mark.parametrize("state", ["stuck", "behind"])
def test_a_single_overview_shows_what_the_owner_reports(orders: OrdersGroup, state: str) -> None:
    orders.write(Ownership("0", "anna", 4), orders.checkpoint("0", 9))
    orders.write(Ownership("1", "anna", 7, state=state), orders.checkpoint("1", 4))
    _, found, code = statuses(orders)
    assert (found, code) == (["ok", state], 3)
    assert orders.run("doctor").exit_code == 3


def test_an_owner_that_does_not_respond_is_reported(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4, state="stopped"))
    done = orders.run("groups", "resume", "$Default", "--lease", "1s", "-o", "json")
    assert done.exit_code == 3
    assert objects(done.stdout) == [{"partition": "0", "owner": "anna", "resumed": False}]


def test_only_a_stopped_partition_can_be_resumed(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4))
    done = orders.run("groups", "resume", "$Default")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no partition of consumer group $Default is stopped" in done.stderr
    served = refused(orders.run("groups", "resume", "$Default", "-p", "0"), code=2)
    assert served == "partition 0 cannot be resumed: it is not stopped at anna"
    free = refused(orders.run("groups", "resume", "$Default", "-p", "1"), code=2)
    assert free.startswith("partition 1 cannot be resumed: it has no live owner")


@pytest.mark.parametrize("args", [[], ["-p", "0"]])
def test_a_group_that_does_not_exist_is_reported(orders: OrdersGroup, args: list[str]) -> None:
    text = refused(orders.run("groups", "resume", "nope", *args))
    assert text.startswith("hub 'orders' has no consumer group 'nope': create it, or correct")


def test_a_partition_that_does_not_exist_is_reported(orders: OrdersGroup) -> None:
    orders.write(Ownership("0", "anna", 4, state="stopped"))
    text = refused(orders.run("groups", "resume", "$Default", "-p", "9"), code=2)
    assert text == "hub orders has no partition 9; it has 0, 1"


def test_a_group_that_no_host_has_joined_yet_has_nothing_to_resume(orders: OrdersGroup) -> None:
    done = orders.run("groups", "resume", "$Default")
    assert done.exit_code == 0
    assert "no partition of consumer group $Default is stopped" in done.stderr
