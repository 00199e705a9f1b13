"""The native driver: an AMQP client of our own over asyncio."""

from importlib import import_module
from typing import Any
from warnings import warn

# In version 0.1, pumphouse.client.native was a module that defined these names.
_RENAMED = {
    "Client": ("pumphouse.client.native.client", "NativeClient"),
    "WireOptions": ("pumphouse.client.native.connection", "ConnectionOptions"),
}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, new = _RENAMED[name]
    warn(f"{__name__}.{name} is now {module}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(import_module(module), new)
