from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.file import load_kinds
from tests.homes.kinds.kinds_files import CARBON_MONOXIDE


def test_without_a_file_the_kinds_are_those_of_the_package() -> None:
    assert load_kinds(None) is DEFAULT


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kinds.toml"
    path.write_text(CARBON_MONOXIDE)
    kinds = load_kinds(path)
    assert kinds.names[-1] == "carbon-monoxide"
    assert kinds.source == str(path)


def test_an_unreadable_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "kinds.toml"
    with pytest.raises(OptionError, match=r"cannot read .*kinds\.toml: No such file or directory"):
        load_kinds(path)
    path.write_text("[kinds.co\n")
    with pytest.raises(OptionError, match=r"kinds\.toml is not a TOML file: .* \(at line 1,"):
        load_kinds(path)
    path.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"is not a TOML file: .*can't decode"):
        load_kinds(path)
