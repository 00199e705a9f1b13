"""Member records as blobs. The last write of its blob shows when a host was last alive.

A host that leaves deletes its blob; one that crashed leaves it behind. A host that lists a blob not
written for a day deletes it at its next beat, so that such blobs do not accumulate.

    BlobStore, BlobLeaseStore -> MemberBlobs -> Container
                                 ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.leases.model import Member
from pumphouse.leases.stores.blob.container import Container
from pumphouse.leases.stores.blob.responses import store_error
from pumphouse.leases.stores.blob.rows import ListedBlob, parse_integer, with_lower_case_keys

KEPT_S = 24 * 3600.0
# Per beat: deleting the blobs of many crashed hosts must not delay a live one.
DELETED_MAX = 8


class MemberBlobs:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._created: set[str] = set()
        self._abandoned: dict[str, str] = {}  # blob -> etag

    def read(self, name: str, blob: ListedBlob) -> list[Member]:
        """The member of a listed blob; none if the blob was not written for a day."""
        if blob.age_s > KEPT_S:
            self._abandoned[blob.name] = blob.etag
            return []
        limit = parse_integer(with_lower_case_keys(blob.metadata).get("maxpartitions", ""))
        return [Member(name, blob.age_s, limit if limit is not None and limit > 0 else None)]

    async def beat(self, blob: str, max_partitions: int | None) -> None:
        """Renew the record of a live host.

        This sets the metadata of the blob: in an account with versioning, rewriting the blob would
        keep a copy at every beat.
        """
        metadata = {} if max_partitions is None else {"maxpartitions": str(max_partitions)}
        written = blob in self._created and await self._renew(blob, metadata)
        if not written:
            response = await self._container.put(blob, metadata)
            if response.outcome != "written":
                raise store_error(response)
        self._created.add(blob)
        await self._delete_abandoned()

    async def _renew(self, blob: str, metadata: dict[str, str]) -> bool:
        response = await self._container.set_metadata(blob, metadata)
        if response.outcome in ("written", "conflict"):
            return response.outcome == "written"  # conflict: the blob was deleted
        raise store_error(response)

    async def _delete_abandoned(self) -> None:
        for name in list(self._abandoned)[:DELETED_MAX]:
            await self._container.delete(name, etag=self._abandoned.pop(name))

    async def leave(self, blob: str) -> None:
        self._created.discard(blob)
        response = await self._container.delete(blob)
        if response.outcome not in ("written", "conflict"):
            raise store_error(response)
