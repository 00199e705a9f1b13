"""Names of options that do not exist: the error has the closest name that does.

ProcessorOptions(leas_s=60) -> named_options -> OptionError: ... 'leas_s': did you mean lease_s?
                               ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from pumphouse.errors import OptionError

C = TypeVar("C", bound=type)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def unknown_name(name: str, names: Collection[str]) -> str:
    """An unknown name, for an error, with the closest of these names, or with all of them."""
    closest = get_close_matches(name, names, 1, cutoff=0.5)
    return f"{name!r}: " + (
        f"did you mean {closest[0]}?" if closest else f"it has {', '.join(sorted(names))}"
    )


def named_options(more: Collection[str] = ()) -> Callable[[C], C]:
    """A class whose constructor raises OptionError for a keyword that it does not have.

    `more` are the names that it takes as `**keywords`.
    """

    def decorate(options: C) -> C:
        create = options.__init__  # type: ignore[misc]
        parameters = list(inspect.signature(create).parameters.values())[1:]
        names = {each.name for each in parameters if each.kind in NAMED} | set(more)

        @wraps(create)
        def checked(self: Any, *args: Any, **given: Any) -> None:
            for name in given.keys() - names:
                raise OptionError(
                    f"{type(self).__name__} has no option {unknown_name(name, names)}"
                )
            create(self, *args, **given)

        options.__init__ = checked  # type: ignore[misc]
        return options

    return decorate
