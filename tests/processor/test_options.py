"""Options of the processors: invalid ones are refused with the reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.dead_letters import DeadLetterFile, DeadLetterHub
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.hosting.group import ProcessorGroup
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    FixedPartitionOptions,
    PartitionManagerOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.processor import Processor, coroutine_of

STORAGE = (
    "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;BlobEndpoint=http://127.0.0.1:1/a"
)
HUB = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lease_s": 15.0}, r"at least 2 x renew_s.*lease_s=15, renew_s=10"),
        ({"renew_s": 0}, r"renew_s must be above 0 \(got 0\)"),
        ({"interval_s": -1}, "interval_s must be above 0"),
        ({"interval_s": float("nan")}, "interval_s must be above 0"),
        ({"hand_off_s": 5.0}, "hand_off_s must be at least renew_s"),
        ({"stop_s": 0}, "stop_s must be above 0"),
        ({"prefetch": 0}, r"prefetch must be at least 1 \(got 0\)"),
        ({"batch_events_max": 0}, "batch_events_max must be at least 1"),
        ({"batch_bytes_max": 0}, "batch_bytes_max must be at least 1"),
        ({"max_partitions": 0}, "max_partitions must be at least 1"),
        ({"max_wait_s": 0}, "max_wait_s must be above 0"),
        ({"handler_timeout_s": 0}, "handler_timeout_s must be above 0"),
        ({"handler_threads": 0}, "handler_threads must be at least 1"),
        ({"backoff_most_s": 0.1}, "backoff_most_s must be at least backoff_first_s"),
    ],
)
def test_invalid_processor_options_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ProcessorOptions(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"retries": -1}, "retries must be at least 0"),
        ({"first_s": 5.0, "most_s": 1.0}, "0 < first_s <= most_s"),
        ({"then": "pray"}, "then must be one of stop, skip, dead-letter"),
    ],
)
def test_an_invalid_poison_policy_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        PoisonPolicy(**settings)


@pytest.mark.parametrize("settings", [{"every_events": 0}, {"every_s": 0.0}])
def test_an_invalid_checkpoint_policy_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="every_"):
        CheckpointPolicy(**settings)


NAN, INF = float("nan"), float("inf")
EACH = (ProcessorOptions, EventProcessorOptions, FixedPartitionOptions)  # of one API each


@pytest.mark.parametrize(
    ("classes", "name", "value", "sentence"),
    [
        ((ProcessorOptions, FixedPartitionOptions), "lease_s", NAN, "must be above 0 (got nan)"),
        ((ProcessorOptions, FixedPartitionOptions), "lease_s", INF, "must be finite (got inf)"),
        ((ProcessorOptions, FixedPartitionOptions), "renew_s", INF, "must be finite (got inf)"),
        ([PartitionManagerOptions], "lease_duration_s", NAN, "must be above 0 (got nan)"),
        ([PartitionManagerOptions], "lease_duration_s", INF, "must be finite (got inf)"),
        (
            [PartitionManagerOptions],
            "lease_duration_s",
            "30",
            "must be a number of seconds (got '3",
        ),
        (
            [PartitionManagerOptions],
            "renew_interval_s",
            "10",
            "must be a number of seconds (got '1",
        ),
        (EACH, "stop_s", "30", "must be a number of seconds (got '30')"),
        (EACH, "stop_s", None, "must be a number of seconds (got None)"),
        (EACH, "stop_s", True, "must be a number of seconds (got True)"),
        (EACH, "stop_s", INF, "must be finite (got inf)"),
        (EACH, "handler_timeout_s", "60", "must be a number of seconds (got '60')"),
        (EACH, "give_up_s", NAN, "must be above 0 (got nan)"),
        (EACH, "prefetch_bytes", "1", "must be a whole number (got '1')"),
        (EACH, "prefetch_bytes_total", 0, "must be at least 1 (got 0)"),
        (EACH, "handler_threads", 1.5, "must be a whole number (got 1.5)"),
        (EACH, "poison", "skip", "must be a PoisonPolicy, such as PoisonPolicy(then='skip') (got"),
        (EACH, "on_handler_timeout", None, "must be one of report, cancel, give-up (got None)"),
        (EACH, "on_expired", "ignore", "must be 'report', 'fail' or a function (got 'ignore')"),
        (EACH, "checkpoint_on_stop", "no", "must be True or False (got 'no')"),
        (
            EACH[:2],
            "checkpoints",
            5,
            "must be a CheckpointPolicy, such as CheckpointPolicy(every_e",
        ),
        (EACH[1:], "max_batch_size", 2.5, "must be a whole number (got 2.5)"),
        (EACH[1:], "max_batch_size", "10", "must be a whole number (got '10')"),
        (EACH[::2], "start", "latest", "must be a position: use LATEST (got 'latest')"),
        (EACH[::2], "start", "seq:5", "must be a position: use EARLIEST, LATEST or Position("),
        ([FixedPartitionOptions], "should_checkpoint", "false", "must be True or False"),
        ([ProcessorOptions], "starts", EARLIEST, "must be a function or a mapping of positions"),
        ([EventProcessorOptions], "initial_position_provider", EARLIEST, "must be a function"),
        ([EventProcessorOptions], "on_exception", "x", "must be a function (got 'x')"),
        ([EventProcessorOptions], "receive_timeout_s", "60", "must be a number of seconds"),
        ([ProcessorOptions], "backoff_most_s", NAN, "must be above 0"),
        ([PoisonPolicy], "most_s", NAN, "must be above 0"),
        ([PoisonPolicy], "retries", 1.5, "must be a whole number"),
        ([CheckpointPolicy], "every_events", "100", "must be a whole number (got '100')"),
        ([CheckpointPolicy], "every_s", INF, "must be finite"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_option(
    classes: Sequence[type], name: str, value: object, sentence: str
) -> None:
    for options in classes:
        with pytest.raises(OptionError, match=re.escape(f"{name} {sentence}")):
            options(**{name: value})


def test_invalid_start_positions_of_partitions_are_refused() -> None:
    invalid: Any = {"0": "latest"}
    with pytest.raises(OptionError, match=re.escape("starts['0'] must be a position: use LATEST")):
        ProcessorOptions(starts=invalid)
    made: Any = lambda partition: "earliest"  # noqa: E731
    with pytest.raises(OptionError, match="the start of partition 3 must be a position: use EARL"):
        ProcessorOptions(starts=made).start_of("3")


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("leases.db", "store must be a store, not a string: use open_store('leases.db')"),
        ("AccountKey=c2VjcmV0", "store must be a store, not a string: use open_store(...)"),
        (None, "store must be a store, such as open_store('leases.db') (got a NoneType)"),
        (
            MemoryStore,
            "store must be a store, such as open_store('leases.db') (got the class Mem",
        ),
    ],
)
@pytest.mark.parametrize(
    "create",
    [
        lambda store: Processor(HUB, store=store),
        lambda store: EventProcessorHost("vm", HUB, store=store),
        lambda store: FixedPartitionProcessor(HUB, partitions=1, store=store),
    ],
)
async def test_a_value_that_is_not_a_store_is_refused(
    create: Callable[[Any], object], store: object, sentence: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        create(store)


STORE = MemoryStore()


def new_fixed(**given: Any) -> FixedPartitionProcessor:
    return FixedPartitionProcessor(HUB, partitions=1, store=STORE, **given)


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        (lambda: Processor(HUB, "", store=STORE), "group must be a name (got '')"),
        (lambda: new_fixed(group=None), "group must be a name (got None)"),
        (
            lambda: EventProcessorHost("vm", HUB, "", store=STORE),
            "consumer_group must be a name (got '')",
        ),
        (
            lambda: Processor(HUB, store=STORE, host=cast(Any, b"vm")),
            "host must be a name (got b'vm')",
        ),
        (lambda: new_fixed(host=3), "host must be a name (got 3)"),
        *(
            (
                lambda name=name: Processor(HUB, store=STORE, host=name),
                "host must have at most 256 printable characters (got '",
            )
            for name in ("a\nb", "\x1b[31m", "a\ud800", "x" * 257)
        ),
        (
            lambda: EventProcessorHost("vm", HUB, "g\n", store=STORE),
            r"consumer_group must have at most 256 printable characters (got 'g\n')",
        ),
        (
            lambda: EventProcessorHost(cast(Any, b"vm"), "x", store=STORE),
            "host_name must be a name (got b'v",
        ),
        (
            lambda: Processor(HUB, store=STORE, options=cast(Any, {"lease_s": 60})),
            "options must be a ProcessorOptions, such as ProcessorOptions(lease_s=60) (got {'lease",
        ),
        (
            lambda: new_fixed(options=ProcessorOptions()),
            "options must be a FixedPartitionOptions, such as FixedPartitionOptions(lease_s=60) (g",
        ),
    ],
)
async def test_names_and_options_are_checked_when_they_are_given(
    create: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        create()


async def test_the_options_of_a_host_are_checked_when_it_registers() -> None:
    host = EventProcessorHost("vm", HUB, store=STORE)
    wrong: Any = {"max_batch_size": 5}
    with pytest.raises(OptionError, match="options must be a EventProcessorOptions, such as"):
        await host.start(lambda context, event: None, None, wrong)
    host.partition_manager_options = wrong
    with pytest.raises(OptionError, match="partition_manager_options must be a PartitionManager"):
        await host.start(lambda context, event: None)


async def test_a_host_is_not_started_without_a_function() -> None:
    host = EventProcessorHost("vm", HUB, store=MemoryStore())
    missing: Any = None
    with pytest.raises(OptionError, match=r"on_message must be a function \(got None\)"):
        await host.start(missing)
    wrong: Any = "log"
    with pytest.raises(OptionError, match="on_error must be a function"):
        await host.start(lambda context, event: None, wrong)


@pytest.mark.parametrize(
    "name", ["on_batch", "on_assigned", "on_renewed", "on_released", "on_error"]
)
async def test_a_function_that_cannot_be_called_is_refused(name: str) -> None:
    processor = FixedPartitionProcessor(HUB, partitions=1, store=MemoryStore())

    def three(one: Any, two: Any, three: Any) -> None: ...

    sentence = rf"{name} is called as {name}\(partition.*which .*three\(one.* does not accept"
    with pytest.raises(OptionError, match=sentence):
        getattr(processor, name)(three)
    getattr(processor, name)(lambda *arguments: None)
    getattr(processor, name)(print)


@pytest.mark.parametrize(
    ("on_error", "sentence"),
    [
        (5, r"on_error must be a function \(got 5\)"),
        (lambda: None, r"on_error is called as on_error\(partition, error\), which"),
        (lambda one, two, three: None, r"on_error is called as on_error\(partition, error\), "),
    ],
)
async def test_on_error_of_a_host_is_checked_when_it_is_given(on_error: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        EventProcessorHost("vm", HUB, store=MemoryStore(), on_error=on_error)


@pytest.mark.parametrize(
    "given",
    [
        lambda wrong: ProcessorOptions(starts=wrong),
        lambda wrong: ProcessorOptions(on_expired=wrong),
        lambda wrong: EventProcessorOptions(on_expired=wrong),
        lambda wrong: FixedPartitionOptions(on_expired=wrong),
    ],
)
def test_a_function_of_the_options_must_take_its_argument(given: Any) -> None:
    with pytest.raises(
        OptionError, match=r"is called as (starts\(part|on_expired\(er).* not accept"
    ):
        given(lambda: None)


class CalledAsync:
    async def __call__(self, *given: str) -> Any: ...


@pytest.mark.parametrize("wrong", [CalledAsync(), CalledAsync().__call__])
@pytest.mark.parametrize(
    ("name", "create"),
    [
        ("starts", lambda wrong: ProcessorOptions(starts=wrong)),
        (
            "initial_position_provider",
            lambda wrong: EventProcessorOptions(initial_position_provider=wrong),
        ),
        ("connect", lambda wrong: Processor(wrong, store=STORE)),
        ("connect", lambda wrong: ProcessorGroup(wrong, store=STORE)),
    ],
)
async def test_a_coroutine_function_is_refused_where_a_plain_one_is_needed(
    name: str, create: Callable[[Any], object], wrong: Any
) -> None:
    with pytest.raises(OptionError, match=f"{name} must be a plain function, and .*Called"):
        create(wrong)


@pytest.mark.parametrize(
    "create",
    [
        lambda connect: Processor(connect, store=STORE),
        lambda connect: EventProcessorHost("vm", connect, store=STORE),
        lambda connect: FixedPartitionProcessor(connect, partitions=1, store=STORE),
        lambda connect: ProcessorGroup(connect, store=STORE),
        DeadLetterHub,
    ],
)
async def test_a_hub_that_cannot_be_connected_is_refused(create: Callable[[Any], object]) -> None:
    sentence = "connect must be a connection string, or a function that returns a client (got "
    for wrong, kind in ((None, "a NoneType)"), (b"Endpoint=sb://h", "a bytes)")):
        with pytest.raises(OptionError, match=re.escape(sentence + kind)):
            create(wrong)
    with pytest.raises(OptionError, match=r"connect is called as connect\(.*\), which .*<lambda>"):
        create(lambda one, two: None)
    with pytest.raises(OptionError, match=r"^connect: .*connection string"):
        create("Endpoint=sb://h/;SharedAccessKeyName=n")


@pytest.mark.parametrize(
    "create",
    [
        lambda letters: EventProcessorHost("vm", HUB, store=STORE, dead_letters=letters),
        lambda letters: new_fixed(dead_letters=letters),
        lambda letters: Processor(HUB, store=STORE).run(handler=print, dead_letters=letters),
    ],
)
@pytest.mark.parametrize(
    ("letters", "kind"),
    [
        ("letters.jsonl", "(got a str)"),
        (DeadLetterFile, "(got the class DeadLetterFile)"),
        (sys.stderr, "(got a "),
    ],
)
async def test_dead_letters_without_its_methods_are_refused(
    create: Callable[[Any], object], letters: object, kind: str
) -> None:
    sentence = "dead_letters must be a DeadLetterFile(PATH), a DeadLetterHub(CONNECTION), or an "
    with pytest.raises(OptionError, match=re.escape(sentence)) as refused:
        await cast(Any, create(letters))
    assert kind in str(refused.value)


async def test_a_strategy_is_checked_when_it_is_given() -> None:
    for wrong, sentence in ((5, r"\(got 5\): use one of steady, "), ("stable", "unknown strategy")):
        given: Any = wrong
        with pytest.raises(OptionError, match=sentence):
            Processor(HUB, store=STORE, strategy=given)
        with pytest.raises(OptionError, match=sentence):
            EventProcessorHost("vm", HUB, store=STORE, strategy=given)


async def test_functions_of_a_group_are_checked_when_they_are_given() -> None:
    group = ProcessorGroup(HUB, store=STORE)
    wrong: Any = lambda: None  # noqa: E731
    with pytest.raises(OptionError, match=r"serve is called as serve\(partition\), which "):
        group.pull("orders", wrong)
    with pytest.raises(OptionError, match=r"on_message is called as on_message\(context, event\)"):
        group.push("orders", on_message=wrong)
    with pytest.raises(OptionError, match="the class dict has no method open"):
        group.push("orders", cast(Any, dict))


async def test_serve_must_take_a_partition_and_be_a_coroutine_function() -> None:
    processor = Processor(HUB, store=MemoryStore())
    without_argument: Any = lambda: None  # noqa: E731
    with pytest.raises(OptionError, match=r"serve is called as serve\(partition\), which"):
        await processor.run(without_argument)
    with pytest.raises(OptionError, match="define it with `async def`"):
        coroutine_of(None)
    with pytest.raises(OptionError, match=r"on_error is called as on_error\(partition, error\)"):
        Processor(HUB, store=MemoryStore(), on_error=without_argument)


async def test_a_lease_of_a_replaced_manager_is_refused_by_the_name_of_the_option() -> None:
    host = EventProcessorHost.from_connection_string("vm", STORAGE, "leases", HUB)
    host.partition_manager_options = PartitionManagerOptions(90, 30)
    with pytest.raises(OptionError, match="lease_duration_s must be 15 to 60"):
        await host.start(lambda context, event: None)


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (
            lambda: EventProcessorOptions(max_batch_size=20, prefetch_count=10),
            "prefetch_count must",
        ),
        (
            lambda: PartitionManagerOptions(30, 20),
            "lease_duration_s must be at least 2 x renew_interval_s, .* "
            "\\(got lease_duration_s=30, renew_interval_s=20\\)",
        ),
        (lambda: PartitionManagerOptions(30, 0), "renew_interval_s must be above 0"),
        (lambda: EventProcessorOptions(max_batch_size=0), "max_batch_size must be at least 1"),
        (lambda: EventProcessorOptions(receive_timeout_s=0), "receive_timeout_s must be above 0"),
        (lambda: EventProcessorOptions(stop_s=-1), "stop_s must be above 0"),
        (lambda: FixedPartitionOptions(max_batch_size=0), "max_batch_size must be at least 1"),
        (lambda: FixedPartitionOptions(renew_s=0), "renew_s must be above 0"),
        (lambda: EventProcessorHost("", HUB, store=MemoryStore()), "host_name is empty"),
    ],
)
def test_invalid_host_options_are_refused(invalid: Callable[[], object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        invalid()
