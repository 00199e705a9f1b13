"""The performatives of AMQP 1.0, and the composites in them, as frozen dataclasses.

frame body -> decode_performative -> Open, Begin, Attach, ... -> Connection
frame body <- encode_performative <- Open, Begin, Attach, ... <- Connection
                                     ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse.amqp.composites import ANY, MAP, SYMBOLS, TAG_MAP, Composite, wire
from pumphouse.amqp.types import Symbol, UByte, UInt, ULong, UShort

SENDER, RECEIVER = False, True  # the `role` field: the end of the link that sends the frame

UNSETTLED, SETTLED = 0, 1  # snd-settle-mode
FIRST, SECOND = 0, 1  # rcv-settle-mode

SELECTOR_FILTER = Symbol(
    "apache.org:selector-filter:string"
)  # its value is a condition in SQL syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Composite):
    CODE = 0x1D
    NAME = "error"
    condition: str = wire(Symbol, required=True)
    description: str | None = wire(str)
    info: dict[Any, Any] | None = wire(MAP)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Composite):
    CODE = 0x10
    NAME = "open"
    container_id: str = wire(str, required=True)
    hostname: str | None = wire(str)
    max_frame_size: int = wire(UInt, default=0xFFFFFFFF)
    channel_max: int = wire(UShort, default=0xFFFF)
    idle_time_out: int | None = wire(UInt)
    outgoing_locales: tuple[str, ...] = wire(SYMBOLS)
    incoming_locales: tuple[str, ...] = wire(SYMBOLS)
    offered_capabilities: tuple[str, ...] = wire(SYMBOLS)
    desired_capabilities: tuple[str, ...] = wire(SYMBOLS)
    properties: dict[Any, Any] | None = wire(MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Composite):
    CODE = 0x11
    NAME = "begin"
    remote_channel: int | None = wire(UShort)
    next_outgoing_id: int = wire(UInt, required=True)
    incoming_window: int = wire(UInt, required=True)
    outgoing_window: int = wire(UInt, required=True)
    handle_max: int = wire(UInt, default=0xFFFFFFFF)
    offered_capabilities: tuple[str, ...] = wire(SYMBOLS)
    desired_capabilities: tuple[str, ...] = wire(SYMBOLS)
    properties: dict[Any, Any] | None = wire(MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Composite):
    CODE = 0x12
    NAME = "attach"
    name: str = wire(str, required=True)
    handle: int = wire(UInt, required=True)
    role: bool = wire(bool, required=True)
    snd_settle_mode: int | None = wire(UByte)
    rcv_settle_mode: int | None = wire(UByte)
    source: Any = wire(ANY)
    target: Any = wire(ANY)
    unsettled: dict[Any, Any] | None = wire(TAG_MAP)
    incomplete_unsettled: bool | None = wire(bool)
    initial_delivery_count: int | None = wire(UInt)
    max_message_size: int | None = wire(ULong)
    offered_capabilities: tuple[str, ...] = wire(SYMBOLS)
    desired_capabilities: tuple[str, ...] = wire(SYMBOLS)
    properties: dict[Any, Any] | None = wire(MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(Composite):
    CODE = 0x13
    NAME = "flow"
    next_incoming_id: int | None = wire(UInt)
    incoming_window: int = wire(UInt, required=True)
    next_outgoing_id: int = wire(UInt, required=True)
    outgoing_window: int = wire(UInt, required=True)
    handle: int | None = wire(UInt)
    delivery_count: int | None = wire(UInt)
    link_credit: int | None = wire(UInt)
    available: int | None = wire(UInt)
    drain: bool = wire(bool, default=False)
    echo: bool = wire(bool, default=False)
    properties: dict[Any, Any] | None = wire(MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Composite):
    CODE = 0x14
    NAME = "transfer"
    handle: int = wire(UInt, required=True)
    delivery_id: int | None = wire(UInt)
    delivery_tag: bytes | None = wire(bytes)
    message_format: int | None = wire(UInt)
    settled: bool | None = wire(bool)
    more: bool = wire(bool, default=False)
    rcv_settle_mode: int | None = wire(UByte)
    state: Any = wire(ANY)
    resume: bool = wire(bool, default=False)
    aborted: bool = wire(bool, default=False)
    batchable: bool = wire(bool, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition(Composite):
    CODE = 0x15
    NAME = "disposition"
    role: bool = wire(bool, required=True)
    first: int = wire(UInt, required=True)
    last: int | None = wire(UInt)
    settled: bool = wire(bool, default=False)
    state: Any = wire(ANY)
    batchable: bool = wire(bool, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Composite):
    CODE = 0x16
    NAME = "detach"
    handle: int = wire(UInt, required=True)
    closed: bool = wire(bool, default=False)
    error: Error | None = wire(Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Composite):
    CODE = 0x17
    NAME = "end"
    error: Error | None = wire(Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Composite):
    CODE = 0x18
    NAME = "close"
    error: Error | None = wire(Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Composite):
    CODE = 0x23
    NAME = "received"
    section_number: int = wire(UInt, required=True)
    section_offset: int = wire(ULong, required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Composite):
    CODE = 0x24
    NAME = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Composite):
    CODE = 0x25
    NAME = "rejected"
    error: Error | None = wire(Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Composite):
    CODE = 0x26
    NAME = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Modified(Composite):
    CODE = 0x27
    NAME = "modified"
    delivery_failed: bool | None = wire(bool)
    undeliverable_here: bool | None = wire(bool)
    message_annotations: dict[Any, Any] | None = wire(MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Composite):
    CODE = 0x28
    NAME = "source"
    address: Any = wire(ANY)
    durable: int | None = wire(UInt)
    expiry_policy: str | None = wire(Symbol)
    timeout: int | None = wire(UInt)
    dynamic: bool | None = wire(bool)
    dynamic_node_properties: dict[Any, Any] | None = wire(MAP)
    distribution_mode: str | None = wire(Symbol)
    filter: dict[Any, Any] | None = wire(MAP)
    default_outcome: Any = wire(ANY)
    outcomes: tuple[str, ...] = wire(SYMBOLS)
    capabilities: tuple[str, ...] = wire(SYMBOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Composite):
    CODE = 0x29
    NAME = "target"
    address: Any = wire(ANY)
    durable: int | None = wire(UInt)
    expiry_policy: str | None = wire(Symbol)
    timeout: int | None = wire(UInt)
    dynamic: bool | None = wire(bool)
    dynamic_node_properties: dict[Any, Any] | None = wire(MAP)
    capabilities: tuple[str, ...] = wire(SYMBOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslMechanisms(Composite):
    CODE = 0x40
    NAME = "sasl-mechanisms"
    mechanisms: tuple[str, ...] = wire(SYMBOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslInit(Composite):
    CODE = 0x41
    NAME = "sasl-init"
    mechanism: str = wire(Symbol, required=True)
    initial_response: bytes | None = wire(bytes)
    hostname: str | None = wire(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslChallenge(Composite):
    CODE = 0x42
    NAME = "sasl-challenge"
    challenge: bytes = wire(bytes, required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslResponse(Composite):
    CODE = 0x43
    NAME = "sasl-response"
    response: bytes = wire(bytes, required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOutcome(Composite):
    CODE = 0x44
    NAME = "sasl-outcome"
    code: int = wire(UByte, required=True)
    additional_data: bytes | None = wire(bytes)
