"""What a mutant is: a sabotage of the real code, by monkeypatching, and where it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A sabotage, the promises that it may break, and a scenario in which it does."""

    apply: Callable[[Patch], None]
    breaks: str  # names of invariants
    scene: dict[str, Any] = field(default_factory=dict)


MUTANTS: dict[str, Mutant] = {}


def mutant(breaks: str, **scene: Any) -> Callable[[Callable[[Patch], None]], None]:
    def keep(apply: Callable[[Patch], None]) -> None:
        MUTANTS[apply.__name__] = Mutant(apply, breaks, scene)

    return keep
