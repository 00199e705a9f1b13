"""The epoch rules: admit a new reader of a partition, refuse it, or evict the present ones.

One partition of one consumer group is read either by a single reader with an epoch or by up to five
readers without one, never by both kinds. The rules and the error texts are exactly those of the
service, because clients match on them. Our additions follow the service's sentences.

    newcomer        present            decision
    epoch e2        no reader          admit
    epoch e2        epoch e1 <= e2     admit, evict the present one (also with an equal epoch)
    epoch e2        epoch e1 >  e2     refuse
    epoch e2        any without epoch  admit, evict them all
    without epoch   epoch e1           refuse (epoch readers take precedence)
    without epoch   fewer than five    admit
    without epoch   five               refuse

The decision depends only on the present readers: the epoch of a reader that has left does not
count.

    attach -> decide -> detach the evicted, accept or refuse the newcomer
              ^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINK_STOLEN = "amqp:link:stolen"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
READERS_MAX = 5
_NIL = "nil"  # the service's text for a missing name


@dataclass(frozen=True, slots=True)
class Reader:
    """One receiver link. `epoch` is None for a reader without one; 0 is a valid epoch."""

    id: int
    name: str | None = None  # com.microsoft:receiver-name, or None if the client gave none
    epoch: int | None = None

    @property
    def label(self) -> str:
        return self.name or _NIL


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a new reader.

    Refused: `condition` and `text` are the newcomer's error. Admitted: the readers in `evict` are
    detached first, with `condition` and, in the same order, the texts in `evict_errors`.
    """

    admit: bool
    evict: tuple[int, ...] = ()
    condition: str = ""
    text: str = ""
    evict_errors: tuple[str, ...] = ()


ADMITTED = Decision(admit=True)


def decide(present: Sequence[Reader], newcomer: Reader, readers_max: int = READERS_MAX) -> Decision:
    """Decide about a new reader, given the present ones of its partition and consumer group."""
    holder = max((r for r in present if r.epoch is not None), key=_epoch, default=None)
    if newcomer.epoch is None:
        return _decide_without_epoch(present, newcomer, holder, readers_max)
    if holder is not None and _epoch(holder) > newcomer.epoch:
        return Decision(False, condition=LINK_STOLEN, text=_higher_epoch_exists(holder, newcomer))
    if not present:
        return ADMITTED
    return Decision(
        True,
        evict=tuple(reader.id for reader in present),
        condition=LINK_STOLEN,
        evict_errors=tuple(_disconnected(reader, newcomer) for reader in present),
    )


def _decide_without_epoch(
    present: Sequence[Reader], newcomer: Reader, holder: Reader | None, readers_max: int
) -> Decision:
    if holder is not None:
        return Decision(False, condition=LINK_STOLEN, text=_epoch_reader_exists(holder, newcomer))
    if len(present) >= readers_max:
        return Decision(
            False, condition=RESOURCE_LIMIT, text=_too_many(present, newcomer, readers_max)
        )
    return ADMITTED


def _epoch(reader: Reader) -> int:
    assert reader.epoch is not None
    return reader.epoch


def _disconnected(old: Reader, new: Reader) -> str:
    epoch = _NIL if old.epoch is None else old.epoch
    return (
        f"New receiver '{new.label}' with higher epoch of '{new.epoch}' is created hence current "
        f"receiver '{old.label}' with epoch '{epoch}' is getting disconnected. "
        "If you are recreating the receiver, make sure a higher epoch is used."
    )


def _higher_epoch_exists(holder: Reader, newcomer: Reader) -> str:
    # The second epoch has no quotes in the service's text.
    return (
        f"Receiver '{holder.label}' with a higher epoch '{holder.epoch}' already exists. "
        f"Receiver '{newcomer.label}' with epoch {newcomer.epoch} cannot be created. "
        "Make sure you are creating receiver with increasing epoch value to ensure connectivity, "
        "or ensure all old epoch receivers are closed or disconnected."
    )


def _epoch_reader_exists(holder: Reader, newcomer: Reader) -> str:
    return (
        f"At least one receiver for the endpoint is created with epoch of '{holder.epoch}', "
        "and so non-epoch receiver is not allowed. Either reconnect with a higher epoch, "
        "or make sure all epoch receivers are closed or disconnected. "
        f"Receiver '{holder.label}' is connected; receiver '{newcomer.label}' was refused."
    )


def _too_many(present: Sequence[Reader], newcomer: Reader, readers_max: int) -> str:
    return (
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which "
        f"is {readers_max}. List of connected receivers - "
        f"{', '.join(reader.label for reader in present)}. "
        f"Receiver '{newcomer.label}' was refused."
    )
