"""A kinds file with a carbon monoxide detector, and changed versions of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pumphouse.homes.kinds.defaults import TABLES
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.kinds.parsing import merged, parse_kinds

TUTORIAL = (Path(__file__).parents[3] / "docs" / "tutorial-new-sensor.md").read_text()
(TUTORIAL_TOML,) = re.findall(r"^```toml\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)

CARBON_MONOXIDE = """
[alerts.carbon-monoxide]
rule = "Carbon monoxide is at 50 ppm or more."
urgent = true

[kinds.carbon-monoxide]
unit = "ppm"
quiet = { below = 50 }
minimum = 0
maximum = 5000
rules = [
  { type = "threshold", alert = "carbon-monoxide", at_least = 50, text = "Carbon monoxide" },
  { type = "silence", alert = "silent-sensor", after_s = 900 },
]
simulate = { quiet = [0, 5], incident = "carbon-monoxide", active = [80, 300], minutes = [20, 40], per_1000_homes = 50 }
"""  # noqa: E501

ALL_RULES = (
    CARBON_MONOXIDE
    + """
[kinds.water]
unit = ""
quiet = { at = 0 }
rules = [
  { type = "change", alert = "leak", at_least = 1, text = "Water" },
  { type = "lasting", alert = "flood", at_least = 1, any_s = 3600, text = "Water for an hour" },
]

[kinds.radon]
unit = "Bq/m3"
quiet = { above = 5, below = 300 }
rules = [
  { type = "unusual", alert = "unusual-reading", least = 20.0 },
  { type = "threshold", alert = "radon", at_most = 5, text = "Detector defective", same_s = 60 },
]

[alerts.leak]
rule = "Water is where none should be."
[alerts.flood]
rule = "Water for an hour."
[alerts.radon]
rule = "Radon is too low to be true."
[alerts.smouldering]
rule = "Smoke and carbon monoxide within ten minutes."
urgent = true

[[combinations]]
alert = "smouldering"
text = "Smoke and carbon monoxide"
within_s = 600
when = [{ kind = "smoke", at_least = 60 }, { kind = "carbon-monoxide", at_least = 50 }]
"""
)


def kinds_of(text: str, source: str = "kinds.toml") -> Kinds:
    return parse_kinds(merged(TABLES, tomllib.loads(text)), source)
