"""Class names of the last version still work, with a warning."""

from importlib import import_module

import pytest

from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.simulator.sensors import HomeSimulator


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("pumphouse.homes.simulator.sensors", "Town", HomeSimulator),
        ("pumphouse.homes.namespace", "Place", HomesNamespace),
    ],
)
def test_an_old_class_name_warns_and_gives_the_new_class(
    module: str, old: str, new: type[object]
) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new.__name__}"):
        assert getattr(import_module(module), old) is new
    with pytest.raises(AttributeError, match="'Village'"):
        _ = import_module(module).Village
