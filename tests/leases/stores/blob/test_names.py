"""Names of blobs: those of the official SDKs, and our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.leases.model import Group
from pumphouse.leases.stores.blob import names
from pumphouse.leases.stores.blob.names import escaped, unescaped
from tests.growth import assert_linear

GROUP = Group("House.ServiceBus.Windows.Net", "Sensors", "$Default")
PREFIX = "house.servicebus.windows.net/sensors/$default/"


@pytest.mark.parametrize(
    ("name", "segment"),
    [("a.b", "a.b"), (".a..", "%2Ea%2E%2E"), ("...", "%2E%2E%2E"), ("a.\n", "a.%0A")],
)
def test_outer_dots_of_a_host_name_are_escaped(name: str, segment: str) -> None:
    assert escaped(name) == segment
    assert unescaped(segment) == name


def test_a_host_name_is_escaped_in_linear_time() -> None:
    assert_linear(escaped, lambda size: "a" + "." * size + "a", 5000)


def test_names_are_those_of_the_sdks() -> None:
    assert names.prefix(GROUP) == PREFIX
    assert names.ownership(GROUP, "7") == f"{PREFIX}ownership/7"
    assert names.checkpoint(GROUP, "7") == f"{PREFIX}checkpoint/7"
    assert names.stamp(GROUP, "7") == f"{PREFIX}stamp/7"
    assert names.member(GROUP, "VM-1.local") == f"{PREFIX}member/VM-1.local"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ownership/7", ("ownership", "7")),
        ("Ownership/7", ("ownership", "7")),
        ("checkpoint/7", ("checkpoint", "7")),
        ("stamp/7", ("stamp", "7")),
        ("member/VM-1", ("member", "VM-1")),
        ("ownership/", ("", "")),
        ("ownership/ownership/7", ("", "")),  # of a hub with a longer name
        ("7", ("", "")),
        ("capture/2026", ("", "")),
    ],
)
def test_a_listed_blob_has_a_kind_and_a_name(name: str, kind: tuple[str, str]) -> None:
    assert names.kind_and_name(PREFIX + name, PREFIX) == kind


@given(st.text(min_size=1, max_size=40))
def test_any_host_has_a_member_record(name: str) -> None:
    segment = names.escaped(name)
    assert "/" not in segment
    assert segment.strip(".") == segment  # URL libraries would rewrite it
    assert names.unescaped(segment) == name


@pytest.mark.parametrize(
    "group", [Group("", "h", "g"), Group("n", "", "g"), Group("n", "h", ""), Group("n", "h", "a/b")]
)
def test_a_group_needs_its_names(group: Group) -> None:
    with pytest.raises(OptionError, match="invalid consumer group"):
        names.prefix(group)


@pytest.mark.parametrize("partition", ["", "0/1"])
def test_a_partition_needs_an_id(partition: str) -> None:
    with pytest.raises(OptionError, match="invalid partition id"):
        names.ownership(GROUP, partition)


def test_a_host_needs_a_name() -> None:
    with pytest.raises(OptionError, match="must not be empty"):
        names.member(GROUP, "")


@pytest.mark.parametrize("name", ["Upper", "a", "-a-", "a--b", "with space", "x" * 64, ""])
def test_a_container_has_a_name_that_azure_allows(name: str) -> None:
    with pytest.raises(OptionError, match="invalid container name"):
        names.checked_container(name)
    assert names.checked_container("check-points-2") == "check-points-2"
