"""Credentials of a hub: a key, a signature, or a credential of azure-identity.

    connection string, credential -> credential_for -> Credential.token -> Tokens -> put-token
                                     ^^^^^^^^^^^^^^ this module ^^^^^^

A token has an expiry. Whether it can be renewed depends on the credential: a key signs any number
of tokens, a given signature is a single token.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs

from pumphouse.client.base import AccessToken, TokenCredential
from pumphouse.client.connection_string import ConnectionString
from pumphouse.client.sas import sign
from pumphouse.errors import AuthError, OptionError

TOKEN_S = 3600.0  # validity of the tokens that we sign, as in the official clients
SCOPE = "https://eventhubs.azure.net/.default"
SAS_TOKEN, JWT_TOKEN = "servicebus.windows.net:sastoken", "jwt"
TOKEN_REQUEST_S = 60.0  # timeout of `get_token`, which may try several issuers over the network


@dataclass(frozen=True, slots=True)
class Token:
    """A token for a hub, and its expiry (seconds since 1970)."""

    text: str = field(repr=False)
    kind: str
    expires_at: float


class Credential(Protocol):
    """Issues tokens."""

    @property
    def name(self) -> str:
        """A description for messages, without secrets."""

    @property
    def renews(self) -> bool:
        """Whether an expiring token can be replaced."""

    async def token(self, resource: str, now: float) -> Token:
        """A token for a resource; AuthError if none can be obtained."""


@dataclass(frozen=True, slots=True)
class KeyCredential:
    """A shared access key: signs a token per resource."""

    key_name: str
    key: str = field(repr=False)
    renews = True

    @property
    def name(self) -> str:
        return f"key of {self.key_name!r}"

    async def token(self, resource: str, now: float) -> Token:
        expiry = int(now + TOKEN_S)
        return Token(sign(resource, self.key_name, self.key, expiry), SAS_TOKEN, expiry)


@dataclass(frozen=True, slots=True)
class SignatureCredential:
    """A token that was signed elsewhere. It is read each time, because it may change."""

    read: Callable[[], str] = field(repr=False)
    renews: bool = False
    name = "SharedAccessSignature"

    async def token(self, resource: str, now: float) -> Token:
        text = self.read()
        return Token(text, SAS_TOKEN, expiry_of(text))


class IdentityCredential:
    """A credential of azure-identity, blocking or asyncio.

    A token is cached while it is valid, so a broken connection is reopened without a request to the
    token issuer, which may be unreachable at that moment.
    """

    renews = True

    def __init__(self, credential: TokenCredential) -> None:
        self.credential = credential
        self.name = f"token of {type(credential).__name__}"
        self._cached: Token | None = None
        self._renew_at = 0.0
        self._lock = asyncio.Lock()  # concurrent callers share one request

    def __repr__(self) -> str:
        return f"<IdentityCredential {type(self.credential).__name__}>"

    async def token(self, resource: str, now: float) -> Token:
        async with self._lock:
            if self._cached is None or now >= self._renew_at:
                issued = await self.request_token()
                self._cached = Token(issued.token, JWT_TOKEN, float(issued.expires_on))
                self._renew_at = renewal_at(now, self._cached.expires_at)
            return self._cached

    async def request_token(self) -> AccessToken:
        try:
            async with asyncio.timeout(TOKEN_REQUEST_S):
                return await self.get_token()
        except TimeoutError:
            waited = f"{TOKEN_REQUEST_S:g} s"
            raise AuthError(f"the {self.name} did not arrive within {waited}") from None
        except Exception as failed:
            # azure-identity may not be installed, so its exception classes cannot be named.
            reason = str(failed).strip().partition("\n")[0][:300] or type(failed).__name__
            raise AuthError(f"cannot get the {self.name}: {reason}") from failed

    async def get_token(self) -> AccessToken:
        """Call `get_token`; if it blocks, call it in a thread."""
        if inspect.iscoroutinefunction(self.credential.get_token):
            result = self.credential.get_token(SCOPE)
        else:
            result = await asyncio.to_thread(self.credential.get_token, SCOPE)
        token: AccessToken = await result if inspect.isawaitable(result) else result
        return token


def credential_for(connection: ConnectionString, given: Any = None) -> Credential:
    """The given credential, otherwise the key or signature of the connection string.

    A given credential is a signature as text, or an object with `get_token` (azure-identity),
    `named_key` or `signature` (azure-core).
    """
    if given is None:
        return connection_string_credential(connection)
    if isinstance(given, str):
        return SignatureCredential(lambda: check_signature(given))
    if callable(getattr(given, "get_token", None)):
        return IdentityCredential(given)
    if hasattr(given, "named_key"):
        return KeyCredential(*given.named_key)
    if isinstance(getattr(given, "signature", None), str):
        return SignatureCredential(lambda: check_signature(given.signature), renews=True)
    raise OptionError(
        f"{type(given).__name__} is not a credential: it has no get_token, named_key or signature"
    )


def connection_string_credential(connection: ConnectionString) -> Credential:
    if connection.signature:
        return SignatureCredential(lambda: connection.signature)
    if connection.key:
        return KeyCredential(connection.key_name, connection.key)
    raise OptionError(
        f"no credential for {connection.address}: use a connection string with a key, or pass a "
        "credential"
    )


def check_signature(text: str) -> str:
    """Return the text if it is a signature; else OptionError, so that no key is sent to a hub."""
    if not text.startswith("SharedAccessSignature "):
        raise OptionError(
            "a credential given as text must be a signature: SharedAccessSignature sr=..."
        )
    return text


def expiry_of(signature: str) -> float:
    """The expiry of a signature; infinite if it has none or an invalid one."""
    expiry = parse_qs(signature.partition(" ")[2]).get("se", [""])[0]
    return float(expiry) if expiry.isascii() and expiry.isdigit() else float("inf")


def renewal_at(now: float, expires_at: float) -> float:
    """The time to renew a token: after nine tenths of its validity, as the official clients."""
    return now + 0.9 * (expires_at - now)
