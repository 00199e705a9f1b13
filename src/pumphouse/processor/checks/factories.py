"""Checks the class or function that a user registers, and the event processors it creates.

`register` raises the error at once. Without the check it would be raised when the first partition
is claimed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from pumphouse.errors import OptionError
from pumphouse.processor.checks.values import check_function, check_plain_function

# The methods of an event processor, and what they are called with.
METHODS = {
    "open": ("context",),
    "close": ("context", "reason"),
    "process_events": ("context", "messages"),
    "process_error": ("context", "error"),
}


def check_factory(factory: object) -> None:
    """OptionError unless this is a class with all methods, or a plain function.

    The object that a function returns is checked when it is created.
    """
    if isinstance(factory, type):
        check_methods(factory, f"the class {factory.__name__}")
    elif not callable(factory):
        raise OptionError(
            f"register() needs a class or a function that returns an object (got {factory!r})"
        )
    check_plain_function("factory", factory, *(("context",) if takes_context(factory) else ()))


def takes_context(factory: Callable[..., object]) -> bool:
    """Whether a factory is called with the PartitionContext: it has a parameter without default."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a C function without a signature
        return False
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def check_methods(processor: object, name: str) -> None:
    """OptionError unless an event processor has all methods, with their parameters."""
    missing = [method for method in METHODS if not callable(getattr(processor, method, None))]
    if missing:
        raise OptionError(
            f"{name} has no method {' and no method '.join(missing)}: "
            f"an event processor needs {', '.join(METHODS)}"
        )
    for method, arguments in METHODS.items():
        check_arguments(processor, method, arguments)


def check_arguments(processor: object, method: str, arguments: tuple[str, ...]) -> None:
    """OptionError unless the method of this object, or of objects of this class, takes these."""
    if isinstance(processor, type):
        defined = inspect.getattr_static(processor, method)
        if inspect.isfunction(defined):
            arguments = ("self", *arguments)
        elif not isinstance(defined, staticmethod | classmethod):
            return  # another descriptor: checked when an object is created
    check_function(method, getattr(processor, method), *arguments)
