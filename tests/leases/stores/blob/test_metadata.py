"""Set Blob Metadata sent by itself, compared with what the official client sends."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.core import MatchConditions
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import BlobClient, ContainerClient

from pumphouse.leases.stores.blob.metadata import (
    conditional_headers,
    error_code,
    metadata_url,
    metadata_writer,
)
from pumphouse.leases.stores.blob.responses import classify_error

METADATA = {"offset": "10", "sequencenumber": "1", "epoch": "7", "ownerid": " a "}
KEY = "a2V5"
# Differ between any two requests, or name the sender.
PER_REQUEST = {"X-Ms-Date", "X-Ms-Client-Request-Id", "User-Agent", "Authorization"}


@dataclass(slots=True)
class Account:
    """An account that accepts every request, or refuses it with `status`, and keeps its headers."""

    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    status: int = 200
    error_headers: dict[str, str] = field(default_factory=dict)
    error_body: str = ""

    async def respond(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if self.status != 200:
            return web.Response(
                status=self.status,
                headers=self.error_headers,
                text=self.error_body,
                content_type="application/xml",
            )
        return web.Response(headers={"ETag": '"0x2"'})


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    account = Account()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", account.respond)
    async with TestServer(app) as server:
        account.url = str(server.make_url("/account")).rstrip("/")
        yield account


class Identity:
    """A credential with a token of one hour."""

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken("token-1", int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> Identity:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


class WithoutTls(AioHttpTransport):  # type: ignore[misc]
    """Sends to a server without TLS what was addressed to one with TLS: tokens need TLS."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://")
        return await super().send(request, **options)


def blob_of(client: ContainerClient) -> BlobClient:
    return client.get_blob_client("house/sensors/ä b/checkpoint/0")


async def write_both(client: ContainerClient, transport: AioHttpTransport) -> list[dict[str, Any]]:
    """The responses to the official client's request and to ours."""
    blob, writer = blob_of(client), metadata_writer(client, transport)
    official = await blob.set_blob_metadata(
        METADATA, etag='"0x1"', match_condition=MatchConditions.IfNotModified, lease="lease-1"
    )
    conditions = conditional_headers("0x1", "lease-1")
    hook: list[Any] = []
    ours = await writer(blob, METADATA, conditions, raw_response_hook=hook.append)
    assert [response.http_response.status_code for response in hook] == [200]
    return [official, ours]


async def test_the_request_is_that_of_the_official_client(account: Account) -> None:
    transport = AioHttpTransport()
    async with ContainerClient(account.url, "leases", KEY, transport=transport) as client:
        official, ours = await write_both(client, transport)
    assert official["etag"] == ours["etag"] == '"0x2"'
    theirs, mine = account.requests
    assert (mine.method, mine.raw_path) == (theirs.method, theirs.raw_path)
    assert mine.headers["x-ms-meta-ownerid"] == "a"
    assert without(mine, PER_REQUEST) == without(theirs, PER_REQUEST)
    assert mine.headers["Authorization"].startswith("SharedKey ")


def without(request: web.Request, names: set[str]) -> dict[str, str]:
    headers = {name.title(): value for name, value in request.headers.items()}
    return {name: value for name, value in headers.items() if name not in names}


async def test_a_token_signs_both_and_leaves_the_client_as_it_is(account: Account) -> None:
    transport = WithoutTls()
    url = account.url.replace("http://", "https://")
    identity: Any = Identity()
    async with ContainerClient(url, "leases", identity, transport=transport) as client:
        await write_both(client, transport)
        hook: list[Any] = []
        await blob_of(client).set_blob_metadata(METADATA, raw_response_hook=hook.append)
        assert len(hook) == 1  # a policy behind the signing one still sees the response
    assert [r.headers["Authorization"] for r in account.requests] == ["Bearer token-1"] * 3


async def test_a_signature_in_the_address_stays_there(account: Account) -> None:
    transport = AioHttpTransport()
    url = f"{account.url}?sv=2021&sig=secret"
    async with ContainerClient(url, "leases", transport=transport) as client:
        await write_both(client, transport)
    assert [set(r.query) for r in account.requests] == [{"sv", "sig", "comp"}] * 2
    assert "Authorization" not in account.requests[1].headers


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({"x-ms-error-code": "ConditionNotMet"}, "", "ConditionNotMet"),
        ({}, "<Error><Code>ConditionNotMet</Code><Message>m</Message></Error>", "ConditionNotMet"),
        ({}, "<html/>", ""),
    ],
)
async def test_an_error_is_classified_as_that_of_the_official_client(
    account: Account, headers: dict[str, str], body: str, code: str
) -> None:
    account.status, account.error_headers, account.error_body = 412, headers, body
    transport = AioHttpTransport()
    async with ContainerClient(account.url, "leases", KEY, transport=transport) as client:
        with pytest.raises(HttpResponseError) as official:
            await blob_of(client).set_blob_metadata(METADATA)
        writer = metadata_writer(client, transport)
        with pytest.raises(HttpResponseError) as ours:
            await writer(blob_of(client), METADATA, {}, raw_response_hook=lambda _: None)
    response = classify_error(ours.value, "url")
    assert (response.outcome, response.code) == ("conflict", code)
    assert response == classify_error(official.value, "url")


async def test_the_request_is_logged_without_secrets(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    transport = AioHttpTransport()
    url = f"{account.url}?sv=2021&sig=secret"
    async with ContainerClient(url, "leases", transport=transport) as client:
        writer = metadata_writer(client, transport)
        with caplog.at_level(logging.INFO, "azure"):
            await writer(blob_of(client), METADATA, {}, raw_response_hook=lambda _: None)
    assert "checkpoint/0?" in caplog.text
    assert "secret" not in caplog.text


async def test_a_client_without_the_credential_sends_the_request_itself(account: Account) -> None:
    transport = AioHttpTransport()
    async with ContainerClient(account.url, "leases", KEY, transport=transport) as client:
        credential = client._credential_policy
        del client._credential_policy
        writer = metadata_writer(client, transport)
        client._credential_policy = credential
        ours = await writer(
            blob_of(client), METADATA, {"If-Match": '"0x1"'}, raw_response_hook=lambda _: None
        )
    assert ours["etag"] == '"0x2"'
    assert account.requests[0].headers["If-Match"] == '"0x1"'


def test_the_address_keeps_its_query() -> None:
    assert metadata_url("http://a/b") == "http://a/b?comp=metadata"
    assert metadata_url("http://a/b?sig=c") == "http://a/b?sig=c&comp=metadata"


def test_the_code_is_taken_from_the_body_if_the_header_is_missing() -> None:
    assert error_code("BlobNotFound", b"<Code>Other</Code>") == "BlobNotFound"
    assert error_code(None, b"\xff<Code>Other</Code>") == "Other"
    assert error_code(None, b"") == ""
