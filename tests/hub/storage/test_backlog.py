"""The queue to the disk: who waits, and who continues when there is room."""

from __future__ import annotations

from pumphouse.hub.storage.backlog import Backlog


class Producer:
    """Adds one batch each time there is room, and waits again until all are added."""

    def __init__(self, backlog: Backlog, batches: int, size: int, log: list[Producer]) -> None:
        self.backlog, self.batches, self.size, self.log = backlog, batches, size, log

    def storage_ready(self) -> None:
        self.log.append(self)
        self.backlog.add(self.size)
        self.batches -= 1
        if self.batches:
            self.backlog.wait(self)


def test_waiting_producers_continue_in_turn_while_there_is_room() -> None:
    backlog = Backlog(100)
    log: list[Producer] = []
    backlog.add(130)
    first, second = Producer(backlog, 3, 40, log), Producer(backlog, 3, 40, log)
    backlog.wait(first)
    backlog.wait(second)
    backlog.remove(10)
    assert log == []
    backlog.remove(60)
    assert (log, backlog.held) == ([first], 100)  # full again
    backlog.remove(100)
    assert (log, backlog.held) == ([first, second, first, second], 120)


def test_a_producer_that_has_left_is_not_called() -> None:
    backlog = Backlog(100)
    log: list[Producer] = []
    backlog.add(100)
    producer = Producer(backlog, 1, 1, log)
    backlog.wait(producer)
    backlog.forget(producer)
    backlog.forget(producer)
    backlog.remove(100)
    assert log == []


def test_memory_is_never_full() -> None:
    backlog = Backlog()
    backlog.add(1 << 60)
    assert not backlog.full
