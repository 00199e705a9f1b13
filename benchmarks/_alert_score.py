"""Recall and precision of alerts against the ground truth of the simulator.

ground truth, alerts -> score -> Score (recall, precision, by kind and overall)
                        ^^^^^ this module
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pumphouse.homes.schema import ALERT_KINDS, ALIVE_EVERY, MINUTE_MS, PER_SENSOR, Alert

# No reading shows when a sensor falls silent: its last sign of life may be this old by then.
UNOBSERVED_MS = (ALIVE_EVERY + 1) * MINUTE_MS


class Truth(Protocol):
    """An incident of the ground truth: the attributes of incidents.Incident that are used."""

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
    """`found` of the `incidents` have an alert; `right` of the `alerts` have an incident."""

    incidents: int = 0
    found: int = 0
    alerts: int = 0
    right: int = 0
    repeats: int = 0  # alerts with the id of an earlier one; not counted as alerts

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
    """The score by kind, without kinds that have neither incidents nor alerts."""
    ids = [alert.id for alert in alerts]
    unique = list({alert.id: alert for alert in alerts}.values())
    scores = {}
    for kind in ALERT_KINDS:
        incidents = [incident for incident in truth if incident.kind == kind]
        raised = [alert for alert in unique if alert.kind == kind]
        if incidents or raised:
            repeats = sum(name.startswith(f"{kind}:") for name in ids) - len(raised)
            scores[kind] = matched(incidents, raised, repeats)
    return scores


def overall(scores: Mapping[str, Score]) -> Score:
    total = Score()
    for each in scores.values():
        total = total.plus(each)
    return total


def matched(incidents: Sequence[Truth], raised: Sequence[Alert], repeats: int) -> Score:
    """Match alerts with incidents by home, sensor and time."""
    by_subject: defaultdict[tuple[str, str], list[Truth]] = defaultdict(list)
    for incident in incidents:
        by_subject[subject(incident)].append(incident)
    right, found = 0, set()
    for alert in raised:
        causes = [i for i in by_subject[subject(alert)] if is_cause(i, alert)]
        right += bool(causes)
        found |= {id(incident) for incident in causes}
    return Score(len(incidents), len(found), len(raised), right, repeats)


def subject(record: Truth | Alert) -> tuple[str, str]:
    return record.home, record.sensor if record.kind in PER_SENSOR else ""


def is_cause(incident: Truth, alert: Alert) -> bool:
    """Whether the condition of the alert began with the incident."""
    if alert.kind in PER_SENSOR:
        return incident.since - UNOBSERVED_MS <= alert.since < incident.until
    return alert.since == incident.since


def due_by(truth: Iterable[Truth], end_ms: int) -> list[Truth]:
    """The incidents whose alert is due before the end of the readings."""
    return [incident for incident in truth if getattr(incident, "due", incident.since) < end_ms]
