"""All mutants by name. Importing the modules registers them."""

from __future__ import annotations

from tests.simulation.mutants import (
    checkpoint_mutants,
    concurrency_mutants,
    delivery_mutants,
    ownership_mutants,
)
from tests.simulation.mutants.mutant import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "checkpoint_mutants",
    "concurrency_mutants",
    "delivery_mutants",
    "ownership_mutants",
]
