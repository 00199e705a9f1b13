"""Options that do not exist: the error has the closest one that does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.hosting.group import ProcessorGroup
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.processor import Processor

HUB = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh"
STORE = MemoryStore()


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        (lambda more: Processor(HUB, store=STORE, **more), "did you mean store?"),
        (lambda more: EventProcessorHost("vm", HUB, store=STORE, **more), "mean store?"),
        (
            lambda more: FixedPartitionProcessor(HUB, partitions=1, store=STORE, **more),
            "FixedPartitionProcessor has no option 'stor_s': did you mean stop_s?",
        ),
        (lambda more: ProcessorGroup(HUB, store=STORE, **more), "did you mean store?"),
        (lambda more: ProcessorOptions(**more), "ProcessorOptions has no option 'stor_s': did you"),
        (lambda more: replace(ProcessorOptions(), **more), "did you mean stop_s?"),
        (lambda more: PoisonPolicy(**more), "PoisonPolicy has no option 'stor_s': did you mean "),
        (lambda more: CheckpointPolicy(**more), "'stor_s': it has every_events, every_s"),
    ],
)
async def test_an_unknown_option_is_refused_with_the_closest_name(
    create: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        create({"stor_s": 1})
