"""A legacy Event Processor Host, request by request, and a BlobLeaseStore beside it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from azure.storage.blob.aio import BlobClient, BlobLeaseClient

from pumphouse.leases.stores.blob_lease.body import Spelling, spell
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage

PARTITIONS = ["0", "1", "2", "3"]
LEASE_S = 30


def open_store(storage: Storage, **options: Any) -> BlobLeaseStore:
    return BlobLeaseStore.from_connection_string(
        storage.connection_string,
        storage.container,
        clock=storage.azurite.clock,
        **{"timeout_s": 60, "lease_s": LEASE_S, **options},
    )


@dataclass
class LegacyHost:
    """The requests of a legacy Event Processor Host."""

    name: str
    blob: BlobClient
    spelling: Spelling

    async def read(self) -> dict[str, Any]:
        text = await (await self.blob.download_blob()).readall()
        fields: dict[str, Any] = json.loads(text)
        return {word.replace("_", "").lower(): value for word, value in fields.items()}

    async def acquire(self) -> str:
        """Take an expired lease or, with its token, a held one."""
        values = await self.read()
        token = str(uuid.uuid4())
        state = (await self.blob.get_blob_properties()).lease.state
        if state == "leased":
            lease = BlobLeaseClient(self.blob, lease_id=values["token"])
            await lease.change(token)
            await lease.renew()
        else:
            lease = BlobLeaseClient(self.blob, lease_id=token)
            await lease.acquire(lease_duration=LEASE_S)
        await self.put(values, owner=self.name, token=token, epoch=values["epoch"] + 1)
        return token

    async def checkpoint(self, offset: str, sequence: int) -> None:
        values = await self.read()
        await BlobLeaseClient(self.blob, lease_id=values["token"]).renew()
        await self.put(values, offset=offset, sequencenumber=sequence)

    async def put(self, values: dict[str, Any], **changes: Any) -> None:
        """Write its own fields; all others are dropped."""
        fields = {**values, **changes}
        words = [("offset",), ("sequence", "number"), ("partition", "id"), ("owner",), ("token",),
                 ("epoch",)]  # fmt: skip
        body = {spell(word, self.spelling): fields["".join(word)] for word in words}
        await self.blob.upload_blob(
            json.dumps(body),
            overwrite=True,
            metadata={"OWNINGHOST": fields["owner"]},
            lease=fields["token"],
        )
