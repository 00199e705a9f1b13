"""The limits of the tiers and of throughput units, computed and in a running hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.reader import NativeReader
from pumphouse.errors import AmqpError, ConnectionFailed, OptionError, QuotaExceeded
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.limits.quotas import (
    MIB,
    TIERS,
    Meter,
    TokenBucket,
    check_group_quota,
    check_hub_quota,
    check_retention,
    find_tier,
    server_busy,
)
from pumphouse.hub.options import Retention
from tests.conformance.readers import BackgroundCloser
from tests.conformance.sdks import SDKS

DEADLINE_S = 20.0
DAY_S = 24 * 3600.0

# -- tiers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "message", "hubs", "partitions", "groups", "days"),
    [
        ("basic", 256 * 1024, 10, 32, 1, 1),
        ("standard", MIB, 10, 32, 20, 7),
        ("premium", MIB, 100, 100, 100, 90),
    ],
)
def test_a_tier_allows_its_limit_and_not_one_more(
    tier: str, message: int, hubs: int, partitions: int, groups: int, days: int
) -> None:
    limits = TIERS[tier]
    assert limits.message_bytes_max == message
    check_hub_quota(limits, "eh", hubs - 1, partitions, groups)
    check_group_quota(limits, "eh", "g", groups - 1)
    check_retention(limits, days * DAY_S)
    checks: list[Callable[[], None]] = [
        lambda: check_hub_quota(limits, "eh", hubs, 1, 1),
        lambda: check_hub_quota(limits, "eh", 0, partitions + 1, 1),
        lambda: check_hub_quota(limits, "eh", 0, 1, groups + 1),
        lambda: check_group_quota(limits, "eh", "g", groups),
        lambda: check_retention(limits, days * DAY_S + 1),
    ]
    for too_much in checks:
        with pytest.raises(QuotaExceeded, match=f"the {tier} tier allows "):
            too_much()


def test_a_tier_is_found_by_its_name() -> None:
    assert find_tier("Standard") is TIERS["standard"]
    with pytest.raises(OptionError, match=r"one of basic, standard, premium \(got 'gold'\)"):
        find_tier("gold")


def test_a_hub_enforces_the_limits_of_its_tier() -> None:
    hub = EmbeddedHub({"eh": 32}, tier="standard")
    with pytest.raises(QuotaExceeded, match="33 partitions; the standard tier allows 32 per hub"):
        hub.create_hub("large", 33)
    for number in range(19):
        hub.create_group("eh", f"g{number}")
    with pytest.raises(QuotaExceeded, match="'g19' would be one too many for hub 'eh'"):
        hub.create_group("eh", "g19")
    for number in range(9):
        hub.create_hub(f"h{number}", 1)
    with pytest.raises(QuotaExceeded, match="'h9' would be one too many"):
        hub.create_hub("h9", 1)
    assert len(hub.hubs) == 10


def test_without_a_tier_there_are_no_limits() -> None:
    hub = EmbeddedHub({f"h{number}": 100 for number in range(30)})
    for number in range(200):
        hub.create_group("h0", f"g{number}")


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(QuotaExceeded, match="kept 8 days; the standard tier allows 7 days"):
        EmbeddedHub(tier="standard", retention=Retention(seconds=8 * DAY_S))
    with pytest.raises(OptionError, match="the premium tier has no throughput units"):
        EmbeddedHub(tier="premium", throughput_units=1)
    with pytest.raises(OptionError, match=r"must be 1 to 40 \(got 0\)"):
        EmbeddedHub(throughput_units=0)


async def test_the_message_limit_of_the_basic_tier() -> None:
    async with EmbeddedHub({"eh": 1}, tier="basic") as hub, client_of(hub) as client:
        sender = await client.sender("0")
        await sender.send([Event(b"x" * 250_000)])
        with pytest.raises((AmqpError, OptionError), match="262144"):
            await sender.send([Event(b"x" * 270_000)])


# -- throughput units, computed -------------------------------------------------------------------


def admitted(meter: Meter, batches: int, events: int, size: int, now: float) -> int:
    """How many of these equal batches are admitted at one instant."""
    count = 0
    for _ in range(batches):
        try:
            meter.admit(events, size, now)
        except AmqpError:
            break
        count += 1
    return count


@pytest.mark.parametrize(
    ("units", "events", "size", "count"),
    [
        (1, 1, 100, 1000),  # events run out first
        (2, 1, 100, 2000),
        (
            1,
            1,
            1024 * 10,
            103,
        ),  # bytes run out first: 102.4, and the last one makes the level negative
        (1, 5000, 10, 1),  # larger than the tokens of a second, but admitted
    ],
)
def test_the_tokens_of_one_second_are_admitted_at_once(
    units: int, events: int, size: int, count: int
) -> None:
    meter = Meter(units, now=100.0)
    assert admitted(meter, 10_000, events, size, now=100.0) == count


def test_a_negative_level_delays_later_batches() -> None:
    meter = Meter(1, now=0.0)
    assert admitted(meter, 1, 5000, 10, now=0.0) == 1
    assert admitted(meter, 1, 1, 10, now=3.9) == 0  # the level is -4000 events: four seconds
    assert admitted(meter, 1, 1, 10, now=4.1) == 1


def test_unused_tokens_last_for_one_second() -> None:
    meter = Meter(1, now=0.0)
    assert admitted(meter, 5000, 1, 10, now=3600.0) == 1000


def test_the_egress_wait_is_computed() -> None:
    meter = Meter(1, now=0.0)
    assert meter.egress_wait_s(0.0) == 0.0
    meter.sent(4096 * 3, 100)
    assert meter.egress_wait_s(0.0) == pytest.approx(2.0, abs=0.001)
    assert meter.egress_wait_s(1.5) == pytest.approx(0.5, abs=0.001)
    assert meter.egress_wait_s(2.001) == 0.0


@given(
    st.floats(1.0, 1e7),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 1e6)), max_size=30),
)
def test_a_bucket_never_exceeds_its_rate(per_s: float, steps: list[tuple[float, float]]) -> None:
    """At most the tokens of a second, the rate, and one last batch are taken."""
    bucket, now, taken, largest = TokenBucket(per_s, 0.0), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.wait_s(now) == 0.0:
            bucket.take(amount)
            taken, largest = taken + amount, max(largest, amount)
    assert taken <= (per_s * (1.0 + now) + largest) * (1 + 1e-9)


@given(st.floats(1.0, 1e7), st.floats(0.0, 1e8), st.floats(0.0, 1e6))
def test_the_bucket_is_open_after_the_computed_wait(per_s: float, taken: float, now: float) -> None:
    bucket = TokenBucket(per_s, now)
    bucket.take(taken)
    wait_s = bucket.wait_s(now)
    assert bucket.wait_s(now + wait_s * (1 + 1e-9) + 1e-3) == 0.0


# -- throughput units, in a running hub -----------------------------------------------------------


class StandingClock:
    """A clock that only the test moves."""

    def __init__(self, at: float = 1_800_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def client_of(hub: EmbeddedHub) -> NativeClient:
    return NativeClient(
        hub.connection_string("eh"), options=ConnectionOptions(clock=hub.namespace.clock)
    )


async def test_sends_above_the_rate_are_refused() -> None:
    clock = StandingClock()
    async with EmbeddedHub({"eh": 1}, throughput_units=1, clock=clock) as hub:
        await check_refusal(hub, clock)


async def check_refusal(hub: EmbeddedHub, clock: StandingClock) -> None:
    at_once = RetryOptions(attempts=0)
    async with NativeClient(
        hub.connection_string("eh"), options=ConnectionOptions(clock=clock), retry=at_once
    ) as client:
        sender = await client.sender("0")
        await sender.send([Event(b"x") for _ in range(1000)])
        with pytest.raises(ConnectionFailed, match="server-busy") as refusal:
            await sender.send([Event(b"x")])
        assert server_busy().description in str(refusal.value)
        assert "Error code : 50002. Please wait 4 seconds" in str(refusal.value)
        assert hub.namespace.hub("eh").partitions[0].log.next_sequence == 1000
        clock.at += 4
        await sender.send([Event(b"x")])


@pytest.mark.parametrize("sdk_name", ["sync", "aio"])
async def test_the_official_client_gets_server_busy(sdk_name: str) -> None:
    async with EmbeddedHub({"eh": 1}, throughput_units=1, clock=StandingClock(time.time())) as hub:
        sdk = SDKS[sdk_name](BackgroundCloser())
        async with sdk.producer(hub.connection_string("eh"), retry_total=0) as producer:
            await producer.send_batch([EventData(b"x") for _ in range(1000)])
            with pytest.raises(EventHubError, match="Error code : 50002") as refusal:
                await producer.send_batch([EventData(b"x")])
    assert refusal.value.error == "server-busy"


async def test_readers_get_no_more_than_the_rate() -> None:
    clock = StandingClock()
    async with (
        EmbeddedHub({"eh": 1}, throughput_units=1, clock=clock) as hub,
        client_of(hub) as client,
    ):
        sender = await client.sender("0")
        for _ in range(16):
            await sender.send([Event(b"x") for _ in range(1000)])
            clock.at += 4
        partition = hub.namespace.hub("eh").partitions[0]
        reader = await client.reader(ReaderOptions("0", prefetch=100_000))
        await take(reader, 4096)
        for _ in range(10):
            await client.properties()  # the hub has time to send, and does not
        # At most one slice more than allowed: the level of the bucket may become negative.
        assert 4096 <= partition.events_sent < 3 * 4096
        rest = 16_000 - 4096
        while rest:
            clock.at += 1
            rest -= await take(reader, min(rest, 4096))  # sending resumes without a request


async def take(reader: NativeReader, count: int) -> int:
    left = count
    async with asyncio.timeout(DEADLINE_S):
        while left:
            left -= len(await reader.receive(left, DEADLINE_S))
    return count
