"""Decides which failures are transient, and the delay before the next attempt.

The functions are pure: the random generator is an argument, and the callers wait.

    failure -> is_transient -> delay_s -> the next attempt
               ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from random import Random

from pumphouse.client.base import RetryOptions
from pumphouse.errors import AmqpError, ConnectionFailed, HubUntrusted, PumphouseError

# Conditions of temporary failures, not of refusals.
TRANSIENT = frozenset(
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
# After a link is lost, the hub may still count it against the limit of readers.
TRANSIENT_ON_RESUME = TRANSIENT | {"amqp:resource-limit-exceeded"}

JITTER = 0.5  # random part of a delay: many clients must not reconnect at once


def is_transient(failure: Exception, *, resumed: bool = False) -> bool:
    """Whether the same call may succeed if it is retried.

    `resumed` marks a call that has succeeded before: a link that is attached again.
    """
    if isinstance(failure, AmqpError):
        return failure.condition in (TRANSIENT_ON_RESUME if resumed else TRANSIENT)
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, HubUntrusted)


def delay_s(failures: int, options: RetryOptions, rng: Random) -> float:
    """The delay after consecutive failures: doubling, up to a limit, with jitter."""
    if failures < 1:
        return 0.0
    # The exponent is capped because 2.0 ** 1024 overflows; 2^60 already exceeds every limit.
    delay = min(options.most_s, options.first_s * 2.0 ** min(failures - 1, 60))
    return delay * (1 - JITTER * rng.random())


def longest_wait_s(failures: int, options: RetryOptions) -> float:
    """The longest sum of the delays from this failure on, up to the last retry."""
    left = range(max(1, failures), options.attempts + 1)
    growing = left[:61]  # see delay_s: after these the delay is the same
    delays = (min(options.most_s, options.first_s * 2.0 ** (each - 1)) for each in growing)
    return sum(delays) + (len(left) - len(growing)) * options.most_s


def exhausted(failures: int, options: RetryOptions) -> bool:
    """Whether the first attempt and all retries have failed."""
    return failures > options.attempts


def failure_to_raise(
    failure: PumphouseError, failures: int, options: RetryOptions, *, resumed: bool = False
) -> PumphouseError | None:
    """The error to raise after consecutive failures; None to retry."""
    if not is_transient(failure, resumed=resumed):
        return failure
    if not exhausted(failures, options):
        return None
    return (
        failure if isinstance(failure, ConnectionFailed) else retries_exhausted(failure, failures)
    )


def retries_exhausted(failure: PumphouseError, failures: int) -> ConnectionFailed:
    """The error for a transient failure after the last retry."""
    times = "once" if failures == 1 else f"{failures} times in a row"
    return ConnectionFailed(f"failed {times}, no retries left: {failure}")
