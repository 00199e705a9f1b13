"""Transient failures, delays between retries, errors of a hub, and prefetch limits."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.performatives import Error
from pumphouse.client.base import RetryOptions
from pumphouse.client.errors import error_from, other_epoch
from pumphouse.client.native.prefetch import Bounds, credit_for, guess_size
from pumphouse.client.retries import delay_s, exhausted, is_transient, longest_wait_s
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubNotFound,
    HubUntrusted,
    OptionError,
    ReaderEvicted,
)
from pumphouse.hub.epochs import READERS_MAX, Reader, decide

OPTIONS = RetryOptions(attempts=8, first_s=0.2, most_s=30.0)


@pytest.mark.parametrize(
    ("failure", "first", "resumed"),
    [
        (ConnectionFailed("broke"), True, True),
        (HubUntrusted("who is that"), False, False),
        (AmqpError("com.microsoft:server-busy", ""), True, True),
        (AmqpError("amqp:link:detach-forced", ""), True, True),
        (AmqpError("amqp:internal-error", ""), True, True),
        (AmqpError("amqp:resource-limit-exceeded", ""), False, True),
        (AmqpError("com.microsoft:argument-error", ""), False, False),
        (ReaderEvicted("amqp:link:stolen", "", 3), False, False),
        (AuthError("no"), False, False),
        (HubNotFound("no"), False, False),
        (OptionError("no"), False, False),
    ],
    ids=str,
)
def test_transient_failures(failure: Exception, first: bool, resumed: bool) -> None:
    assert is_transient(failure) is first
    assert is_transient(failure, resumed=resumed) is resumed


def test_delays_double_up_to_a_limit() -> None:
    no_jitter = Random()
    no_jitter.random = lambda: 0.0  # type: ignore[method-assign]
    delays = [delay_s(failures, OPTIONS, no_jitter) for failures in range(11)]
    assert delays == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])


@given(st.integers(1, 10_000), st.integers())
def test_jitter_removes_at_most_half_of_a_delay(failures: int, seed: int) -> None:
    full = min(30.0, 0.2 * 2.0 ** min(failures - 1, 60))
    assert full / 2 <= delay_s(failures, OPTIONS, Random(seed)) <= full


def test_retries_are_exhausted_after_the_configured_attempts() -> None:
    assert [exhausted(failures, OPTIONS) for failures in (1, 8, 9)] == [False, False, True]
    assert exhausted(1, RetryOptions(attempts=0))


# -- errors of a hub -------------------------------------------------------------------------------

LIAR = "with higher epoch of '99' is created with a higher epoch '99' already epoch of '99'"


@pytest.mark.parametrize("name", [None, "host-a", LIAR])
@pytest.mark.parametrize("mine", [None, 3])
def test_the_epoch_of_the_other_reader_is_parsed(name: str | None, mine: int | None) -> None:
    me, other = Reader(1, "me", mine), Reader(2, name, 7)
    evicted = decide([me], other)
    assert other_epoch(evicted.evict_errors[0]) == 7
    kept_out = decide([other], me)
    assert other_epoch(kept_out.text) == 7
    assert kept_out.condition == "amqp:link:stolen"


def test_a_text_without_an_epoch() -> None:
    five = [Reader(number) for number in range(READERS_MAX)]
    assert other_epoch(decide(five, Reader(9)).text) is None
    stolen = error_from(Error(condition="amqp:link:stolen", description=None))
    assert isinstance(stolen, ReaderEvicted)
    assert stolen.epoch is None


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:unauthorized-access", AuthError),
        ("amqp:not-found", HubNotFound),
        ("amqp:link:stolen", ReaderEvicted),
        ("com.microsoft:server-busy", AmqpError),
    ],
)
def test_an_error_of_a_hub_is_converted(condition: str, kind: type[Exception]) -> None:
    converted = error_from(Error(condition=condition, description="Because."))
    assert type(converted) is kind
    assert "Because." in str(converted)
    assert isinstance(error_from(None), AmqpError)


# -- prefetch -------------------------------------------------------------------------------------

BOUNDS = Bounds(events=300, bytes=1000)


@pytest.mark.parametrize(
    ("waiting", "waiting_bytes", "size", "credit", "granted"),
    [
        (0, 0, 1, 0, 300),  # limited by events
        (0, 0, 10, 0, 100),  # limited by bytes
        (0, 0, 5000, 0, 1),  # larger than the limit: one at a time
        (1, 5000, 5000, 0, None),  # one is buffered: no other
        (0, 0, 10, 60, None),  # not half used
        (0, 0, 10, 50, 100),  # half used
        (50, 500, 10, 10, None),  # used, but not received
        (50, 500, 10, 0, 50),
        (0, 0, 100, 100, 10),  # events have grown: the credit is too high
    ],
)
def test_the_credit_to_grant(
    waiting: int, waiting_bytes: int, size: int, credit: int, granted: int | None
) -> None:
    assert credit_for(BOUNDS, waiting, waiting_bytes, size, credit) == granted


@given(
    st.integers(1, 1000), st.integers(1, 1 << 24), st.integers(0, 1000),
    st.integers(0, 1 << 24), st.integers(1, 1 << 21), st.integers(0, 1000),
)  # fmt: skip
def test_credit_keeps_the_bounds_and_never_starves(
    events: int, most: int, waiting: int, waiting_bytes: int, size: int, credit: int
) -> None:
    bounds = Bounds(events, most)
    waiting_bytes = waiting_bytes if waiting else 0
    granted = credit_for(bounds, waiting, waiting_bytes, size, credit)
    if granted is not None and granted > 1:
        assert waiting + granted <= events
        assert waiting_bytes + granted * size <= most
    if waiting == 0 and credit == 0:
        assert granted, (
            "without buffered events and without credit the reader would wait without end"
        )


def test_the_size_estimate_follows_the_largest_recent_event() -> None:
    assert guess_size(1000, 4000) == 4000
    assert guess_size(4000, 1000) == 2500
    assert guess_size(1, 0) == 1


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("attempts", [0, 1, 8, 100])
@pytest.mark.parametrize("failures", [1, 5, 101])
def test_the_longest_wait_is_the_sum_of_the_delays_that_follow(
    attempts: int, failures: int
) -> None:
    options = RetryOptions(attempts, first_s=0.2, most_s=30.0)
    delays = [delay_s(each, options, NoJitter()) for each in range(failures, attempts + 1)]
    assert longest_wait_s(failures, options) == pytest.approx(sum(delays))
    assert longest_wait_s(1, RetryOptions(10**9)) == pytest.approx(30e9, rel=1e-6)
