"""Classes and functions that are registered are checked at once."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from pumphouse.errors import OptionError
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.checks.factories import check_factory, check_methods
from pumphouse.processor.host import EventProcessorHost
from tests.processor.support.virtual_time import run


class WithoutOpen:
    async def close(self, context: object, reason: object) -> None: ...

    async def process_events(self, context: object, messages: object) -> None: ...

    async def process_error(self, context: object, error: object) -> None: ...


class WithoutReason(WithoutOpen):
    def open(self, context: object) -> None: ...

    async def close(self, context: object) -> None: ...  # type: ignore[override]


class Static:
    """Methods of every kind that can be called with the arguments."""

    @staticmethod
    def open(context: object) -> None: ...

    @classmethod
    async def close(cls, *arguments: object) -> None: ...

    def process_events(self, context: object, messages: object, limit: int = 3) -> None: ...

    process_error = Mock()


class TwoArguments(Static):
    def __init__(self, context: object, database: object) -> None: ...


def two_arguments(context: object, database: object) -> Static:
    return Static()


async def coroutine(context: object) -> Static:
    return Static()


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (WithoutOpen, "the class WithoutOpen has no method open: an event processor needs open, "),
        (dict, "the class dict has no method open and no method close and no method process_"),
        (
            WithoutReason,
            r"close is called as close\(self, context, reason\), which WithoutReason.close\(self, "
            r"context: .*\) .* does not accept: too many positional arguments",
        ),
        (
            TwoArguments,
            r"factory is called as factory\(context\), which TwoArguments\(context: .*, database: "
            r".* does not accept: missing a required argument: 'database'",
        ),
        (
            two_arguments,
            r"factory is called as factory\(context\), which two_arguments\(.* does not accept",
        ),
        (
            coroutine,
            "factory must be a plain function, and coroutine is a coroutine function: define it "
            "with `def`",
        ),
        ("WithoutOpen", "register\\(\\) needs a class or a function .* \\(got 'WithoutOpen'\\)"),
    ],
)
def test_a_class_without_a_method_is_refused(factory: Any, reason: str) -> None:
    async def scenario() -> None:
        host = EventProcessorHost(
            "a",
            "Endpoint=sb://unused/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh",
            store=MemoryStore(),
        )
        with pytest.raises(OptionError, match=reason):
            await host.register(factory)

    run(scenario())


def test_an_object_without_a_method_is_refused() -> None:
    with pytest.raises(OptionError, match="the object has no method open"):
        check_methods(WithoutOpen(), "the object")


def test_an_object_whose_method_lacks_a_parameter_is_refused() -> None:
    with pytest.raises(OptionError, match=r"close is called as close\(context, reason\), which "):
        check_methods(WithoutReason(), "the object")


def test_methods_of_every_kind_are_accepted() -> None:
    check_methods(Static, "the class")
    check_methods(Static(), "the object")


def test_factories_with_and_without_a_parameter_are_accepted() -> None:
    class Called(Static):
        async def __call__(self) -> None: ...

    for factory in (Static, Called, Mock(), lambda: Static(), lambda context: Static()):
        check_factory(factory)
    check_factory(partial(two_arguments, database=None))
    check_factory(lambda *arguments, limit=3: Static())
