"""Checks the hub, the store and the dead letters that a user gives to a processor.

    processor, host, fixed, group -> check_connect, check_store, check_dead_letters -> OptionError
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Each is refused when it is given. Errors show no text that may contain a key.
"""

from __future__ import annotations

import inspect

from pumphouse.client.base import ConnectionString, read_connection_string
from pumphouse.errors import OptionError
from pumphouse.processor.checks.values import check_plain_function


def check_connect(name: str, value: object, *arguments: str, has_hub: bool = False) -> None:
    """A connection string, or a plain function of these arguments that returns a client.

    With `has_hub`, the connection string must name the hub.
    """
    if isinstance(value, str | ConnectionString):
        check_address(name, value, has_hub)
        return
    if not callable(value):
        raise OptionError(
            f"{name} must be a connection string, or a function that returns a client "
            f"(got {kind_of(value)})"
        )
    check_plain_function(name, value, *arguments)


def check_address(name: str, value: str | ConnectionString, has_hub: bool) -> None:
    try:
        address = read_connection_string(value)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
    if has_hub and not address.hub:
        raise OptionError(
            f"{name}: the connection string names no hub: add ;EntityPath=HUB, or use "
            "read_connection_string(TEXT, HUB)"
        )


def check_store(value: object) -> None:
    """A store, not its URL. The text is repeated only if it cannot contain a key."""
    if isinstance(value, str):
        url = repr(value) if "=" not in value else "..."
        raise OptionError(f"store must be a store, not a string: use open_store({url})")
    if not hasattr(type(value), "__aenter__"):  # what `async with` looks for
        raise OptionError(
            f"store must be a store, such as open_store('leases.db') (got {kind_of(value)})"
        )


def check_dead_letters(value: object) -> None:
    """None, or an object with the two methods of DeadLetters, which are coroutine functions."""
    methods = [getattr(value, name, None) for name in ("write", "close")]
    is_usable = all(map(inspect.iscoroutinefunction, methods)) and not isinstance(value, type)
    if value is not None and not is_usable:
        raise OptionError(
            "dead_letters must be a DeadLetterFile(PATH), a DeadLetterHub(CONNECTION), or an "
            f"object with the coroutine functions write and close (got {kind_of(value)})"
        )


def kind_of(value: object) -> str:
    """The type of a value, which may contain a key."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"
