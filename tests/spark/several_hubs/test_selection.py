"""Which hubs a query reads, and the options and offsets of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.offsets import from_json, hubs_in, join_hubs, part_of_hub
from pumphouse.spark.options import read_sink
from pumphouse.spark.several_hubs.selection import HubSelection, reads_several
from pumphouse.spark.several_hubs.sources import Sources, read_sources

NAMESPACE = "Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=a2V5"


def sources(connection: str = NAMESPACE, **options: str) -> Sources:
    given = {"connectionString": connection} | options
    return read_sources(given, streaming=True, now_ms=0, environment={})


@pytest.mark.parametrize(
    ("options", "selection"),
    [
        ({"name": "sensors"}, None),
        ({"name": "sensors, doors"}, HubSelection(("sensors", "doors"))),
        ({"name": "sensors,SENSORS"}, HubSelection(("SENSORS",))),
        ({"name": "sensors,"}, HubSelection(("sensors",))),
        ({"eventhubs.NamePattern": "sens.*"}, HubSelection(pattern="sens.*")),
    ],
)
def test_a_query_selects_hubs(options: dict[str, str], selection: HubSelection | None) -> None:
    assert sources(**options).selection == selection
    assert reads_several(options) == (selection is not None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "a", "namePattern": "b"}, "exclude each other"),
        ({"name": ","}, "invalid name"),
        ({"namePattern": "("}, r"invalid namePattern '\('"),
        ({"name": "a,b", "connection": NAMESPACE + ";EntityPath=a"}, "EntityPath=a"),
        ({"name": "a,b", "startingPosition": "soon"}, "startingPosition"),
        ({"name": "a,b", "startingPositions": '{"c": {"0": 1}}'}, "for hub c.* reads a, b"),
        ({"name": "a,b", "startingPositions": '{"a": 7}'}, "invalid startingPositions"),
    ],
)
def test_a_selection_that_cannot_work_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        sources(**options)


def test_a_query_writes_to_one_hub() -> None:
    with pytest.raises(OptionError, match="name=a,b names several hubs"):
        read_sink({"connectionString": NAMESPACE, "name": "a,b"})


def test_a_pattern_matches_whole_names_in_any_case() -> None:
    chosen = HubSelection(pattern="sens.*").choose(
        ["doors", "Sensors-2", "sensors-1", "my-sensors"]
    )
    assert chosen == ("Sensors-2", "sensors-1")


def test_each_hub_has_its_options() -> None:
    scala = json.dumps({"ehName": "b", "partitionId": 1})
    starts = {"0": "earliest", "a": {"1": 7}, scala: {"offset": "@latest"}}
    query = sources(name="a,b", startingPositions=json.dumps(starts), maxBytesPerTrigger="2m")
    a, b = query.of_hub("a", 2), query.of_hub("b", 2)
    assert (a.identity.hub, b.identity.hub) == ("a", "b")
    assert a.starts == {"0": EARLIEST, "1": Position("sequence", "7", inclusive=True)}
    assert b.starts == {"0": EARLIEST, "1": LATEST}
    assert a.limits.bytes == 1 << 20  # half of what all hubs together may take
    assert "a2V5" not in repr(query)


PARTS: dict[str, dict[str, Any]] = {
    "a": {"a": {"0": 120}, "@hub": {"created": 5}},
    "b": {"b": {"0": 7, "1": 8}, "@hub": {"created": 6}, "@tenancy": {"host": "x"}},
}


def test_the_offset_of_several_hubs_has_the_offset_of_each() -> None:
    joined = join_hubs(PARTS)
    assert joined["a"] == {"0": 120}
    assert hubs_in(joined) == ["a", "b"]
    assert {hub: part_of_hub(joined, hub) for hub in "ab"} == PARTS
    assert part_of_hub(joined, "c") == {"c": {}}


def test_the_offset_of_one_hub_is_that_of_a_query_of_one_hub() -> None:
    assert part_of_hub(PARTS["a"], "A") == {"A": {"0": 120}, "@hub": {"created": 5}}
    assert part_of_hub(PARTS["a"], "b") == {"b": {}}
    with pytest.raises(OptionError, match="set name=a,b as before"):
        from_json("a", join_hubs(PARTS))
