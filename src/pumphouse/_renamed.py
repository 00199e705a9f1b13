"""Import paths of version 0.1 that moved. They still work, with a DeprecationWarning."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from warnings import warn

RENAMED = {
    "pumphouse.client.opening": "pumphouse.client.factory",
    "pumphouse.client.wire": "pumphouse.client.native.connection",
    "pumphouse.dashboard.app": "pumphouse.dashboard.server.app",
    "pumphouse.homes.archive": "pumphouse.homes.record.archive",
    "pumphouse.homes.incidents": "pumphouse.homes.simulator.incidents",
    "pumphouse.homes.place": "pumphouse.homes.namespace",
    "pumphouse.homes.sensors": "pumphouse.homes.simulator.sensors",
    "pumphouse.leases.flaky": "pumphouse.leases.flaky_store",
    "pumphouse.leases.opening": "pumphouse.leases.store_url",
    "pumphouse.leases.sqlite": "pumphouse.leases.stores.sqlite.store",
}


class RenamedModules:
    """Finds an old import path and loads the module under its new path.

    It has the methods of importlib.abc.MetaPathFinder and Loader. Importing these would take as
    long as all other modules of `import pumphouse`.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: the import system makes the module."""
        return None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(fullname, loader) if fullname in RENAMED else None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, RENAMED[module.__name__]
        # Level 2 is the caller's import statement: `warn` skips the frames of the import system.
        warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        # After loading, the import system returns the module that is registered here.
        sys.modules[old] = import_module(new)


def install() -> None:
    """Register the finder of old import paths, after all other finders."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())
