"""The order of kinds and rules in the state of the stage sift, which a changed file must keep.

Kinds -> state_order -> DATA/kinds.json -> check_state_order, at the next start
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from pathlib import Path

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.model import Kinds, Threshold
from pumphouse.private_files import replace_private

FILE = "kinds.json"
Order = dict[str, list[str]]


def state_order(kinds: Kinds) -> Order:
    """The names that the state refers to by their position."""
    thresholds = [f"{kinds.names[kind]}/{rule.alert}" for kind, rule in kinds.rules(Threshold)]
    return {
        "kinds": list(kinds.names),
        "alerts": list(kinds.alert_names),
        "threshold rules": thresholds,
    }


def check_state_order(before: Order, now: Order, source: str) -> None:
    """Raise if something has another position than before, or is missing."""
    for what, names in before.items():
        given = now.get(what, [])
        if given[: len(names)] != names:
            raise OptionError(
                f"{source}: the {what} are {', '.join(given) or 'none'}; the checkpoint begins "
                f"with {', '.join(names)}: add new ones at the end, or use another folder (--data)"
            )


def keep_state_order(folder: Path, kinds: Kinds) -> None:
    """Check the order against that of the last start in this folder, and write it for the next."""
    path, now = folder / FILE, state_order(kinds)
    if path.exists():
        check_state_order(json.loads(path.read_text()), now, kinds.source)
    replace_private(path, json.dumps(now).encode())
