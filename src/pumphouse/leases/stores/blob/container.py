"""One container of a storage account: the few requests that the blob stores make.

Every request is sent once. The official packages would repeat a write whose response was lost. The
second write then fails, because the first has changed the etag, and a partition that is ours would
seem to be another host's. So all retries are off, including aiohttp's own, and a request without a
response has an unknown outcome.

    BlobStore, BlobLeaseStore -> ContainerStore -> Container -> azure-storage-blob -> Azure, Azurite
                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict
from urllib.parse import urlsplit

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.stores.blob.metadata import (
    SetMetadata,
    conditional_headers,
    metadata_writer,
)
from pumphouse.leases.stores.blob.names import checked_container
from pumphouse.leases.stores.blob.responses import BlobResponse, classify_error, store_error
from pumphouse.leases.stores.blob.rows import ListedBlob, checked_metadata
from pumphouse.leases.stores.limits import ROWS_MAX, shown
from pumphouse.logs import quieten

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
    from azure.storage.blob.aio import BlobClient, BlobLeaseClient, ContainerClient

# Blob clients are cached: creating one takes a fifth of the time of a request.
CLIENTS_MAX = 4096
# A body of the Event Processor Host has about 300 bytes; legacy hosts may add fields of their own.
BODY_BYTES_MAX = 256 * 1024
# A page may hold fewer blobs than requested, or none, but a listing must end.
PAGES_MAX = 1000
MakeClient = Callable[..., "ContainerClient"]


class ContainerOptions(TypedDict, total=False):
    """The options that all blob stores share, given as keywords."""

    create_container: bool  # create it if it is missing
    timeout_s: float  # the deadline of each request; 10 s by default
    at_once: int  # how many requests run concurrently; 32 by default
    clock: Clock | None


class ContainerStore:
    """Opens and closes the container of a blob store."""

    def __init__(
        self,
        account_url: str | None,
        container: str,
        credential: Any,
        connection_string: str | None,
        options: ContainerOptions,
    ) -> None:
        make_client = client_maker(account_url, connection_string, container, credential)
        self._container = Container(make_client, **options)

    @classmethod
    def from_connection_string(cls, connection_string: str, container: str, **options: Any) -> Self:
        return cls(None, container, connection_string=connection_string, **options)

    async def __aenter__(self) -> Self:
        await self._container.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._container.close()


def client_maker(
    account_url: str | None, connection_string: str | None, container: str, credential: Any
) -> MakeClient:
    """A function that creates a client of the official package. Its arguments are checked now."""
    try:
        from azure.storage.blob.aio import ContainerClient
    except ImportError:
        raise OptionError(
            "a blob store needs the official packages: pip install 'pumphouse[azure]'"
        ) from None
    checked_container(container)
    quieten(logging.getLogger("azure"), logging.WARNING)  # it logs each request as INFO

    def make(**options: Any) -> ContainerClient:
        if connection_string is not None:
            return ContainerClient.from_connection_string(
                connection_string, container, credential=credential, **options
            )
        return ContainerClient(account_url or "", container, credential=credential, **options)

    try:
        make()
    except (ValueError, TypeError):  # their messages may contain the credential
        given = "connection string" if connection_string is not None else "account URL"
        raise OptionError(
            f"the {given} or credential of the storage account is invalid; copy it whole, as the "
            "portal shows it"
        ) from None
    return make


class Container:
    """The requests to one container. It is closed when its last user closes it."""

    def __init__(
        self,
        make_client: MakeClient,
        *,
        create_container: bool = False,
        timeout_s: float = 10.0,
        at_once: int = 32,
        clock: Clock | None = None,
    ) -> None:
        if timeout_s <= 0:
            raise OptionError(f"timeout_s must be above 0 (got {timeout_s})")
        if at_once < 1:
            raise OptionError(f"at_once must be at least 1 (got {at_once})")
        self._make_client, self._create = make_client, create_container
        self._clock: Clock = clock or SystemClock()
        self._timeout_s, self._at_once = timeout_s, at_once
        self._requests = asyncio.Semaphore(at_once)
        self._opening = asyncio.Lock()
        self._client: ContainerClient | None = None
        self._set_metadata: SetMetadata | None = None
        self._blobs: dict[str, BlobClient] = {}
        self._users = 0
        self._date, self._dated_at = 0.0, 0.0
        url = urlsplit(make_client().url)
        self.url = f"{url.scheme}://{url.netloc}{url.path}"  # without a signature

    # -- open and close ---------------------------------------------------------------------------

    async def open(self) -> None:
        """Check that the container is reachable. The response also sets the store's clock."""
        async with self._opening:
            if self._client is None:
                transport = _transport(self._at_once)
                self._client = self._make_client(
                    transport=transport,
                    retry_total=0,
                    # The first request of a download gets at most this much, and the blob's size.
                    max_single_get_size=BODY_BYTES_MAX,
                )
                self._set_metadata = metadata_writer(self._client, transport)
                try:
                    await self._check_reachable()
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

    async def _check_reachable(self) -> None:
        if self._create:
            response = await self._write(self.client.create_container)
            if response.outcome not in ("written", "conflict"):
                raise store_error(response)
        # A signature for one container allows listing, but not reading its properties.
        async for _ in self.list("", limit=1):
            break

    @property
    def client(self) -> ContainerClient:
        if self._client is None:
            raise StoreError(f"{self.url} is not open: use it inside `async with store:`")
        return self._client

    # -- the store's clock ------------------------------------------------------------------------

    def now(self) -> float:
        """The time at the store: the last Date it sent, plus the time since then."""
        return self._date + self._clock.monotonic() - self._dated_at

    def _note_date(self, response: Any) -> float:
        if (date := _parse_date(response.http_response.headers.get("Date"))) is None:
            return self.now()
        self._date = date
        self._dated_at = self._clock.monotonic()
        return self._date

    # -- reading ----------------------------------------------------------------------------------

    async def list(self, prefix: str, limit: int | None = None) -> AsyncIterator[ListedBlob]:
        """All blobs whose names begin with `prefix`, with metadata: one request per 5,000."""
        from azure.core.exceptions import AzureError

        dates: list[float] = []  # of our own responses: other requests run concurrently
        pages = self.client.list_blobs(
            name_starts_with=prefix,
            include=["metadata"],
            results_per_page=limit,
            raw_response_hook=lambda response: dates.append(self._note_date(response)),
        ).by_page()
        blobs = 0
        for _ in range(PAGES_MAX):
            try:
                async with asyncio.timeout(self._timeout_s):
                    page = await anext(pages)
            except StopAsyncIteration:
                return
            except (AzureError, TimeoutError) as error:
                raise store_error(classify_error(error, self.url)) from None
            async for blob in page:
                yield _listed(blob, dates[-1])
                blobs += 1
            if blobs > ROWS_MAX:
                break
        raise StoreError(
            f"{self.url} lists {blobs} or more blobs under {shown(prefix)}; remove those that "
            "are not leases, checkpoints or members, or use another container"
        )

    async def get(self, name: str) -> tuple[ListedBlob, bytes] | None:
        """A blob and its body, or None if it does not exist."""
        from azure.core.exceptions import AzureError

        try:
            async with asyncio.timeout(self._timeout_s):
                stream = await self._blob(name).download_blob(raw_response_hook=self._note_date)
                if stream.size > BODY_BYTES_MAX:
                    raise StoreError(
                        f"blob {shown(name)} of {self.url} has {stream.size} bytes, but a lease "
                        f"has at most {BODY_BYTES_MAX}; correct or remove it"
                    )
                return _listed(stream.properties, self._date), await stream.readall()
        except (AzureError, TimeoutError) as error:
            response = classify_error(error, self.url)
            if response.code == "BlobNotFound":
                return None
            raise store_error(response) from None

    # -- writing ----------------------------------------------------------------------------------

    async def create(
        self, name: str, metadata: Mapping[str, str], body: bytes = b""
    ) -> BlobResponse:
        """Put Blob, if no blob has this name."""
        return await self._write(self._blob(name).upload_blob, body, metadata=dict(metadata))

    async def put(
        self, name: str, metadata: Mapping[str, str], body: bytes = b"", **conditions: str
    ) -> BlobResponse:
        """Put Blob over an existing one; `etag` and `lease` are optional conditions."""
        upload = partial(self._blob(name).upload_blob, overwrite=True)
        return await self._write(upload, body, metadata=dict(metadata), **_matching(**conditions))

    async def set_metadata(
        self, name: str, metadata: Mapping[str, str], **conditions: str
    ) -> BlobResponse:
        blob, headers = self._blob(name), conditional_headers(**conditions)
        assert self._set_metadata is not None  # the container is open, as it has a blob client
        return await self._write(self._set_metadata, blob, metadata, headers)

    async def head(self, name: str) -> BlobResponse:
        """Whether the blob exists: "written" if so, "conflict" if not."""
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
        """Give the lease another id: a holder that knows only the old one has lost it."""
        change = self._lease(name, lease).change
        return await self._write(change, proposed, **_matching(**conditions))

    async def release(self, name: str, lease: str) -> BlobResponse:
        return await self._write(self._lease(name, lease).release)

    async def _write(
        self, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> BlobResponse:
        from azure.core.exceptions import AzureError

        try:
            async with self._requests, asyncio.timeout(self._timeout_s):
                result = await call(*args, **kwargs, raw_response_hook=self._note_date)
        except (AzureError, TimeoutError) as error:
            return classify_error(error, self.url)
        return BlobResponse(
            "written", etag=_unquoted(result["etag"]) if isinstance(result, dict) else ""
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


# -- values of the official packages --------------------------------------------------------------


def _matching(etag: str = "", lease: str = "") -> dict[str, Any]:
    from azure.core import MatchConditions

    conditions: dict[str, Any] = {"lease": lease} if lease else {}
    if etag:
        conditions |= {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}
    return conditions


def _listed(blob: Any, now: float) -> ListedBlob:
    if not blob.etag or blob.last_modified is None:
        raise StoreError(f"blob {shown(blob.name)} is listed without its etag or its time")
    listed = ListedBlob(
        name=blob.name,
        etag=_unquoted(blob.etag),
        metadata=blob.metadata or {},
        modified=blob.last_modified.timestamp(),
        now=now,
        lease_state=str(blob.lease.state or "available"),
    )
    return checked_metadata(listed)


def _parse_date(text: str | None) -> float | None:
    """The time of a Date header; None if it is missing or invalid."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _unquoted(etag: str) -> str:
    """A listing has bare etags, a response has them in quotes."""
    return etag.strip('"')


def _transport(connections: int) -> Any:
    from urllib.request import getproxies

    import aiohttp
    from azure.core.pipeline.transport import AioHttpTransport

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # If no proxy is configured, aiohttp must not look for one: it does so in a thread, twice
        # per request.
        trust_env=bool(getproxies()),
        middlewares=(send_once,),
    )
    return AioHttpTransport(session=session)


async def send_once(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep aiohttp from repeating a write after its connection broke.

    aiohttp assumes that PUT is idempotent, but a conditional PUT is not.
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
