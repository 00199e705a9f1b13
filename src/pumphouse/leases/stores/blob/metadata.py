"""Set Blob Metadata, the request of every checkpoint and renewal, with little CPU time.

A call of the official client builds its request in five layers and sends it through sixteen
policies. That takes three times as much CPU time as the four policies that such a request needs:
they name the sender, sign, trace and log it. All are those of the official packages, so
credentials, tokens and errors are the same.

    Container -> metadata_writer -> signature, trace, log -> transport -> Azure, Azurite
                 ^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure.core.pipeline.transport import AsyncHttpResponse
    from azure.storage.blob.aio import BlobClient, ContainerClient

_CODE = re.compile(r"<Code>([A-Za-z]{1,80})</Code>")
BODY_CHARS_MAX = 64 * 1024  # of an error; Azure's have about 300
SetMetadata = Callable[..., Awaitable[dict[str, Any]]]


def metadata_writer(client: ContainerClient, transport: Any) -> SetMetadata:
    """A function that sets the metadata of a blob, with the credential of a client.

    Where the client keeps its credential is not documented. If a later version keeps it elsewhere,
    the function is the client's own.
    """
    if not hasattr(client, "_credential_policy"):
        return _set_by_client
    return MetadataWriter(client.api_version, client._credential_policy, transport).set


async def _set_by_client(
    blob: BlobClient, metadata: Mapping[str, str], conditions: Mapping[str, str], **options: Any
) -> dict[str, Any]:
    return await blob.set_blob_metadata(dict(metadata), headers=dict(conditions), **options)


class MetadataWriter:
    def __init__(self, version: str, credential: Any, transport: Any) -> None:
        from azure.core.pipeline import AsyncPipeline, policies

        # A pipeline links its policies: with the client's own, it would change the client's.
        signing = [] if credential is None else [copy(credential)]
        trace, log = policies.DistributedTracingPolicy(), policies.HttpLoggingPolicy()
        self._pipeline: Any = AsyncPipeline(
            transport, [policies.UserAgentPolicy("pumphouse"), *signing, trace, log]
        )
        self._version = version

    async def set(
        self,
        blob: BlobClient,
        metadata: Mapping[str, str],
        conditions: Mapping[str, str],
        *,
        raw_response_hook: Callable[[Any], object],
    ) -> dict[str, Any]:
        """The headers of the response, as the client returns them: its etag."""
        from azure.core.pipeline.transport import HttpRequest

        headers = request_headers(self._version, metadata, time.time(), uuid.uuid4())
        headers.update(conditions)
        request = HttpRequest("PUT", metadata_url(blob.url), headers=headers)
        response = await self._pipeline.run(request)
        raw_response_hook(response)
        if response.http_response.status_code != 200:
            raise _error(response.http_response)
        return {"etag": response.http_response.headers["ETag"]}


def metadata_url(blob_url: str) -> str:
    """The address of the request; that of a blob may contain a signature."""
    return f"{blob_url}{'&' if '?' in blob_url else '?'}comp=metadata"


def request_headers(
    version: str, metadata: Mapping[str, str], now: float, request_id: uuid.UUID
) -> dict[str, str]:
    return {
        "Accept": "application/xml",
        "x-ms-client-request-id": str(request_id),
        "x-ms-date": formatdate(now, usegmt=True),
        "x-ms-version": version,
    } | {f"x-ms-meta-{key.strip()}": value.strip() for key, value in metadata.items()}


def conditional_headers(etag: str = "", lease: str = "") -> dict[str, str]:
    headers = {"If-Match": f'"{etag}"'} if etag else {}
    return headers | ({"x-ms-lease-id": lease} if lease else {})


def _error(response: AsyncHttpResponse) -> Exception:
    """The exception that the official client raises for a response that is not a success."""
    from azure.core.exceptions import HttpResponseError

    error: Any = HttpResponseError(response=response)
    error.error_code = error_code(response.headers.get("x-ms-error-code"), response.body())
    return error  # type: ignore[no-any-return]


def error_code(header: str | None, body: bytes) -> str:
    """The service's code of an error. Gateways may remove the header."""
    if header:
        return header
    code = _CODE.search(body[:BODY_CHARS_MAX].decode("utf-8", "replace"))
    return code[1] if code else ""
