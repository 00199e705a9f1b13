"""The machine's own identity as a credential of a storage account or of a namespace.

azure-identity finds it (environment, managed identity, command line tool, ...). Its blocking form
is called in a thread: it needs no closing, so that the caller has nothing to close.

    store_url, environment -> MachineIdentity -> BlobStore, BlobLeaseStore
                              ^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from typing import Any

from pumphouse.errors import OptionError


class MachineIdentity:
    """An asyncio credential around `DefaultAzureCredential`."""

    def __init__(self) -> None:
        try:
            from azure.identity import DefaultAzureCredential
        except ImportError:
            raise OptionError(
                "no key and no credential is given, and the identity of this machine needs "
                "azure-identity: pip install 'pumphouse[azure]'"
            ) from None
        self._credential = DefaultAzureCredential()

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """Nothing is kept open."""

    async def __aenter__(self) -> MachineIdentity:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
