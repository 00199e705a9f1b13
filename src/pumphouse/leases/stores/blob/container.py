"""One container of a storage account: the few requests that the stores make of it.

Every request is sent once. The official packages would send a write again when its answer was
lost; the second one then fails on the etag that the first has made, and a partition that is ours
would be told to be somebody else's. So their retries are off, aiohttp's own one included, and what
is not answered is unknown.

    BlobStore, BlobLeaseStore -> Container -> azure-storage-blob -> Azure, or Azurite
                                 ^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pumphouse.clock import Clock
from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.stores.blob.names import checked_container
from pumphouse.leases.stores.blob.responses import BlobResponse, classify_error, store_error
from pumphouse.leases.stores.blob.rows import ListedBlob

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
    from azure.storage.blob.aio import BlobClient, BlobLeaseClient, ContainerClient

# Making a client of one blob costs a fifth of asking it something.
CLIENTS_MAX = 4096
MakeClient = Callable[..., "ContainerClient"]


def client_maker(
    account_url: str | None, connection_string: str | None, container: str, credential: Any
) -> MakeClient:
    """A function that makes a client of the official package; what it is given is checked now."""
    try:
        from azure.storage.blob.aio import ContainerClient
    except ImportError:
        raise OptionError(
            "a blob store needs the official packages: pip install 'pumphouse[azure]'"
        ) from None
    checked_container(container)

    def make(**options: Any) -> ContainerClient:
        if connection_string is not None:
            return ContainerClient.from_connection_string(
                connection_string, container, credential=credential, **options
            )
        return ContainerClient(account_url or "", container, credential=credential, **options)

    try:
        make()
    except (ValueError, TypeError):  # their messages may repeat what they were given
        given = "connection string" if connection_string is not None else "account URL"
        raise OptionError(
            f"the {given} or credential of the storage account makes no sense; copy it whole, as "
            "the portal shows it"
        ) from None
    return make


class Container:
    """Opened as often as it is used, closed when the last user is done."""

    def __init__(
        self, make: MakeClient, *, create: bool, timeout_s: float, at_once: int, clock: Clock
    ) -> None:
        if timeout_s <= 0 or at_once < 1:
            raise OptionError("timeout_s must be above 0, and at_once at least 1")
        self._make, self._create, self._clock = make, create, clock
        self._timeout_s, self._at_once = timeout_s, at_once
        self._turns = asyncio.Semaphore(at_once)
        self._opening = asyncio.Lock()
        self._client: ContainerClient | None = None
        self._blobs: dict[str, BlobClient] = {}
        self._users = 0
        self._date, self._dated_at = 0.0, 0.0
        url = urlsplit(make().url)
        self.place = f"{url.scheme}://{url.netloc}{url.path}"  # without a signature

    # -- open and close ---------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the container, or say what is wrong; the store's clock is read on the way."""
        async with self._opening:
            if self._client is None:
                self._client = self._make(transport=_transport(self._at_once), retry_total=0)
                try:
                    await self._find()
                except BaseException:
                    await self._shut()
                    raise
            self._users += 1

    async def close(self) -> None:
        async with self._opening:
            self._users -= 1
            if self._users == 0:
                await self._shut()

    async def _shut(self) -> None:
        client, self._client = self._client, None
        self._blobs.clear()
        if client is not None:
            await client.close()

    async def _find(self) -> None:
        if self._create:
            answer = await self._write(self.client.create_container)
            if answer.outcome not in ("written", "contested"):
                raise store_error(answer)
        # Listing is what a signature for one container may do; asking for its properties is not.
        async for _ in self.list("", limit=1):
            break

    @property
    def client(self) -> ContainerClient:
        if self._client is None:
            raise StoreError(f"{self.place} is not open: use it inside `async with store:`")
        return self._client

    # -- the store's clock ------------------------------------------------------------------------

    def now(self) -> float:
        """The time at the store: the last Date it told, and what has passed here since."""
        return self._date + self._clock.monotonic() - self._dated_at

    def _note_date(self, response: Any) -> float:
        if (word := response.http_response.headers.get("Date")) is None:
            return self.now()
        self._date, self._dated_at = (
            parsedate_to_datetime(word).timestamp(),
            self._clock.monotonic(),
        )
        return self._date

    # -- reading ----------------------------------------------------------------------------------

    async def list(self, prefix: str, limit: int | None = None) -> AsyncIterator[ListedBlob]:
        """All blobs that begin with `prefix`, with metadata: one request for 5,000 of them."""
        from azure.core.exceptions import AzureError

        dates: list[float] = []  # of our own answers: others are under way
        pages = self.client.list_blobs(
            name_starts_with=prefix,
            include=["metadata"],
            results_per_page=limit,
            raw_response_hook=lambda response: dates.append(self._note_date(response)),
        ).by_page()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    page = await anext(pages)
            except StopAsyncIteration:
                return
            except (AzureError, TimeoutError) as error:
                raise store_error(classify_error(error, self.place)) from None
            async for blob in page:
                yield _found(blob, dates[-1])

    async def get(self, name: str) -> tuple[ListedBlob, bytes] | None:
        """A blob and its body, if it is there."""
        from azure.core.exceptions import AzureError

        try:
            async with asyncio.timeout(self._timeout_s):
                stream = await self._blob(name).download_blob(raw_response_hook=self._note_date)
                return _found(stream.properties, self._date), await stream.readall()
        except (AzureError, TimeoutError) as error:
            answer = classify_error(error, self.place)
            if answer.code == "BlobNotFound":
                return None
            raise store_error(answer) from None

    # -- writing ----------------------------------------------------------------------------------

    async def create(
        self, name: str, metadata: Mapping[str, str], body: bytes = b""
    ) -> BlobResponse:
        """Put Blob, if there is none of that name."""
        return await self._write(self._blob(name).upload_blob, body, metadata=dict(metadata))

    async def put(
        self, name: str, metadata: Mapping[str, str], body: bytes = b"", **conditions: str
    ) -> BlobResponse:
        """Put Blob over whatever is there: `etag` and `lease` are conditions, if given."""
        upload = partial(self._blob(name).upload_blob, overwrite=True)
        return await self._write(upload, body, metadata=dict(metadata), **_matching(**conditions))

    async def set_metadata(
        self, name: str, metadata: Mapping[str, str], **conditions: str
    ) -> BlobResponse:
        blob = self._blob(name)
        return await self._write(blob.set_blob_metadata, dict(metadata), **_matching(**conditions))

    async def head(self, name: str) -> BlobResponse:
        """Whether there is such a blob: "written" if so, "contested" if not."""
        return await self._write(self._blob(name).get_blob_properties)

    async def delete(self, name: str, **conditions: str) -> BlobResponse:
        return await self._write(self._blob(name).delete_blob, **_matching(**conditions))

    # -- leases -----------------------------------------------------------------------------------

    async def acquire(self, name: str, lease: str, lease_s: int, **conditions: str) -> BlobResponse:
        acquire = self._lease(name, lease).acquire
        return await self._write(acquire, lease_duration=lease_s, **_matching(**conditions))

    async def renew(self, name: str, lease: str) -> BlobResponse:
        return await self._write(self._lease(name, lease).renew)

    async def change(self, name: str, lease: str, proposed: str, **conditions: str) -> BlobResponse:
        """The lease gets another id: whoever only knows the old one has lost it."""
        change = self._lease(name, lease).change
        return await self._write(change, proposed, **_matching(**conditions))

    async def release(self, name: str, lease: str) -> BlobResponse:
        return await self._write(self._lease(name, lease).release)

    async def _write(
        self, call: Callable[..., Awaitable[Any]], *given: Any, **named: Any
    ) -> BlobResponse:
        from azure.core.exceptions import AzureError

        try:
            async with self._turns, asyncio.timeout(self._timeout_s):
                said = await call(*given, **named, raw_response_hook=self._note_date)
        except (AzureError, TimeoutError) as error:
            return classify_error(error, self.place)
        return BlobResponse(
            "written", etag=_unquoted(said["etag"]) if isinstance(said, dict) else ""
        )

    def _blob(self, name: str) -> BlobClient:
        if (client := self._blobs.get(name)) is None:
            if len(self._blobs) >= CLIENTS_MAX:
                self._blobs.clear()
            client = self._blobs[name] = self.client.get_blob_client(name)
        return client

    def _lease(self, name: str, lease: str) -> BlobLeaseClient:
        from azure.storage.blob.aio import BlobLeaseClient

        return BlobLeaseClient(self._blob(name), lease_id=lease)


# -- what the official packages are given and give ------------------------------------------------


def _matching(etag: str = "", lease: str = "") -> dict[str, Any]:
    from azure.core import MatchConditions

    conditions: dict[str, Any] = {"lease": lease} if lease else {}
    if etag:
        conditions |= {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}
    return conditions


def _found(blob: Any, now: float) -> ListedBlob:
    return ListedBlob(
        name=blob.name,
        etag=_unquoted(blob.etag),
        metadata=blob.metadata or {},
        modified=blob.last_modified.timestamp(),
        now=now,
        lease_state=str(blob.lease.state or "available"),
    )


def _unquoted(etag: str) -> str:
    """A listing tells etags bare, an answer in quotes; a row has one etag."""
    return etag.strip('"')


def _transport(connections: int) -> Any:
    from urllib.request import getproxies

    import aiohttp
    from azure.core.pipeline.transport import AioHttpTransport

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # Where there is no proxy, aiohttp would look for one in a thread, twice per request.
        trust_env=bool(getproxies()),
        middlewares=(send_once,),
    )
    return AioHttpTransport(session=session)


async def send_once(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep aiohttp from sending a write again when the connection broke under it.

    It holds PUT to be idempotent; one with a condition is not.
    """
    import aiohttp

    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in ("GET", "HEAD"):
            raise
        raise aiohttp.ClientConnectionError("the connection broke during a write") from error
