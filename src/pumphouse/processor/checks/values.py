"""Checks of single values that a user gives. Each OptionError names the option and the value.

    options, processor, host, fixed -> check_seconds, check_whole, ... -> OptionError
                                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A value is refused when it is given. Otherwise it fails later, in a pump, with an error that names
no option.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real

from pumphouse.errors import OptionError
from pumphouse.events import Position

POSITIONS = {"earliest": "EARLIEST", "latest": "LATEST"}
# The reader of a host has the host's name; the embedded hub accepts at most this length.
NAME_CHARS_MAX = 256
ANY_POSITION = "EARLIEST, LATEST or Position(kind, value)"


def check_seconds(name: str, value: object) -> None:
    """A finite number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(f"{name} must be a number of seconds (got {value!r})")
    seconds = float(value)
    if not seconds > 0:  # nan is not above 0 either
        raise OptionError(f"{name} must be above 0 (got {seconds:g})")
    if math.isinf(seconds):
        raise OptionError(f"{name} must be finite (got {seconds:g})")


def check_seconds_or_none(name: str, value: object) -> None:
    if value is not None:
        check_seconds(name, value)


def check_whole(name: str, value: object, least: int) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{name} must be a whole number (got {value!r})")
    if int(value) < least:
        raise OptionError(f"{name} must be at least {least} (got {value})")


def check_flag(name: str, value: object) -> None:
    """True or False. Any text would count as True, even "no"."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False (got {value!r})")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)} (got {value!r})")


def check_type(name: str, value: object, wanted: type, example: str) -> None:
    if not isinstance(value, wanted):
        raise OptionError(f"{name} must be a {wanted.__name__}, such as {example} (got {value!r})")


def check_function(name: str, value: object, *arguments: str) -> None:
    """A function that can be called with these arguments."""
    if not callable(value):
        raise OptionError(f"{name} must be a function (got {value!r})")
    check_no_generator(name, value)
    try:
        signature = inspect.signature(value)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        shown = getattr(value, "__qualname__", type(value).__qualname__)
        raise OptionError(
            f"{name} is called as {name}({', '.join(arguments)}), which {shown}{signature} does "
            f"not accept: {error}"
        ) from None


def check_no_generator(name: str, value: Callable[..., object]) -> None:
    """A call of a generator function runs nothing of its body: its events would be skipped."""
    called = (value, None if isinstance(value, type) else getattr(value, "__call__", None))  # noqa: B004
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called):
        shown = getattr(value, "__qualname__", type(value).__qualname__)
        raise OptionError(
            f"{name} must be a function, and {shown} is a generator function: remove `yield` from "
            "it"
        )


def check_plain_function(name: str, value: object, *arguments: str) -> None:
    """A function that can be called with these arguments and returns its result at once."""
    check_function(name, value, *arguments)
    called = None if isinstance(value, type) else type(value).__call__
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(called):
        shown = getattr(value, "__qualname__", type(value).__qualname__)
        raise OptionError(
            f"{name} must be a plain function, and {shown} is a coroutine function: define it "
            "with `def`"
        )


def check_name(name: str, value: object) -> None:
    """A text that is not empty. The group "" would be stored apart from "$Default"."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} must be a name (got {value!r})")
    if len(value) > NAME_CHARS_MAX or not value.isprintable():
        raise OptionError(
            f"{name} must have at most {NAME_CHARS_MAX} printable characters "
            f"(got {value[:NAME_CHARS_MAX]!r})"
        )


def check_options(name: str, value: object, wanted: type, example: str) -> None:
    """An options object of this class, or None for the defaults."""
    if value is not None:
        check_type(name, value, wanted, f"{wanted.__name__}({example})")


def check_position(name: str, value: object) -> None:
    """A Position. A text such as "latest", the form of the command line, is refused."""
    if not isinstance(value, Position):
        advice = POSITIONS.get(value.lower(), "") if isinstance(value, str) else ""
        raise OptionError(
            f"{name} must be a position: use {advice or ANY_POSITION} (got {value!r})"
        )


def check_partitions(name: str, value: object, partitions: Collection[str], hub: str) -> None:
    """The partitions of a mapping exist. A function may be called with any."""
    unknown = sorted(set(value) - set(partitions)) if isinstance(value, Mapping) else []
    if unknown:
        raise OptionError(
            f"{name} has the partition {unknown[0]!r}, and hub {hub} has "
            f"{', '.join(sorted(partitions, key=lambda text: (len(text), text)))}"
        )


def check_positions(name: str, value: object) -> None:
    """A mapping of partitions to positions, or a function that returns one."""
    if isinstance(value, Mapping):
        for partition, position in value.items():
            if not isinstance(partition, str):
                raise OptionError(
                    f"{name} has the partition {partition!r}: partitions are texts, such as '0'"
                )
            check_position(f"{name}[{partition!r}]", position)
    elif not callable(value):
        raise OptionError(f"{name} must be a function or a mapping of positions (got {value!r})")
    else:
        check_plain_function(name, value, "partition")
