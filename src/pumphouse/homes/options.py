"""The options of a pipeline: which stages run, on which Spark, and where they store data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.watch.sharing import Sharing

STAGES = ("sift", "watch", "record")
FORMATS = ("parquet", "delta")  # of the files of the stage record
MASTER = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|spark://.+:\d+|yarn|k8s://.+")


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The stages, their Spark, and their folders. `data` holds the checkpoints and the status file.
    On a cluster, `checkpoints` must be a folder or URL that all its machines reach."""

    data: Path
    stages: tuple[str, ...] = STAGES
    master: str | None = None
    storage: str | None = field(default=None, repr=False)  # default: DATA/records
    database: str | None = field(default=None, repr=False)  # default: DATA/homes.db
    checkpoints: str | None = None  # default: DATA/checkpoints
    settings: Mapping[str, str] = field(default_factory=dict)  # of Spark
    trigger: Mapping[str, Any] | None = None  # of every stage; default: each stage's own
    accelerated: bool = False  # accept readings that are ahead of the clock
    sharing: Sharing | None = None  # of the partitions of `watch`, with other applications
    storage_format: str = "parquet"  # or "delta": needs the extra `delta`
    kinds: Kinds = DEFAULT  # of sensors and alerts

    def __post_init__(self) -> None:
        if self.storage_format not in FORMATS:
            raise OptionError(
                f"invalid storage format {self.storage_format!r}: use {' or '.join(FORMATS)}"
            )
        unknown = [name for name in self.stages if name not in STAGES]
        if unknown or not self.stages:
            given = ", ".join(unknown) or "nothing"
            raise OptionError(f"invalid stages: use {', '.join(STAGES)} (got {given})")
        if self.master is not None and not MASTER.fullmatch(self.master):
            raise OptionError(
                f"invalid Spark master {self.master!r}: use local[2], spark://HOST:7077, yarn "
                "or k8s://HOST:PORT"
            )
        if self.sharing is not None and self.stages != ("watch",):
            # The other stages do not share: each application would read all of their partitions.
            raise OptionError(
                "only the stage watch can share its partitions: run the other stages in one "
                "application of their own "
                f"(got {', '.join(self.stages)} with assignment={self.sharing.assignment})"
            )

    def checkpoint(self, stage: str) -> str:
        return f"{self.checkpoints or self.data / 'checkpoints'}/{stage}"
