"""The kinds of the package.

default.toml -> DEFAULT
                ^^^^^^^ this module
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Final

from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.kinds.parsing import parse_kinds

SOURCE: Final = "the default kinds"
TABLES: Final[dict[str, Any]] = tomllib.loads(
    files(__package__).joinpath("default.toml").read_text("utf-8")
)
DEFAULT: Final[Kinds] = parse_kinds(TABLES, SOURCE)
