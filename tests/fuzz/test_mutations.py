"""The fuzz targets without a fuzzer: thousands of spoilt copies of good bytes, by a fixed seed."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.corpus import corpus
from tests.fuzz.targets import TARGETS

RUNS = {
    "decode": 10_000,
    "message": 10_000,
    "payload": 10_000,
    "words": 4000,
    "login": 1000,
    "session": 2000,
}
CORPUS = corpus()

# What breaks parsers: the edges of numbers, and the constructors of AMQP.
NUMBERS = "00 01 7f 80 ff 7fffffff 80000000 ffffffff 0000000000000000 ffffffffffffffff"
CODES = "40 41 42 43 44 45 53 56 a0 a1 a3 b0 b1 c0 c1 d0 d1 e0 f0 00a30161 d00000000400000001"
NAMED = "005370 005372 005375 005377 005312 005313 005314 005316 005317 005318 005324 00531d"
SPICE = [bytes.fromhex(text) for text in f"{NUMBERS} {CODES} {NAMED}".split()]


def spoil(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """A copy with something wrong in it, or with several things."""
    spoilt = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        at = random.randrange(len(spoilt) + 1)
        match random.randrange(7):
            case 0 if spoilt:
                spoilt[at - 1] ^= 1 << random.randrange(8)
            case 1 if spoilt:
                spoilt[at - 1] = random.randrange(256)
            case 2:
                spoilt[at:at] = random.choice(SPICE)
            case 3:
                piece = random.choice(SPICE)
                spoilt[at : at + len(piece)] = piece
            case 4:
                del spoilt[at : at + random.choice((1, 2, 8, 100))]
            case 5:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                spoilt[at:at] = other[start : start + random.choice((1, 4, 30, 1000))]
            case _:
                del spoilt[at:]
    return bytes(spoilt)


def test_there_is_a_corpus_for_every_target() -> None:
    assert CORPUS.keys() == TARGETS.keys() == RUNS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_good_bytes_are_good(name: str) -> None:
    for data in CORPUS[name]:
        TARGETS[name](data)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes(name: str, seed: int) -> None:
    random, good = Random(f"{name} {seed}"), CORPUS[name]
    for run in range(RUNS[name] // 2):
        data = spoil(random.choice(good), random, good)
        try:
            TARGETS[name](data)
        except Exception as wrong:
            pytest.fail(f"{name}, seed {seed}, run {run}: {wrong!r} for {data.hex()}")
