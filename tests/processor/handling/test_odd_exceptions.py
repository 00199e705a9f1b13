"""Handlers that raise what is not an Exception, or what has no text."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import PoisonEvent
from pumphouse.events import Event
from pumphouse.logs import shown_value
from pumphouse.processor.dead_letters import DeadLetterFile
from pumphouse.processor.handling.raised import as_failure
from pumphouse.processor.options import DEAD_LETTER, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.processor.reporting import Reporter
from tests.processor.support.hub_and_store import HubAndStore, until


class PanicException(BaseException):
    """As the extensions in Rust raise."""


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


ODD: list[BaseException] = [
    PanicException("index out of bounds"),
    WithoutText(),
    BaseExceptionGroup("several", [PanicException("x"), ValueError("y")]),
]
IDS = ["panic", "without text", "group"]


@pytest.mark.parametrize("raised", ODD, ids=IDS)
@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "plain"])
async def test_the_poison_policy_applies(
    raised: BaseException, is_plain: bool, tmp_path: Path
) -> None:
    errors: list[Exception] = []
    handled: list[bytes] = []

    def plain(partition: PartitionClient, events: list[Event]) -> None:
        for event in events:
            if event.body == b"bad":
                raise raised
            handled.append(event.body)

    async def coroutine(partition: PartitionClient, events: list[Event]) -> None:
        plain(partition, events)

    options = ProcessorOptions(
        poison=PoisonPolicy(retries=1, first_s=0.01, most_s=0.01, then=DEAD_LETTER)
    )
    dead_letters = DeadLetterFile(tmp_path / "dead.jsonl")
    async with HubAndStore(1) as env:
        await env.send("a", "bad", "b")
        processor = Processor(
            env.connection,
            store=env.store,
            options=options,
            on_error=lambda _, error: errors.append(error),
        )
        handler: Any = plain if is_plain else coroutine
        running = asyncio.create_task(processor.run(handler=handler, dead_letters=dead_letters))
        await until(lambda: b"b" in handled)
        await until(lambda: any(isinstance(error, PoisonEvent) for error in errors))
        await processor.stop()
        await running
        await env.until_checkpoint(2)
    [letter] = (tmp_path / "dead.jsonl").read_text().splitlines()
    assert type(raised).__name__ in letter


class TextFormatter(logging.Formatter):
    """Uses the text of an exception, as the formatter of PySpark does."""

    def format(self, record: logging.LogRecord) -> str:
        cause = f" {record.exc_info[1]}" if record.exc_info else ""
        return record.getMessage() + cause


@pytest.mark.parametrize("callback", [False, True])
def test_an_exception_without_text_is_logged_with_any_formatter(
    callback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(TextFormatter())
    reporter = Reporter("host-a")
    if callback:
        reporter.callback_failed("on_error", WithoutText())
    else:
        reporter.failed("handler_failed", "0", WithoutText())
    assert "WithoutText: <exception str() failed>" in caplog.text


async def test_a_loop_that_raises_no_exception_is_served_again() -> None:
    calls = 0

    async def serve(partition: PartitionClient) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise PanicException("in the loop")
        async for _ in partition.batches():
            pass

    errors: list[str] = []
    options = ProcessorOptions(backoff_first_s=0.01, backoff_most_s=0.01)
    async with HubAndStore(1) as env:
        processor = Processor(
            env.connection,
            store=env.store,
            options=options,
            on_error=lambda _, error: errors.append(str(error)),
        )
        running = asyncio.create_task(processor.run(serve))
        await until(lambda: calls == 2)
        await processor.stop()
        await running
    assert errors == ["user code raised PanicException, which is not an Exception: in the loop"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_what_ends_the_process_is_raised_again(raised: BaseException) -> None:
    with pytest.raises(type(raised)):
        as_failure(raised)
    with pytest.raises(BaseExceptionGroup):
        as_failure(BaseExceptionGroup("several", [raised, ValueError()]))


def test_a_value_without_a_text_can_be_logged() -> None:
    assert shown_value(WithoutText()) == (
        '"WithoutText: (no text: its __str__ raises RuntimeError)"'
    )
