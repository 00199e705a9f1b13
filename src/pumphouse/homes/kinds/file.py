"""Reads a file of kinds.

kinds.toml -> load_kinds -> Kinds
              ^^^^^^^^^^ this module
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT, TABLES
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.kinds.parsing import merged, parse_kinds


def load_kinds(path: Path | str | None) -> Kinds:
    """The kinds of the default with those of a file; those of the default without a file."""
    if path is None:
        return DEFAULT
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"cannot read {path}: {reason}: check the path of --kinds") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise OptionError(f"{path} is not a TOML file: {error}. Correct this line") from None
    return parse_kinds(merged(TABLES, tables), str(path))
