"""The config.json of Microsoft's emulator: accepted files, and errors with their paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.emulator_config import HubSpec, parse_config

ENTITIES = "UserConfig.NamespaceConfig[0].Entities"

# As published with the emulator.
SAMPLE = """{
    "UserConfig": {
        "NamespaceConfig": [
        {
            "Type": "EventHub",
            "Name": "emulatorNs1",
            "Entities": [
            {
                "Name": "eh1",
                "PartitionCount": 2,
                "ConsumerGroups": [
                {
                    "Name": "cg1"
                }
                ]
            }
            ]
        }
        ],
        "LoggingConfig": {
            "Type": "File"
        }
    }
}"""


def config(*entities: Any, **namespace: Any) -> str:
    """A file with these hubs."""
    spaces = [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": entities, **namespace}]
    return json.dumps(
        {"UserConfig": {"NamespaceConfig": spaces, "LoggingConfig": {"Type": "File"}}}
    )


def hub(name: Any = "eh1", count: Any = 2, *groups: Any) -> dict[str, Any]:
    entity = {"Name": name, "PartitionCount": count}
    return {**entity, "ConsumerGroups": [{"Name": group} for group in groups]} if groups else entity


# -- accepted files -------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_the_published_sample_is_accepted(strict: bool) -> None:
    assert parse_config(SAMPLE, strict) == (HubSpec("eh1", 2, ("cg1",)),)


@pytest.mark.parametrize(
    ("text", "hubs"),
    [
        (config(hub(count="2")), [HubSpec("eh1", 2)]),  # a number in quotes, as in older samples
        (
            config(hub("a"), hub("b/c", 32, "x", "y")),
            [HubSpec("a", 2), HubSpec("b/c", 32, ("x", "y"))],
        ),
        (config(hub("a", 2, "$default", "x")), [HubSpec("a", 2, ("x",))]),  # every hub has it
        (config(), []),
        (config(hub("a", 2000)), [HubSpec("a", 2000)]),  # more than the emulator allows
        (config(*(hub(f"h{n}") for n in range(50))), [HubSpec(f"h{n}", 2) for n in range(50)]),
        (config(hub(), Name="mine", Type=None), [HubSpec("eh1", 2)]),
        ("\ufeff" + SAMPLE.replace("PartitionC", "partitionc"), [HubSpec("eh1", 2, ("cg1",))]),
    ],
)
def test_valid_files_are_accepted(text: str, hubs: list[HubSpec]) -> None:
    assert list(parse_config(text)) == hubs


# -- refused files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "config.json is not JSON: line 1, column 2: "),
        ("[]", ": expected an object, found []"),
        ("{}", "UserConfig: expected an object, found nothing"),
        ('{"UserConfig": 3}', "UserConfig: expected an object, found 3"),
        (
            '{"UserConfig": {"NamespaceConfig": [{}, {}]}}',
            "UserConfig.NamespaceConfig: expected one namespace, found 2; ",
        ),
        (config(Entities={}), f"{ENTITIES}: expected a list, found {{}}"),
        (
            config(hub(), Type="ServiceBus"),
            'UserConfig.NamespaceConfig[0].Type: expected "EventHub", found "ServiceBus"',
        ),
        (
            config(hub(), hub("b"), hub("c", "x")),
            f'{ENTITIES}[2].PartitionCount: expected 1 to 2000, found "x"',
        ),
        (config(hub(count=0)), f"{ENTITIES}[0].PartitionCount: expected 1 to 2000, found 0"),
        (config(hub(count=2.0)), f"{ENTITIES}[0].PartitionCount: expected 1 to 2000, found 2.0"),
        (config(hub(count=True)), f"{ENTITIES}[0].PartitionCount: expected 1 to 2000, found true"),
        (config({"Name": "a"}), f"{ENTITIES}[0].PartitionCount: expected 1 to 2000, found nothing"),
        (config({"PartitionCount": 1}), f"{ENTITIES}[0].Name: expected a string, found nothing"),
        (config("eh1"), f'{ENTITIES}[0]: expected an object, found "eh1"'),
        (config(hub("-a")), f"{ENTITIES}[0].Name: invalid name '-a' for a hub: "),
        (config(hub("a", 1, "b c")), f"{ENTITIES}[0].ConsumerGroups[0].Name: invalid name 'b c'"),
        (
            config(hub("a"), hub("A")),
            f"{ENTITIES}[1].Name: hub 'A' is already at {ENTITIES}[0].Name",
        ),
        (
            config(hub("a", 1, "g", "g")),
            f"{ENTITIES}[0].ConsumerGroups[1].Name: consumer group 'g' is already at ",
        ),
        (config(hub(["x" * 200])), f'{ENTITIES}[0].Name: expected a string, found ["{"x" * 58}...'),
    ],
)
def test_an_error_names_the_path_of_the_wrong_value(text: str, error: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_config(text)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            config(hub(), Name="mine"),
            'UserConfig.NamespaceConfig[0].Name: expected "emulatorNs1", found "mine"',
        ),
        (
            config(hub(), hub("b"), hub("c", "x")),
            f'{ENTITIES}[2].PartitionCount: expected 1 to 32, found "x"',
        ),
        (config(hub(count=33)), f"{ENTITIES}[0].PartitionCount: expected 1 to 32, found 33"),
        (
            config(*(hub(f"h{n}") for n in range(11))),
            f"{ENTITIES}: expected 1 to 10 hubs, found 11",
        ),
        (config(), f"{ENTITIES}: expected 1 to 10 hubs, found 0"),
        (
            config(hub("a", 1, "$Default")),
            f"{ENTITIES}[0].ConsumerGroups[0].Name: expected a name other than $Default, ",
        ),
        (
            config(hub("a", 1, *map("g{}".format, range(21)))),
            f"{ENTITIES}[0].ConsumerGroups: expected 1 to 20 consumer groups, found 21",
        ),
        (
            SAMPLE.replace('"File"', '"Paper"'),
            'UserConfig.LoggingConfig.Type: expected "File" or "Console" or ',
        ),
    ],
)
def test_strict_enforces_the_emulators_limits(text: str, error: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_config(text, strict=True)
    assert str(caught.value).startswith(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("EventHub"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["UserConfig", "NamespaceConfig", "Entities", "Name", "ConsumerGroups"]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_any_json_is_parsed_or_refused(value: Any, strict: bool) -> None:
    for text in (json.dumps(value), config(value), config(hub(), Entities=value)):
        try:
            parse_config(text, strict)
        except OptionError as failure:
            assert str(failure)  # noqa: PT017


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(OptionError):
        parse_config("[" * 200_000)


# -- a hub from a file ----------------------------------------------------------------------------


def test_hubs_of_a_config_file_are_created(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config(hub("eh1", "3", "cg1"), hub("eh2", 1)))
    hubs = EmbeddedHub({"mine": 1}, config=path)
    assert hubs.hubs == {"eh1": 3, "eh2": 1, "mine": 1}
    assert hubs.groups("eh1") == ["$Default", "cg1"]


def test_new_groups_are_added_to_stored_hubs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for groups in (("one",), ("one", "two")):
        path.write_text(config(hub("eh1", 2, *groups)))
        with EmbeddedHub(config=path, data=tmp_path / "data") as stored:
            assert stored.groups("eh1") == ["$Default", *groups]


def test_a_hub_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config(hub("eh1")))
    with pytest.raises(OptionError, match=r"hub 'eh1' is given both in .*config\.json and in hubs"):
        EmbeddedHub({"EH1": 1}, config=path)


def test_an_unusable_config_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(OptionError, match=r"config\.json cannot be read"):
        EmbeddedHub(config=path)
    path.write_text(config(hub(count=33)))
    EmbeddedHub(config=path)
    with pytest.raises(OptionError, match=r"config\.json: UserConfig\..*: expected 1 to 32"):
        EmbeddedHub(config=path, config_strict=True)
