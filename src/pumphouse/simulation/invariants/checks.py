"""All checks of a simulated fleet in one object.

Everything that takes effect is reported here: rows and checkpoints as the store grants them,
readers as the hub admits them, events as handlers are called with them. A violated invariant
becomes a Violation; the run continues, so that its history can be shown.

    store, hub, handlers, fleet -> Checks -> violations
                                   ^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.simulation.invariants.checkpoints import CheckpointChecks
from pumphouse.simulation.invariants.handlers import HandlerChecks


class Checks(HandlerChecks, CheckpointChecks):
    """The checks that run all the time; those of a fault-free phase are in liveness.py."""
