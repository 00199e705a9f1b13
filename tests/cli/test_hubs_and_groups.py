"""`pumphouse hubs` and `pumphouse groups`."""

from __future__ import annotations

import pytest

from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, good, objects, refused


def test_hubs_are_created_listed_and_deleted(call: Call, event_hub: EmbeddedHub) -> None:
    assert good(call("hubs", "create", "doors", "--partitions", "8")) == (
        "created hub doors with 8 partitions\n"
    )
    assert event_hub.hubs == {"doors": 8, "orders": 2}
    head, *rows = good(call("hubs", "list")).splitlines()
    assert head.split() == ["NAME", "PARTITIONS", "CREATED"]
    assert [row.split()[:2] for row in rows] == [["doors", "8"], ["orders", "2"]]
    assert good(call("hubs", "delete", "doors")) == "deleted hub doors\n"
    assert event_hub.hubs == {"orders": 2}


def test_hubs_in_json(call: Call) -> None:
    created = objects(good(call("hubs", "create", "doors", "-o", "json")))
    assert [(hub["hub"], hub["partitions"]) for hub in created] == [("doors", 4)]
    assert objects(good(call("hubs", "list", "-o", "json")))[0] == created[0]
    deleted = objects(good(call("hubs", "delete", "doors", "-o", "json")))
    assert deleted == [{"hub": "doors", "deleted": True}]


def test_groups_are_created_listed_and_deleted(call: Call, event_hub: EmbeddedHub) -> None:
    assert good(call("groups", "create", "archive", "--hub", "orders")) == (
        "created consumer group archive\n"
    )
    assert good(call("groups", "list", "--hub", "orders")) == "$Default\narchive\n"
    listed = objects(good(call("groups", "list", "--hub", "orders", "-o", "json")))
    assert listed == [{"group": "$Default"}, {"group": "archive"}]
    assert good(call("groups", "delete", "archive", "--hub", "orders")) == (
        "deleted consumer group archive\n"
    )
    assert event_hub.groups("orders") == ["$Default"]


def test_the_default_hub_is_the_entity_path(call: Call, event_hub: EmbeddedHub) -> None:
    connection = event_hub.connection_string("orders")
    created = good(call("groups", "create", "archive", "-o", "json", connection=connection))
    assert objects(created) == [{"group": "archive", "created": True}]
    assert event_hub.groups("orders") == ["$Default", "archive"]
    assert "no hub is named" in refused(call("groups", "list"), code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hubs", "create", "orders"], "hub 'orders' already exists"),
        (["hubs", "create", "no name"], "invalid name 'no name' for a hub"),
        (["hubs", "create", "many", "--partitions", "2001"], "1 to 2000 partitions (got 2001)"),
        (["hubs", "delete", "nowhere"], "hub 'nowhere' not found; existing hubs: orders"),
        (["groups", "list", "--hub", "nowhere"], "hub 'nowhere' not found"),
        (["groups", "create", "$default", "--hub", "orders"], "already exists in hub 'orders'"),
        (["groups", "delete", "nobody", "--hub", "orders"], "consumer group 'nobody' not found"),
        (
            ["groups", "delete", "$Default", "--hub", "orders"],
            "is part of every hub and cannot be deleted",
        ),
    ],
)
def test_errors_of_the_hub_are_reported(call: Call, args: list[str], message: str) -> None:
    assert message in refused(call(*args))


def test_a_refused_key_is_reported_without_the_key(call: Call, event_hub: EmbeddedHub) -> None:
    event_hub.create_rule("ear", [Claim.LISTEN])
    weak = refused(call("hubs", "list", connection=event_hub.connection_string(rule="ear")))
    assert "'Manage' claim(s) are required" in weak
    wrong = event_hub.connection_string().replace("SharedAccessKey=", "SharedAccessKey=hush")
    message = refused(call("hubs", "list", connection=wrong))
    assert "does not accept the key of 'RootManageSharedAccessKey'" in message
    assert "hush" not in message


def test_a_hub_grows(call: Call, event_hub: EmbeddedHub) -> None:
    assert good(call("hubs", "grow", "orders", "--partitions", "5")) == (
        "hub orders has 5 partitions\n"
    )
    assert event_hub.hubs == {"orders": 5}
    (grown,) = objects(good(call("hubs", "grow", "orders", "--partitions", "6", "-o", "json")))
    assert grown["partitions"] == 6
    message = refused(call("hubs", "grow", "orders", "--partitions", "2"), code=1)
    assert "has 6 partitions; the number can only grow" in message
