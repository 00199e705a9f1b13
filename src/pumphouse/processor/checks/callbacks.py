"""The argument `on_error` of an EventProcessorHost, which may have one of two forms.

    def on_error(partition, error): ...   # as for the other APIs
    def on_error(error): ...              # as the argument of the same name of `start`

A function that takes any number of arguments gets both.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from pumphouse.errors import OptionError
from pumphouse.processor.checks.values import check_function

MaybeAwaitable = Awaitable[None] | None
OnErrorOfHost = (
    Callable[[str | None, Exception], MaybeAwaitable] | Callable[[Exception], MaybeAwaitable]
)


def check_error_callback(name: str, value: object) -> None:
    """None, or a function that takes (partition, error) or (error)."""
    if value is None:
        return
    try:
        check_function(name, value, "error")
    except OptionError:
        check_function(name, value, "partition", "error")


def error_arguments(
    on_error: OnErrorOfHost, partition: str | None, error: Exception
) -> tuple[object, ...]:
    """The arguments for a call of this function."""
    return (error,) if takes_only_the_error(on_error) else (partition, error)


def takes_only_the_error(on_error: Callable[..., object]) -> bool:
    """Whether one argument is sufficient: any further parameters have a default."""
    try:
        signature = inspect.signature(on_error)
    except ValueError:  # a builtin without a signature
        return True
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return False
    try:
        signature.bind("error")
    except TypeError:
        return False
    return True
