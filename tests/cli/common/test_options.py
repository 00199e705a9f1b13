"""Parsers of durations, sizes, hubs and properties."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
from pumphouse.cli.common.options import parse_duration, parse_hubs, parse_property, parse_size
from pumphouse.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7D", 604800), ("250ms", 0.25)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1h", "soon", "1w", "1h30m", "1e3"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(OptionError, match=r"invalid duration .*: use 30s, 15m, 1h or 7d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("64k", 65536), ("64KB", 65536), ("64 MiB", 64 << 20), ("1.5GB", 3 << 29)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0.1", "-1K", "lots", "1TB", "1 KBB"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(OptionError, match=r"invalid size .*: use 64KB, 64MB or 1GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("words", "hubs"),
    [
        ([], {}),
        (["sensors:16"], {"sensors": 16}),
        (["sensors"], {"sensors": 4}),
        (["a:1,b:2 c", "d"], {"a": 1, "b": 2, "c": 4, "d": 4}),
        ([" a , b "], {"a": 4, "b": 4}),
        (["site/doors:3"], {"site/doors": 3}),
    ],
)
def test_hubs(words: list[str], hubs: dict[str, int]) -> None:
    assert parse_hubs(words) == hubs


@pytest.mark.parametrize("word", [":4", "a:", "a:x", "a:-1", "a:1:2", "a:\u0661"])
def test_an_invalid_hub_is_rejected(word: str) -> None:
    with pytest.raises(OptionError, match=r"invalid hub .*: use NAME or NAME:PARTITIONS"):
        parse_hubs([word])


def test_a_duplicate_hub_is_rejected() -> None:
    with pytest.raises(OptionError, match="duplicate hub 'a'"):
        parse_hubs(["a:1", "a:2"])


def test_properties() -> None:
    assert parse_property("name=value=more") == ("name", "value=more")
    assert parse_property("name=") == ("name", "")
    for text in ("", "name", "=value"):
        with pytest.raises(OptionError, match=r"invalid property .*: use NAME=VALUE"):
            parse_property(text)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "command",
    ["homes send --minutes", "homes send --late", "send orders --rate", "demo --minutes"],
)
def test_a_number_that_is_not_finite_is_refused(command: str, number: str) -> None:
    done = CliRunner().invoke(main, [*command.split(), number])
    assert done.exit_code == 2
    assert number in done.stderr
    assert "Traceback" not in done.stderr
