"""Partitions of keys and addresses of links, as Azure's clients compute and write them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import AmqpError, OptionError
from pumphouse.hub.routing import (
    Address,
    check_group_name,
    check_hub_name,
    hash_code,
    hub_of,
    parse_address,
    partition_for,
    path_of,
)
from tests.growth import assert_linear

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "key_vectors.json").read_text(encoding="utf-8")
)["vectors"]


def test_keys_have_the_partition_of_the_javascript_client() -> None:
    for vector in VECTORS:
        assert hash_code(vector["key"]) == vector["hash"], vector
        assert partition_for(vector["key"], vector["partitions"]) == vector["partition"], vector


def test_the_vectors_cover_every_tail_length_and_both_signs() -> None:
    lengths = {len(v["key"].encode()) for v in VECTORS}
    assert lengths >= set(range(41))
    assert {v["hash"] < 0 for v in VECTORS} == {True, False}


@given(st.text(), st.integers(1, 2000))
def test_every_key_has_one_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions
    assert partition_for(key, partitions) == partition_for(key, partitions)
    assert -0x8000 <= hash_code(key) <= 0x7FFF


# The Python SDK's buffered producer takes Python's floored remainder where the service truncates,
# and hashes code points where the service hashes UTF-8. Each share is that of the keys whose
# partition differs.
@pytest.mark.parametrize(
    ("alphabet", "partitions", "share"),
    [
        ("abcdefghijklmnopqrstuvwxyz0123456789", 1, 0.00),
        ("abcdefghijklmnopqrstuvwxyz0123456789", 2, 0.00),
        ("abcdefghijklmnopqrstuvwxyz0123456789", 4, 0.25),
        ("abcdefghijklmnopqrstuvwxyz0123456789", 8, 0.37),
        ("abcdefghijklmnopqrstuvwxyz0123456789", 32, 0.47),
        ("абвгдежзийклмнопрстуфхцчшщъыьэюя", 4, 0.75),
        ("абвгдежзийклмнопрстуфхцчшщъыьэюя", 32, 0.97),
    ],
)
def test_where_the_python_sdk_differs_from_the_service(
    alphabet: str, partitions: int, share: float
) -> None:
    resolver_module = pytest.importorskip("azure.eventhub._buffered_producer._partition_resolver")
    resolver = resolver_module.PartitionResolver([str(p) for p in range(partitions)])
    rng = random.Random(20180614)
    keys = ["".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(4000)]
    differ = sum(
        resolver.get_partition_id_by_partition_key(key) != str(partition_for(key, partitions))
        for key in keys
    )
    assert differ / len(keys) == pytest.approx(share, abs=0.03)


@given(st.text(st.characters(max_codepoint=127)))
def test_the_python_sdk_agrees_on_the_hash_of_ascii(key: str) -> None:
    resolver = pytest.importorskip("azure.eventhub._buffered_producer._partition_resolver")
    assert resolver.generate_hash_code(key) == hash_code(key)


RECEIVER = Address("receiver", hub="eh1", group="$Default", partition="0")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("$cbs", Address("cbs")),
        ("amqps://localhost:5672/$cbs", Address("cbs")),
        ("$management", Address("management")),
        ("$Management", Address("management")),
        ("eh1/$management", Address("management", hub="eh1")),
        ("eh1", Address("hub", hub="eh1")),
        ("/eh1", Address("hub", hub="eh1")),
        ("eh1/", Address("hub", hub="eh1")),
        ("amqps://localhost:5672/eh1", Address("hub", hub="eh1")),
        ("SB://ns.servicebus.windows.net/eh1", Address("hub", hub="eh1")),
        ("amqp://[::1]:5672/eh1", Address("hub", hub="eh1")),
        ("eh1/Partitions/3", Address("partition", hub="eh1", partition="3")),
        ("eh1/partitions/03", Address("partition", hub="eh1", partition="03")),
        ("eh1/Publishers/dev-7", Address("publisher", hub="eh1", publisher="dev-7")),
        ("eh1/PUBLISHERS/dev%207", Address("publisher", hub="eh1", publisher="dev 7")),
        ("eh1/ConsumerGroups/$Default/Partitions/0", RECEIVER),
        ("amqps://localhost:5672/eh1/ConsumerGroups/$Default/Partitions/0", RECEIVER),
        ("sb://localhost/eh1/consumergroups/%24Default/partitions/0", RECEIVER),
        ("EH1/CONSUMERGROUPS/$default/PARTITIONS/0",
         Address("receiver", hub="EH1", group="$default", partition="0")),
        # Hub names may have slashes, plain or escaped.
        ("site/floor-2/doors", Address("hub", hub="site/floor-2/doors")),
        ("site%2Fdoors", Address("hub", hub="site/doors")),
        ("site/doors/Partitions/3", Address("partition", hub="site/doors", partition="3")),
        ("site/doors/$management", Address("management", hub="site/doors")),
        ("site/doors/ConsumerGroups/g/Partitions/1",
         Address("receiver", hub="site/doors", group="g", partition="1")),
        # A name may be one of the path words if it has no slash.
        ("partitions/Partitions/3", Address("partition", hub="partitions", partition="3")),
        ("eh1/ConsumerGroups/publishers/Partitions/1",
         Address("receiver", hub="eh1", group="publishers", partition="1")),
        ("eh1/ConsumerGroups/consumergroups/Partitions/1",
         Address("receiver", hub="eh1", group="consumergroups", partition="1")),
    ],
)  # fmt: skip
def test_an_address_is_parsed(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("", "com.microsoft:argument-error"),
        ("/", "com.microsoft:argument-error"),
        ("amqps://localhost:5672", "com.microsoft:argument-error"),
        ("eh1/Publishers/dev-7/more", "com.microsoft:argument-error"),
        ("eh1/Partitions", "com.microsoft:argument-error"),
        ("eh1/Partitions/", "com.microsoft:argument-error"),
        ("eh1/Partitions/0/1", "com.microsoft:argument-error"),
        ("eh1/ConsumerGroups/g", "com.microsoft:argument-error"),
        ("eh1/ConsumerGroups//Partitions/0", "com.microsoft:argument-error"),
        ("eh1/Publishers/dev%2F7", "com.microsoft:argument-error"),
        ("eh1%2FPartitions%2F0", "com.microsoft:argument-error"),
        ("eh1/Partitions/0/$management", "com.microsoft:argument-error"),
        ("eh1/$cbs", "amqp:not-found"),
        ("no such hub", "amqp:not-found"),
        ("-eh1", "amqp:not-found"),
        ("a/../b", "amqp:not-found"),
        ("a/%2e%2e/b", "amqp:not-found"),
        ("eh1/ConsumerGroups/$Other/Partitions/0", "amqp:not-found"),
    ],
)
def test_an_invalid_address_is_refused(text: str, condition: str) -> None:
    with pytest.raises(AmqpError) as refusal:
        parse_address(text)
    assert refusal.value.condition == condition
    assert f"'{text}'" in refusal.value.description


def test_an_impossible_name_is_refused_with_the_text_of_the_service() -> None:
    with pytest.raises(AmqpError) as refusal:
        parse_address("no such hub")
    assert refusal.value.description == ("The messaging entity 'no such hub' could not be found.")


inner = st.text("abcXYZ019._-", max_size=8)
segments = st.builds(
    lambda a, b, c: a + b + c, st.sampled_from("aZ0"), inner, st.sampled_from("b9")
)
hub_names = st.lists(segments, min_size=1, max_size=3).map("/".join) | st.sampled_from(
    ["Partitions", "publishers", "ConsumerGroups"]
)
group_names = hub_names | st.just("$Default")


@given(hub_names, group_names, st.integers(0, 2000).map(str), st.sampled_from(["", "sb://h:1/"]))
def test_the_path_of_an_address_is_parsed_back(
    hub: str, group: str, partition: str, start: str
) -> None:
    check_hub_name(hub)
    check_group_name(group, slashes=True)
    for address in (
        Address("hub", hub=hub),
        Address("management", hub=hub),
        Address("partition", hub=hub, partition=partition),
        Address("publisher", hub=hub, publisher=f"dev {partition}"),
        Address("receiver", hub=hub, group=group, partition=partition),
    ):
        assert parse_address(start + address.path) == address
        assert hub_of(address.path) == hub
    assert hub_of(f"{hub}/consumergroups/{group}") == hub


pieces = st.sampled_from(
    ["eh1", "/", "Partitions", "ConsumerGroups", "Publishers", "$management", "$cbs", "%2F", "0"]
)


@given(st.text() | st.lists(pieces).map("".join))
def test_any_text_is_an_address_or_an_amqp_error(text: str) -> None:
    with contextlib.suppress(AmqpError):
        address = parse_address(text)
        assert address.hub or address.kind in ("cbs", "management")
        assert "/" not in address.partition + address.publisher
        assert parse_address(address.path) == address or "%" in text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sb://localhost:5672/eh1/", "eh1"),
        ("https://ns.servicebus.windows.net", ""),
        ("/eh1/ConsumerGroups/g", "eh1/ConsumerGroups/g"),
        ("", ""),
    ],
)
def test_the_path_of_a_resource(text: str, path: str) -> None:
    assert path_of(text) == path


# --- long text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a" * 1025, "sb://" * 300, "/ConsumerGroups/" * 4096])
def test_an_address_longer_than_a_kibibyte_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(AmqpError) as refusal:
        parse_address(text)
    assert refusal.value.condition == "amqp:invalid-field"
    assert refusal.value.description == (
        f"The address has {len(text)} characters; at most 1024 are allowed."
    )


def test_the_longest_valid_address_is_accepted() -> None:
    hub, group, host = "h" * 256, "g" * 50, "n" * 250
    address = Address("receiver", hub=hub, group=group, partition="1023")
    assert parse_address(f"amqps://{host}:5671/{address.path}") == address


LONG_PATHS = [
    "a",
    "a:",
    "://",
    "a://",
    "/ConsumerGroups/",
    "/ConsumerGroups//Partitions/",
    "/Partitions/",
    "/",
    "%2F",
    "a-",
]


@pytest.mark.parametrize("unit", LONG_PATHS)
@pytest.mark.parametrize("parse", [path_of, hub_of, check_hub_name, check_group_name])
def test_parsing_takes_linear_time(parse: Callable[[str], object], unit: str) -> None:
    """Also without the limit on the length: paths of tokens come from other places too."""
    assert_linear(parse, lambda count: "x" + unit * count + "!", 5000, OptionError)


@pytest.mark.parametrize(
    "name", ["a", "7", "eh1", "a-b_c.d", "site/doors", "x" * 256, "Partitions"]
)
def test_valid_hub_names(name: str) -> None:
    check_hub_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "-a", "a-", "a b", "дом", "a//b", "a/../b", "/a", "a/", "$Default", "a\n", "x" * 257,
     "a/Partitions/0", "a/publishers"],
)  # fmt: skip
def test_invalid_hub_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(OptionError, match="for a hub: use 1 to 256 letters") as refusal:
        check_hub_name(name)
    assert repr(name) in str(refusal.value)


@pytest.mark.parametrize("name", ["$Default", "$default", "g", "stage-2", "a.b_c", "x" * 50])
def test_valid_group_names(name: str) -> None:
    check_group_name(name)


@pytest.mark.parametrize("name", ["", "$Other", "x" * 51, "a b", "-a", "g/Partitions/1", "b/c"])
def test_invalid_group_names_are_refused_with_the_rule(name: str) -> None:
    rule = "for a consumer group: use 1 to 50 letters, digits and . _ - with"
    with pytest.raises(OptionError, match=rule):
        check_group_name(name)


def test_a_group_of_an_earlier_version_may_have_slashes() -> None:
    check_group_name("b/c", slashes=True)
    with pytest.raises(OptionError, match="for a consumer group"):
        check_group_name("g/Partitions/1", slashes=True)
