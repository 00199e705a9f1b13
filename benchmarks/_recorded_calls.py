"""What recording adds to one call of `receive`, and to one call of a handler, in this process.

    python -m benchmarks._recorded_calls

A microsecond per batch is lost in the noise of a whole processor, but not here: each call is made
many times with and without recording, in turns, and the cheapest round of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from benchmarks._processes import print_result
from pumphouse.client.metered import MeteredReading, Operation
from pumphouse.client.wrapped import ObservedReader
from pumphouse.clock import SystemClock
from pumphouse.events import Event
from pumphouse.processor.recording.host_metrics import MeteredCalls, MeteredOperation
from pumphouse.processor.recording.recorder import CALL, LOOP, NO_CALLS, CallRecorder
from pumphouse.telemetry.definitions import CONSUMED_MESSAGES, OPERATION_DURATION, PROCESS_DURATION

ROUNDS, CALLS = 7, 50_000
BATCH = [Event(b"x")] * 100
LABELS = {"messaging.system": "eventhubs", "messaging.destination.partition.id": "0"}


class ReadyReader:
    """A reader that always has a batch."""

    async def receive(self, events_max: int, deadline_s: float) -> list[Event]:
        return BATCH


def finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that does not wait."""
    with suppress(StopIteration):
        coroutine.send(None)


def reading(reader: Any) -> Callable[[], None]:
    return lambda: finish(reader.receive(300, 60.0))


def handling(calls: CallRecorder) -> Callable[[], None]:
    """What a host does around one call of a handler."""
    calls.use(CALL)

    def call() -> None:
        calls.begin(LOOP, BATCH)
        with calls.calling(CALL, BATCH):
            pass
        calls.end(LOOP)

    return call


def cost_us(call: Callable[[], None]) -> float:
    began_s = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - began_s) / CALLS * 1e6


def added_us(recorded: Callable[[], None], plain: Callable[[], None]) -> float:
    rounds = [(cost_us(recorded), cost_us(plain)) for _ in range(ROUNDS)]
    return min(cost for cost, _ in rounds) - min(cost for _, cost in rounds)


def main() -> None:
    clock = SystemClock()
    operation = Operation("receive", CONSUMED_MESSAGES, set(), time.monotonic)
    observed: Any = ObservedReader(ReadyReader(), MeteredReading(operation))  # type: ignore[arg-type]
    calls = MeteredCalls(
        MeteredOperation(PROCESS_DURATION, LABELS),
        MeteredOperation(OPERATION_DURATION, LABELS),
        clock,
    )
    print_result(
        receive_us=added_us(reading(observed), reading(ReadyReader())),
        handler_us=added_us(handling(calls), handling(NO_CALLS)),
    )


if __name__ == "__main__":
    main()
