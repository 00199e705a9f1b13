"""Member records as blobs: who takes part, told by when its blob was last written.

A host that leaves deletes its blob; one that crashed leaves it behind. Whoever lists a blob that
nobody has written for a day deletes it at its next beat, so that they do not pile up.

    BlobStore, BlobLeaseStore -> MemberBlobs -> Container
                                 ^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.leases.model import Member
from pumphouse.leases.stores.blob.container import Container
from pumphouse.leases.stores.blob.responses import store_error
from pumphouse.leases.stores.blob.rows import ListedBlob, folded, integer

KEPT_S = 24 * 3600.0
# At one beat: what many crashes have left must not hold up the living.
SWEPT_MAX = 8


class MemberBlobs:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._beaten: set[str] = set()
        self._gone: dict[str, str] = {}

    def read(self, name: str, found: ListedBlob) -> list[Member]:
        """The member that a listed blob stands for; none if it has been silent for a day."""
        if found.age_s > KEPT_S:
            self._gone[found.name] = found.etag
            return []
        most = integer(folded(found.metadata).get("maxpartitions", ""))
        return [Member(name, found.age_s, most if most is not None and most > 0 else None)]

    async def beat(self, blob: str, max_partitions: int | None) -> None:
        """One request: metadata is set anew rather than the blob, which versioning would keep."""
        said = {} if max_partitions is None else {"maxpartitions": str(max_partitions)}
        written = blob in self._beaten and await self._renewed(blob, said)
        if not written:
            answer = await self._container.put(blob, said)
            if answer.outcome != "written":
                raise store_error(answer)
        self._beaten.add(blob)
        await self._sweep()

    async def _renewed(self, blob: str, said: dict[str, str]) -> bool:
        answer = await self._container.set_metadata(blob, said)
        if answer.outcome in ("written", "contested"):
            return answer.outcome == "written"  # contested: somebody has deleted it
        raise store_error(answer)

    async def _sweep(self) -> None:
        for name in list(self._gone)[:SWEPT_MAX]:
            await self._container.delete(name, etag=self._gone.pop(name))

    async def leave(self, blob: str) -> None:
        self._beaten.discard(blob)
        answer = await self._container.delete(blob)
        if answer.outcome not in ("written", "contested"):
            raise store_error(answer)
