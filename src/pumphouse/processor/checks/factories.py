"""Checks the class or function that a user registers, and the event processors it creates.

`register` raises the error at once. Without the check it would be raised when the first partition
is claimed.
"""

from __future__ import annotations

from pumphouse.errors import OptionError

METHODS = ("open", "close", "process_events", "process_error")


def check_factory(factory: object) -> None:
    """OptionError unless this is a class with all methods, or a function.

    The object that a function returns is checked when it is created.
    """
    if isinstance(factory, type):
        check_methods(factory, f"the class {factory.__name__}")
    elif not callable(factory):
        raise OptionError(
            f"register() needs a class or a function that returns an object (got {factory!r})"
        )


def check_methods(processor: object, name: str) -> None:
    """OptionError unless an event processor has all methods."""
    missing = [method for method in METHODS if not callable(getattr(processor, method, None))]
    if missing:
        raise OptionError(
            f"{name} has no method {' and no method '.join(missing)}: "
            f"an event processor needs {', '.join(METHODS)}"
        )
