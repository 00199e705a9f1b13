"""The whole contract at once: any sequence of calls, on any store, ends as in a simple model.

The model is a dictionary per kind of row. Hosts write over the stored row or an older one, through
two handles, with lost responses. After every step the store must return what the model has, ages
and deadlines included.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pumphouse.leases import model
from pumphouse.leases.flaky_store import Fault, FlakyStore, ScriptedFaults
from pumphouse.leases.model import Checkpoint, Granted, Ownership, Refused, Unknown
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import checkpoints, kept, members, rows
from tests.leases.contract.stores import GROUP, STORES, ReadyMaker, ready

T = TypeVar("T")
PARTITIONS = st.sampled_from(["0", "1", "2"])
HOSTS = st.sampled_from(["a", "b", "c"])
HANDLES = st.integers(0, 1)
FAULTS = st.sampled_from(["", "", "", "before", "after"])
BACK = st.sampled_from([1, 1, 1, 2, 3])  # over the newest row, or an older one


@dataclass(frozen=True)
class Write:
    """A granted row, and the times before and after its write."""

    row: Ownership
    since: float
    until: float


class Fleet(RuleBasedStateMachine):
    def __init__(self, maker: ReadyMaker) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = self.run(self.stack.enter_async_context(maker(Path(self.directory.name))))
        opened = [self.run(self.stack.enter_async_context(self.backend.open())) for _ in range(2)]
        self.handles: list[CheckpointStore] = opened
        self.rows: dict[str, list[Write | None]] = {p: [None] for p in "012"}
        self.marks: dict[str, list[Checkpoint | None]] = {p: [None] for p in "012"}
        self.beats: dict[str, tuple[float, float]] = {}

    def run(self, doing: Awaitable[T]) -> T:
        async def go() -> T:
            return await doing

        return self.runner.run(go())

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()
        self.directory.cleanup()

    # -- ownerships -------------------------------------------------------------------------------

    @rule(partition=PARTITIONS, host=HOSTS, handle=HANDLES, fault=FAULTS, back=BACK)
    def claim(self, partition: str, host: str, handle: int, fault: Fault, back: int) -> None:
        def take(row: Ownership | None) -> Ownership | None:
            if row is not None and row.owner == host and row.successor:
                return None  # an owner that claims its own row would drop the successor: a misuse
            return model.claim(row, partition, host)

        self.follow(partition, handle, fault, back, take)

    @rule(
        partition=PARTITIONS,
        handle=HANDLES,
        fault=FAULTS,
        back=BACK,
        rate=st.none() | st.integers(0, 5000).map(float),
        state=st.sampled_from(("", *model.STATES)),
    )
    def renew(
        self,
        partition: str,
        handle: int,
        fault: Fault,
        back: int,
        rate: float | None,
        state: str,
    ) -> None:
        def extend(row: Ownership | None) -> Ownership | None:
            return row and model.renew(row, rate, state if row.owner else "")

        self.follow(partition, handle, fault, back, extend)

    @rule(partition=PARTITIONS, handle=HANDLES, fault=FAULTS, back=BACK)
    def release(self, partition: str, handle: int, fault: Fault, back: int) -> None:
        self.follow(partition, handle, fault, back, lambda row: row and model.release(row))

    @rule(
        partition=PARTITIONS,
        host=HOSTS,
        handle=HANDLES,
        fault=FAULTS,
        back=BACK,
        deadline_s=st.integers(1, 300),
    )
    def nominate(
        self, partition: str, host: str, handle: int, fault: Fault, back: int, deadline_s: int
    ) -> None:
        def ask(row: Ownership | None) -> Ownership | None:
            if row is None or row.owner in ("", host) or row.successor:
                return None
            return model.nominate(row, host, float(deadline_s))

        self.follow(partition, handle, fault, back, ask)

    @rule(partition=PARTITIONS, handle=HANDLES, fault=FAULTS, back=BACK)
    def hand_over(self, partition: str, handle: int, fault: Fault, back: int) -> None:
        self.follow(
            partition,
            handle,
            fault,
            back,
            lambda row: model.hand_over(row) if row and row.successor else None,
        )

    @rule(partition=PARTITIONS, handle=HANDLES, back=BACK, above=st.integers(0, 50))
    def raise_epoch(self, partition: str, handle: int, back: int, above: int) -> None:
        self.follow(partition, handle, "", back, lambda row: row and model.raise_epoch(row, above))

    def follow(
        self,
        partition: str,
        handle: int,
        fault: Fault,
        back: int,
        step: Callable[[Ownership | None], Ownership | None],
    ) -> None:
        """Write the successor of the row `back` writes ago; it is granted if that is the newest."""
        history = self.rows[partition]
        base_write = history[-min(back, len(history))]
        base = (
            None
            if base_write is None
            else model.aged(base_write.row, self.backend.now() - base_write.since)
        )
        if (requested := step(base)) is None:
            return
        flaky = FlakyStore(self.handles[handle], ScriptedFaults([fault]))
        since = self.backend.now()
        (outcome,) = self.run(flaky.claim_ownership(GROUP, [requested]))
        until = self.backend.now()
        fits = base_write is history[-1]
        if fault:
            assert isinstance(outcome, Unknown)
            listed = self.run(rows(self.handles[0])).get(partition)
            arrived = listed is not None and listed.etag != etag_of(history[-1])
            assert arrived == (fits and fault == "after")
            if arrived and listed is not None:
                history.append(Write(replace(requested, etag=listed.etag, age_s=0.0), since, until))
        elif fits:
            assert isinstance(outcome, Granted)
            assert outcome.row == replace(requested, etag=outcome.row.etag, age_s=0.0)
            assert outcome.row.etag not in {etag_of(write) for write in history}
            history.append(Write(outcome.row, since, until))
        else:
            assert isinstance(outcome, Refused)
            assert outcome.requested == requested

    # -- checkpoints ------------------------------------------------------------------------------

    @rule(partition=PARTITIONS, handle=HANDLES, fault=FAULTS, back=BACK)
    def stamp(self, partition: str, handle: int, fault: Fault, back: int) -> None:
        history = self.marks[partition]
        base_write = history[-min(back, len(history))]
        epoch = 1 if base_write is None else base_write.epoch + 1
        self.mark(base_write, model.stamp(base_write, GROUP, partition, epoch), handle, fault)

    @rule(
        partition=PARTITIONS,
        handle=HANDLES,
        fault=FAULTS,
        back=BACK,
        by=st.integers(-30, 100),
        offset=st.none() | st.text("0123456789", min_size=1, max_size=9),
    )
    def advance(
        self,
        partition: str,
        handle: int,
        fault: Fault,
        back: int,
        by: int,
        offset: str | None,
    ) -> None:
        history = self.marks[partition]
        if (base_write := history[-min(back, len(history))]) is None:
            return
        sequence = max(0, (base_write.sequence or 0) + by)
        requested = model.advance(base_write, sequence, offset, sequence * 1000)
        self.mark(
            base_write, requested, handle, fault, rewind=model.goes_back(base_write, requested)
        )

    def mark(
        self,
        base_write: Checkpoint | None,
        requested: Checkpoint,
        handle: int,
        fault: Fault,
        rewind: bool = False,
    ) -> None:
        history = self.marks[requested.partition]
        flaky = FlakyStore(self.handles[handle], ScriptedFaults([fault]))
        outcome = self.run(flaky.update_checkpoint(requested, rewind=rewind))
        fits = base_write is history[-1]
        if fault:
            assert isinstance(outcome, Unknown)
            if fits and fault == "after":
                history.append(self.run(checkpoints(self.handles[0]))[requested.partition])
                assert replace(requested, etag=etag_of(history[-1])) == history[-1]
        elif fits:
            assert isinstance(outcome, Granted)
            assert outcome.row == replace(requested, etag=outcome.row.etag)
            assert outcome.row.etag not in {etag_of(mark) for mark in history}
            history.append(outcome.row)
        else:
            assert isinstance(outcome, Refused)

    # -- members and time -------------------------------------------------------------------------

    @rule(host=HOSTS, handle=HANDLES)
    def beat(self, host: str, handle: int) -> None:
        since = self.backend.now()
        self.run(self.handles[handle].beat(GROUP, host))
        self.beats[host] = (since, self.backend.now())

    @rule(host=HOSTS, handle=HANDLES)
    def leave(self, host: str, handle: int) -> None:
        self.run(self.handles[handle].leave(GROUP, host))
        self.beats.pop(host, None)

    @precondition(lambda self: self.backend.movable)
    @rule(seconds=st.integers(1, 200))
    def pass_time(self, seconds: int) -> None:
        self.run(self.backend.pass_time(float(seconds)))

    @invariant()
    def the_store_equals_the_model(self) -> None:
        for handle in self.handles:
            since = self.backend.now()
            listed = self.run(rows(handle))
            present = self.run(members(handle))
            until = self.backend.now()
            assert set(listed) == {p for p, history in self.rows.items() if history[-1]}
            for partition, row in listed.items():
                self.agree(row, self.rows[partition][-1], since, until)
            assert set(present) == set(self.beats)
            for name, (beat_since, beat_until) in self.beats.items():
                self.between(present[name].age_s, since - beat_until, until - beat_since)
            newest = {p: history[-1] for p, history in self.marks.items() if history[-1]}
            assert self.run(checkpoints(handle)) == newest

    def agree(self, row: Ownership, write: Write | None, since: float, until: float) -> None:
        assert write is not None
        assert kept(row) == kept(write.row)
        least, most = since - write.until, until - write.since
        if self.backend.ages:
            self.between(row.age_s, least, most)
        assert (row.deadline_s is None) == (write.row.deadline_s is None)
        if row.deadline_s is not None and write.row.deadline_s is not None:
            passed = write.row.deadline_s - row.deadline_s
            self.between(passed, least, most)

    def between(self, passed: float, least: float, most: float) -> None:
        slack = self.backend.resolution_s
        assert least - slack <= passed <= most + slack


def etag_of(stored_write: Write | Checkpoint | None) -> str:
    if stored_write is None:
        return ""
    return stored_write.row.etag if isinstance(stored_write, Write) else stored_write.etag


# Each step of a blob store is several requests to an emulator.
EXAMPLES = {"memory": 40, "sqlite": 20, "postgres": 5, "redis": 5, "blob": 5, "bloblease": 5}


def check_histories(name: str, request: pytest.FixtureRequest, examples: int) -> None:
    maker = ready(STORES[name], request)

    class StoreMachine(Fleet):
        def __init__(self) -> None:
            super().__init__(maker)

    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORES)
def test_any_history_ends_as_the_model_says(name: str, request: pytest.FixtureRequest) -> None:
    check_histories(name, request, EXAMPLES[name])


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STORES)
def test_any_long_history_ends_as_the_model_says(name: str, request: pytest.FixtureRequest) -> None:
    check_histories(name, request, 100)
