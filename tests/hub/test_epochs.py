"""Epoch rules of the service (with epoch, without, mixed mode), as a table and a property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.epochs import LINK_STOLEN, READERS_MAX, RESOURCE_LIMIT, Reader, decide

# A partition as a picture: one word per reader present, "-" for one without epoch.
EVICT_ALL, ADMIT, REFUSE = "evict", "admit", "refuse"


def readers(picture: str) -> list[Reader]:
    return [Reader(i, None, epoch(word)) for i, word in enumerate(picture.split())]


def epoch(word: str) -> int | None:
    return None if word == "-" else int(word)


@pytest.mark.parametrize(
    ("present", "newcomer", "outcome"),
    [
        # With epoch: nobody there, any value will do.
        ("", "0", ADMIT),
        ("", "7", ADMIT),
        ("", "-1", ADMIT),
        # With epoch: e1 <= e2 evicts e1.
        ("0", "0", EVICT_ALL),
        ("0", "1", EVICT_ALL),
        ("11", "12", EVICT_ALL),
        ("9223372036854775806", "9223372036854775807", EVICT_ALL),
        # With epoch: e1 > e2 refuses e2.
        ("1", "0", REFUSE),
        ("12", "11", REFUSE),
        ("0", "-1", REFUSE),
        # Without epoch: up to five side by side.
        ("", "-", ADMIT),
        ("-", "-", ADMIT),
        ("- - - -", "-", ADMIT),
        ("- - - - -", "-", REFUSE),
        # Mixed: the epoch takes precedence whoever came first, and zero is an epoch.
        ("0", "-", REFUSE),
        ("3", "-", REFUSE),
        ("-", "0", EVICT_ALL),
        ("- - - - -", "0", EVICT_ALL),
        ("- - - - -", "9", EVICT_ALL),
    ],
)
def test_the_rules_of_seed_002(present: str, newcomer: str, outcome: str) -> None:
    there = readers(present)
    verdict = decide(there, Reader(99, None, epoch(newcomer)))
    assert verdict.admit is (outcome != REFUSE)
    assert verdict.evict == (tuple(r.id for r in there) if outcome == EVICT_ALL else ())
    assert len(verdict.evict_errors) == len(verdict.evict)
    assert bool(verdict.text) is (outcome == REFUSE)
    assert bool(verdict.condition) is (outcome != ADMIT)


def test_an_evicted_reader_is_told_who_took_its_place() -> None:
    verdict = decide([Reader(1, "host-a", 11)], Reader(2, "host-b", 12))
    assert verdict.condition == LINK_STOLEN == "amqp:link:stolen"
    assert verdict.evict_errors == (
        "New receiver 'host-b' with higher epoch of '12' is created hence current receiver "
        "'host-a' with epoch '11' is getting disconnected. If you are recreating the receiver, "
        "make sure a higher epoch is used.",
    )


def test_missing_names_are_nil_and_equal_epochs_are_called_higher_as_the_service_does() -> None:
    verdict = decide([Reader(1, None, 0)], Reader(2, None, 0))
    assert verdict.evict_errors[0].startswith(
        "New receiver 'nil' with higher epoch of '0' is created hence current receiver 'nil' "
        "with epoch '0' is getting disconnected."
    )


def test_each_evicted_reader_gets_the_text_about_itself() -> None:
    verdict = decide([Reader(7, "a"), Reader(4, None), Reader(5, "c")], Reader(9, "d", 1))
    assert verdict.evict == (7, 4, 5)
    for text, name in zip(verdict.evict_errors, ("a", "nil", "c"), strict=True):
        assert f"current receiver '{name}' with epoch 'nil' is getting disconnected." in text
        assert text.startswith("New receiver 'd' with higher epoch of '1' is created")


def test_a_lower_epoch_is_refused_in_the_words_of_the_service() -> None:
    verdict = decide([Reader(1, None, 1)], Reader(2, None, 0))
    assert (verdict.condition, verdict.text) == (
        "amqp:link:stolen",
        "Receiver 'nil' with a higher epoch '1' already exists. Receiver 'nil' with epoch 0 "
        "cannot be created. Make sure you are creating receiver with increasing epoch value to "
        "ensure connectivity, or ensure all old epoch receivers are closed or disconnected.",
    )


def test_an_epochless_reader_is_refused_beside_an_epoch() -> None:
    verdict = decide([Reader(1, "host-a", 5)], Reader(2))
    assert verdict.condition == "amqp:link:stolen"
    assert verdict.text == (
        "At least one receiver for the endpoint is created with epoch of '5', and so non-epoch "
        "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
        "receivers are closed or disconnected. "
        "Receiver 'host-a' is connected; receiver 'nil' was refused."
    )


def test_the_sixth_epochless_reader_is_refused_with_the_list_of_the_others() -> None:
    verdict = decide([Reader(1, "a"), *readers("- - - -")], Reader(9, "f"))
    assert verdict.condition == RESOURCE_LIMIT == "amqp:resource-limit-exceeded"
    assert verdict.text == (
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which "
        "is 5. List of connected receivers - a, nil, nil, nil, nil. Receiver 'f' was refused."
    )


def test_the_quota_is_an_argument() -> None:
    assert not decide(readers("- -"), Reader(9), readers_max=2).admit
    assert "which is 2." in decide(readers("- -"), Reader(9), readers_max=2).text
    assert decide(readers("- - - - -"), Reader(9), readers_max=6).admit


names = st.none() | st.sampled_from(["host-a", "host-b"])
epochs = st.none() | st.integers(0, 3)
arrivals = st.tuples(st.just("arrive"), names, epochs)
departures = st.tuples(st.just("depart"), st.none(), st.integers(0, 9))


@given(st.lists(arrivals | departures, max_size=40))
def test_any_coming_and_going_keeps_the_partition_in_order(
    history: list[tuple[str, str | None, int | None]],
) -> None:
    present: list[Reader] = []
    for number, (what, name, value) in enumerate(history):
        if what == "depart":
            present = [r for i, r in enumerate(present) if i != value]
            continue
        newcomer, before = Reader(number, name, value), tuple(present)
        verdict = decide(present, newcomer)
        assert tuple(present) == before
        if verdict.admit:
            present = [r for r in present if r.id not in verdict.evict] + [newcomer]
        else:
            assert verdict.evict == ()
            assert verdict.text
        with_epoch = [r.epoch for r in present if r.epoch is not None]
        assert not with_epoch or len(present) == 1, "an epoch reader beside another"
        assert len(present) <= READERS_MAX
        seen = [r.epoch for r in (*before, newcomer) if r.epoch is not None]
        assert not seen or with_epoch == [max(seen)], "the highest epoch wins"


@given(st.integers(0, 9), epochs, names)
def test_nothing_is_remembered_of_a_reader_that_is_gone(
    gone: int, newcomer: int | None, name: str | None
) -> None:
    decide([], Reader(1, name, gone))
    verdict = decide([], Reader(2, name, newcomer))
    assert verdict.admit
    assert verdict.evict == ()


@given(st.lists(epochs, max_size=4), epochs)
def test_names_and_ids_never_change_the_verdict(there: list[int | None], new: int | None) -> None:
    plain = [Reader(i, None, e) for i, e in enumerate(there)]
    named = [replace(r, name=f"host-{r.id}") for r in plain]
    one, other = decide(plain, Reader(9, None, new)), decide(named, Reader(9, "x", new))
    assert (one.admit, one.evict, one.condition) == (other.admit, other.evict, other.condition)
