"""Epoch rules of the service (with epoch, without, mixed mode), as a table and a property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.epochs import LINK_STOLEN, READERS_MAX, RESOURCE_LIMIT, Reader, decide

# A partition as a picture: one number per present reader, "-" for one without epoch.
EVICT_ALL, ADMIT, REFUSE = "evict", "admit", "refuse"


def readers(picture: str) -> list[Reader]:
    return [Reader(i, None, epoch(text)) for i, text in enumerate(picture.split())]


def epoch(text: str) -> int | None:
    return None if text == "-" else int(text)


@pytest.mark.parametrize(
    ("present", "newcomer", "outcome"),
    [
        # With epoch: no reader present, any value is admitted.
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
        # Mixed: the epoch takes precedence, also if it comes later, and zero is an epoch.
        ("0", "-", REFUSE),
        ("3", "-", REFUSE),
        ("-", "0", EVICT_ALL),
        ("- - - - -", "0", EVICT_ALL),
        ("- - - - -", "9", EVICT_ALL),
    ],
)
def test_the_epoch_rules(present: str, newcomer: str, outcome: str) -> None:
    others = readers(present)
    decision = decide(others, Reader(99, None, epoch(newcomer)))
    assert decision.admit is (outcome != REFUSE)
    assert decision.evict == (tuple(r.id for r in others) if outcome == EVICT_ALL else ())
    assert len(decision.evict_errors) == len(decision.evict)
    assert bool(decision.text) is (outcome == REFUSE)
    assert bool(decision.condition) is (outcome != ADMIT)


def test_an_evicted_reader_gets_the_name_of_the_new_one() -> None:
    decision = decide([Reader(1, "host-a", 11)], Reader(2, "host-b", 12))
    assert decision.condition == LINK_STOLEN == "amqp:link:stolen"
    assert decision.evict_errors == (
        "New receiver 'host-b' with higher epoch of '12' is created hence current receiver "
        "'host-a' with epoch '11' is getting disconnected. If you are recreating the receiver, "
        "make sure a higher epoch is used.",
    )


def test_missing_names_are_nil_and_equal_epochs_are_called_higher_as_the_service_does() -> None:
    decision = decide([Reader(1, None, 0)], Reader(2, None, 0))
    assert decision.evict_errors[0].startswith(
        "New receiver 'nil' with higher epoch of '0' is created hence current receiver 'nil' "
        "with epoch '0' is getting disconnected."
    )


def test_each_evicted_reader_gets_the_text_about_itself() -> None:
    decision = decide([Reader(7, "a"), Reader(4, None), Reader(5, "c")], Reader(9, "d", 1))
    assert decision.evict == (7, 4, 5)
    for text, name in zip(decision.evict_errors, ("a", "nil", "c"), strict=True):
        assert f"current receiver '{name}' with epoch 'nil' is getting disconnected." in text
        assert text.startswith("New receiver 'd' with higher epoch of '1' is created")


def test_a_lower_epoch_is_refused_with_the_text_of_the_service() -> None:
    decision = decide([Reader(1, None, 1)], Reader(2, None, 0))
    assert (decision.condition, decision.text) == (
        "amqp:link:stolen",
        "Receiver 'nil' with a higher epoch '1' already exists. Receiver 'nil' with epoch 0 "
        "cannot be created. Make sure you are creating receiver with increasing epoch value to "
        "ensure connectivity, or ensure all old epoch receivers are closed or disconnected.",
    )


def test_a_reader_without_epoch_is_refused_beside_one_with_an_epoch() -> None:
    decision = decide([Reader(1, "host-a", 5)], Reader(2))
    assert decision.condition == "amqp:link:stolen"
    assert decision.text == (
        "At least one receiver for the endpoint is created with epoch of '5', and so non-epoch "
        "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
        "receivers are closed or disconnected. "
        "Receiver 'host-a' is connected; receiver 'nil' was refused."
    )


def test_the_sixth_reader_without_epoch_is_refused_with_the_list_of_the_others() -> None:
    decision = decide([Reader(1, "a"), *readers("- - - -")], Reader(9, "f"))
    assert decision.condition == RESOURCE_LIMIT == "amqp:resource-limit-exceeded"
    assert decision.text == (
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
def test_any_sequence_of_readers_keeps_the_epoch_rules(
    history: list[tuple[str, str | None, int | None]],
) -> None:
    present: list[Reader] = []
    for number, (what, name, value) in enumerate(history):
        if what == "depart":
            present = [r for i, r in enumerate(present) if i != value]
            continue
        newcomer, before = Reader(number, name, value), tuple(present)
        decision = decide(present, newcomer)
        assert tuple(present) == before
        if decision.admit:
            present = [r for r in present if r.id not in decision.evict] + [newcomer]
        else:
            assert decision.evict == ()
            assert decision.text
        with_epoch = [r.epoch for r in present if r.epoch is not None]
        assert not with_epoch or len(present) == 1, "an epoch reader beside another"
        assert len(present) <= READERS_MAX
        all_epochs = [r.epoch for r in (*before, newcomer) if r.epoch is not None]
        assert not all_epochs or with_epoch == [max(all_epochs)], "the highest epoch wins"


@given(st.integers(0, 9), epochs, names)
def test_the_epoch_of_a_reader_that_left_does_not_count(
    gone: int, newcomer: int | None, name: str | None
) -> None:
    decide([], Reader(1, name, gone))
    decision = decide([], Reader(2, name, newcomer))
    assert decision.admit
    assert decision.evict == ()


@given(st.lists(epochs, max_size=4), epochs)
def test_names_and_ids_never_change_the_decision(
    present: list[int | None], new: int | None
) -> None:
    plain = [Reader(i, None, e) for i, e in enumerate(present)]
    named = [replace(r, name=f"host-{r.id}") for r in plain]
    first, second = decide(plain, Reader(9, None, new)), decide(named, Reader(9, "x", new))
    assert (first.admit, first.evict, first.condition) == (
        second.admit,
        second.evict,
        second.condition,
    )
