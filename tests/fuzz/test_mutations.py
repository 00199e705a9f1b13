"""The fuzz targets without a fuzzer: thousands of mutated valid inputs, with a fixed seed."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.corpus import corpus
from tests.fuzz.targets import TARGETS

RUNS = {
    "decode": 10_000,
    "message": 10_000,
    "payload": 10_000,
    "texts": 4000,
    "login": 1000,
    "session": 2000,
}
CORPUS = corpus()

# Bytes that often break parsers: the edges of numbers, and the constructors of AMQP.
NUMBERS = "00 01 7f 80 ff 7fffffff 80000000 ffffffff 0000000000000000 ffffffffffffffff"
CONSTRUCTORS = (
    "40 41 42 43 44 45 53 56 a0 a1 a3 b0 b1 c0 c1 d0 d1 e0 f0 00a30161 d00000000400000001"
)
DESCRIPTORS = "005370 005372 005375 005377 005312 005313 005314 005316 005317 005318 005324 00531d"
INTERESTING = [bytes.fromhex(text) for text in f"{NUMBERS} {CONSTRUCTORS} {DESCRIPTORS}".split()]


def mutate(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """A copy with one or more random changes."""
    mutated = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        at = random.randrange(len(mutated) + 1)
        match random.randrange(7):
            case 0 if mutated:
                mutated[at - 1] ^= 1 << random.randrange(8)
            case 1 if mutated:
                mutated[at - 1] = random.randrange(256)
            case 2:
                mutated[at:at] = random.choice(INTERESTING)
            case 3:
                piece = random.choice(INTERESTING)
                mutated[at : at + len(piece)] = piece
            case 4:
                del mutated[at : at + random.choice((1, 2, 8, 100))]
            case 5:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                mutated[at:at] = other[start : start + random.choice((1, 4, 30, 1000))]
            case _:
                del mutated[at:]
    return bytes(mutated)


def test_there_is_a_corpus_for_every_target() -> None:
    assert CORPUS.keys() == TARGETS.keys() == RUNS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_the_unchanged_corpus_passes(name: str) -> None:
    for data in CORPUS[name]:
        TARGETS[name](data)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_bytes(name: str, seed: int) -> None:
    random, valid = Random(f"{name} {seed}"), CORPUS[name]
    for run in range(RUNS[name] // 2):
        data = mutate(random.choice(valid), random, valid)
        try:
            TARGETS[name](data)
        except Exception as failure:
            pytest.fail(f"{name}, seed {seed}, run {run}: {failure!r} for {data.hex()}")
