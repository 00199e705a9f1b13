"""Which failures pass by themselves, and how long to wait before the next attempt.

Pure: chance is an argument. Who waits, and for what, is `line`'s business.

    failure -> passes -> delay_s -> the next attempt
               ^^^^^^ this module ^^
"""

from __future__ import annotations

from random import Random

from pumphouse.client.base import RetryOptions
from pumphouse.errors import AmqpError, ConnectionFailed, HubUntrusted, PumphouseError

# Conditions by which a hub says "not now" or "not here any more", not "no".
PASSING = frozenset(
    {
        "amqp:link:detach-forced",
        "amqp:connection:forced",
        "amqp:connection:framing-error",
        "amqp:internal-error",
        "amqp:transaction:timeout",
        "com.microsoft:server-busy",
        "com.microsoft:timeout",
        "com.microsoft:operation-cancelled",
    }
)
# To one who had a link a moment ago, the one in its place is most likely its own, not yet missed.
PASSING_AGAIN = PASSING | {"amqp:resource-limit-exceeded"}

JITTER = 0.5  # of a delay: enough that a fleet which lost its hub does not come back as one


def passes(failure: Exception, *, again: bool = False) -> bool:
    """Whether the same may succeed if it is merely tried again.

    `again` is for what has succeeded before: a link that is to be attached anew.
    """
    if isinstance(failure, AmqpError):
        return failure.condition in (PASSING_AGAIN if again else PASSING)
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, HubUntrusted)


def delay_s(failures: int, options: RetryOptions, rng: Random) -> float:
    """How long to wait after so many failures in a row: doubling, up to a limit, with jitter."""
    if failures < 1:
        return 0.0
    # Beyond 2^60 the product is past any limit, and further still past what a float holds.
    full = min(options.most_s, options.first_s * 2.0 ** min(failures - 1, 60))
    return full * (1 - JITTER * rng.random())


def exhausted(failures: int, options: RetryOptions) -> bool:
    """Whether patience is used up: one attempt, and `attempts` more, have failed."""
    return failures > options.attempts


def judge(
    failure: PumphouseError, failures: int, options: RetryOptions, *, again: bool = False
) -> PumphouseError | None:
    """What to raise after this failure, the so many-th in a row; None to try once more."""
    if not passes(failure, again=again):
        return failure
    if not exhausted(failures, options):
        return None
    return failure if isinstance(failure, ConnectionFailed) else given_up(failure, failures)


def given_up(failure: PumphouseError, failures: int) -> ConnectionFailed:
    """What might have passed, and did not within our patience."""
    times = "once" if failures == 1 else f"{failures} times in a row"
    return ConnectionFailed(f"given up after it failed {times}: {failure}")
