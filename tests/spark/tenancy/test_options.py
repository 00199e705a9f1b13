"""The options of a query that shares its consumer group."""

from __future__ import annotations

import pytest

from pumphouse.errors import OptionError
from pumphouse.spark.options import SourceOptions, read_source
from pumphouse.spark.tenancy.options import processor_options

HUB = "Endpoint=sb://name.servicebus.windows.net;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=sensors"


def read(**options: str) -> SourceOptions:
    return read_source({"connectionString": HUB} | options, streaming=True, now_ms=0)


def test_by_default_all_partitions_are_read() -> None:
    assert read().tenancy is None
    assert read(assignment="all").tenancy is None


def test_the_times_of_a_tenant_depend_on_its_assignment() -> None:
    steady = read(assignment="steady", store="sqlite:///x.db", queryName="my query!").tenancy
    assert steady is not None
    assert (steady.host, steady.keeps_partitions) == ("spark-my-query", False)
    assert (steady.lease_s, steady.renew_s, steady.interval_s) == (30, 10, 10)
    fixed = read(assignment="Fixed:4", store="sqlite:///x.db", host="watch").tenancy
    assert fixed is not None
    assert (fixed.host, fixed.keeps_partitions) == ("watch", True)
    assert (fixed.lease_s, fixed.renew_s, fixed.interval_s) == (60, 20, 1)
    assert processor_options(fixed).max_partitions == 4
    secret = read(assignment="steady", store="AccountName=a;AccountKey=SECRET;Container=c")
    assert "SECRET" not in repr(secret)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"assignment": "steady"}, "needs a store"),
        ({"store": "sqlite:///x.db"}, "store needs an assignment: use steady"),
        ({"host": "a"}, "host needs an assignment: use steady"),
        ({"assignment": "steady", "store": "memory:"}, "belongs to one process"),
        ({"assignment": "some", "store": "x.db"}, "unknown strategy 'some'"),
        (
            {"assignment": "eph", "store": "x.db"},
            "use steady, steady:rates, greedy, balanced, fixed:N",
        ),
        ({"assignment": "fixed:0", "store": "x.db"}, "at least 1"),
        ({"assignment": "steady", "store": "x.db", "partitions": "0"}, "partitions and assignment"),
        ({"assignment": "steady", "store": "x.db", "checkpointStore": "y.db"}, "checkpointStore"),
        (
            {"assignment": "steady", "store": "x.db", "useExclusiveReceiver": "false"},
            "useExclusiveReceiver",
        ),
        (
            {"assignment": "steady", "store": "x.db", "leaseDuration": "10s"},
            "leaseDuration, renewInterval and handOff do not fit",
        ),
    ],
)
def test_an_invalid_combination_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read(**options)


def test_a_batch_query_cannot_share() -> None:
    with pytest.raises(OptionError, match="assignment is for streams"):
        read_source({"connectionString": HUB, "assignment": "steady"}, streaming=False, now_ms=0)
