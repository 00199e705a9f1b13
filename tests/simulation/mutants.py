"""All mutants by name. Importing the two modules registers them."""

from __future__ import annotations

from tests.simulation import delivery_mutants, ownership_mutants
from tests.simulation.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "delivery_mutants", "ownership_mutants"]
