"""How good are the alerts? Against the truth, which only a made-up town can tell.

truth, alerts -> score -> Score (recall, precision, by kind and in all)
                 ^^^^^ this module
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pumphouse.homes.schema import ALERT_KINDS, ALIVE_EVERY, MINUTE_MS, PER_SENSOR, Alert

# Nobody sees a silence begin: the last sign of life may be so old when it does.
UNSEEN_MS = (ALIVE_EVERY + 1) * MINUTE_MS


class Truth(Protocol):
    """What really happened, as incidents.Incident tells it."""

    @property
    def home(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def sensor(self) -> str: ...
    @property
    def since(self) -> int: ...
    @property
    def until(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Score:
    """`incidents` of which `found` have an alert; `alerts` of which `right` have an incident."""

    incidents: int = 0
    found: int = 0
    alerts: int = 0
    right: int = 0
    repeats: int = 0  # alerts whose id has been raised before; not counted as alerts

    @property
    def recall(self) -> float:
        return self.found / self.incidents if self.incidents else 1.0

    @property
    def precision(self) -> float:
        return self.right / self.alerts if self.alerts else 1.0

    def plus(self, other: Score) -> Score:
        return Score(
            self.incidents + other.incidents,
            self.found + other.found,
            self.alerts + other.alerts,
            self.right + other.right,
            self.repeats + other.repeats,
        )

    def __str__(self) -> str:
        return (
            f"recall {self.recall:.2%} ({self.found}/{self.incidents}), "
            f"precision {self.precision:.2%} ({self.right}/{self.alerts}), {self.repeats} repeats"
        )


def score(truth: Sequence[Truth], alerts: Sequence[Alert]) -> dict[str, Score]:
    """By kind; a kind of which there is neither is left out."""
    ids = [one.id for one in alerts]
    unique = list({one.id: one for one in alerts}.values())
    found = {}
    for kind in ALERT_KINDS:
        happened = [one for one in truth if one.kind == kind]
        raised = [one for one in unique if one.kind == kind]
        if happened or raised:
            repeats = sum(one.startswith(f"{kind}:") for one in ids) - len(raised)
            found[kind] = matched(happened, raised, repeats)
    return found


def overall(scores: Mapping[str, Score]) -> Score:
    whole = Score()
    for one in scores.values():
        whole = whole.plus(one)
    return whole


def matched(happened: Sequence[Truth], raised: Sequence[Alert], repeats: int) -> Score:
    by_place: defaultdict[tuple[str, str], list[Truth]] = defaultdict(list)
    for one in happened:
        by_place[about(one)].append(one)
    right, found = 0, set()
    for alert in raised:
        causes = [one for one in by_place[about(alert)] if is_about(alert, one)]
        right += bool(causes)
        found |= {id(one) for one in causes}
    return Score(len(happened), len(found), len(raised), right, repeats)


def about(one: Truth | Alert) -> tuple[str, str]:
    return one.home, one.sensor if one.kind in PER_SENSOR else ""


def is_about(alert: Alert, incident: Truth) -> bool:
    """Whether the condition that the alert names began with the incident."""
    if alert.kind in PER_SENSOR:
        return incident.since - UNSEEN_MS <= alert.since < incident.until
    return alert.since == incident.since


def due_by(truth: Iterable[Truth], end_ms: int) -> list[Truth]:
    """Those whose alert is due before a moment: what was sent only up to then can raise no more."""
    return [one for one in truth if getattr(one, "due", one.since) < end_ms]
