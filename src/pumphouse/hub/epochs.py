"""Who may read a partition: admit a newcomer, refuse it, or evict those who were there.

One partition of one consumer group is read either by a single reader with an epoch or by up to five
readers without one, never by both kinds. The rules are the service's, and so are the error texts,
to the letter: clients match on them. What we add stands after the service's sentences.

    newcomer        present            verdict
    epoch e2        nobody             admit
    epoch e2        epoch e1 <= e2     admit, evict the present one (equal epochs steal)
    epoch e2        epoch e1 >  e2     refuse
    epoch e2        any without epoch  admit, evict them all
    without epoch   epoch e1           refuse (epoch readers take precedence)
    without epoch   fewer than five    admit
    without epoch   five               refuse

The answer follows from the readers present now and from nothing else: once a reader is gone, its
epoch is forgotten.

    attach -> arbitrate -> detach the evicted, answer the newcomer
              ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINK_STOLEN = "amqp:link:stolen"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
READERS_MAX = 5
_NIL = "nil"  # how the service writes a name that a client did not give


@dataclass(frozen=True, slots=True)
class Reader:
    """One receiver link. `epoch` is None for a reader without one; 0 is an epoch like any other."""

    id: int
    name: str | None = None  # com.microsoft:receiver-name, or None if the client gave none
    epoch: int | None = None

    @property
    def label(self) -> str:
        return self.name or _NIL


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a newcomer.

    Refused: `condition` and `text` are the newcomer's error. Admitted: the readers in `evict` are
    detached first, with `condition` and, in the same order, the texts in `evict_errors`.
    """

    admit: bool
    evict: tuple[int, ...] = ()
    condition: str = ""
    text: str = ""
    evict_errors: tuple[str, ...] = ()


ADMITTED = Verdict(admit=True)


def arbitrate(
    present: Sequence[Reader], newcomer: Reader, readers_max: int = READERS_MAX
) -> Verdict:
    """Judge a newcomer against the readers now on its partition and consumer group."""
    holder = max((r for r in present if r.epoch is not None), key=_epoch, default=None)
    if newcomer.epoch is None:
        return _judge_epochless(present, newcomer, holder, readers_max)
    if holder is not None and _epoch(holder) > newcomer.epoch:
        return Verdict(False, condition=LINK_STOLEN, text=_higher_epoch_exists(holder, newcomer))
    if not present:
        return ADMITTED
    return Verdict(
        True,
        evict=tuple(reader.id for reader in present),
        condition=LINK_STOLEN,
        evict_errors=tuple(_disconnected(reader, newcomer) for reader in present),
    )


def _judge_epochless(
    present: Sequence[Reader], newcomer: Reader, holder: Reader | None, readers_max: int
) -> Verdict:
    if holder is not None:
        return Verdict(False, condition=LINK_STOLEN, text=_epoch_reader_exists(holder, newcomer))
    if len(present) >= readers_max:
        return Verdict(
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
    # The second epoch stands without quotes in the service's text.
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
