"""What opens a hub, whoever made it: a key, a ready signature, or a credential of azure-identity.

    connection string, credential -> credential_for -> Credential.token -> Tokens -> put-token
                                     ^^^^^^^^^^^^^^ this module ^^^^^^

A token says until when it is good. Whether there will be another after it depends on who makes it:
a key makes as many as are wanted, a ready signature is the only one of its kind.
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

TOKEN_S = 3600.0  # of those that we sign; as the official clients
SCOPE = "https://eventhubs.azure.net/.default"
SAS_TOKEN, JWT_TOKEN = "servicebus.windows.net:sastoken", "jwt"
ASK_S = 60.0  # for a credential to make a token: it may have to ask three places over the network


@dataclass(frozen=True, slots=True)
class Token:
    """What is put to a hub, and until when it is good (seconds since 1970)."""

    text: str = field(repr=False)
    kind: str
    expires_at: float


class Credential(Protocol):
    """Makes tokens."""

    @property
    def name(self) -> str:
        """What it is, to stand in a sentence; never what it holds."""

    @property
    def renews(self) -> bool:
        """Whether there can be another token when one runs out."""

    async def token(self, resource: str, now: float) -> Token:
        """A token for a resource; AuthError if there is none to be had."""


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
    """A token that someone else signed. Where it can change, it is looked at each time."""

    read: Callable[[], str] = field(repr=False)
    renews: bool = False
    name = "SharedAccessSignature"

    async def token(self, resource: str, now: float) -> Token:
        text = self.read()
        return Token(text, SAS_TOKEN, expiry_of(text))


class IdentityCredential:
    """A credential of azure-identity, blocking or asyncio.

    A token is kept while it is good, so that a broken connection is mended without asking for
    another: the place that makes them may be out of reach just then.
    """

    renews = True

    def __init__(self, credential: TokenCredential) -> None:
        self.credential = credential
        self.name = f"token of {type(credential).__name__}"
        self._kept: Token | None = None
        self._renew_at = 0.0
        self._asking = asyncio.Lock()  # so that many paths at once ask once

    def __repr__(self) -> str:
        return f"<IdentityCredential {type(self.credential).__name__}>"

    async def token(self, resource: str, now: float) -> Token:
        async with self._asking:
            if self._kept is None or now >= self._renew_at:
                made = await self.ask()
                self._kept = Token(made.token, JWT_TOKEN, float(made.expires_on))
                self._renew_at = renewal_at(now, self._kept.expires_at)
            return self._kept

    async def ask(self) -> AccessToken:
        try:
            async with asyncio.timeout(ASK_S):
                return await self.get_token()
        except TimeoutError:
            raise AuthError(f"the {self.name} was not there within {ASK_S:g} s") from None
        except Exception as failed:
            # Azure's errors are a tree of their own, which we need not have installed.
            reason = str(failed).strip().partition("\n")[0][:300] or type(failed).__name__
            raise AuthError(f"there is no {self.name} to be had: {reason}") from failed

    async def get_token(self) -> AccessToken:
        """Blocking ones run in a thread; those of asyncio answer with something to await."""
        if inspect.iscoroutinefunction(self.credential.get_token):
            answer = self.credential.get_token(SCOPE)
        else:
            answer = await asyncio.to_thread(self.credential.get_token, SCOPE)
        found: AccessToken = await answer if inspect.isawaitable(answer) else answer
        return found


def credential_for(connection: ConnectionString, given: Any = None) -> Credential:
    """What opens a hub: the credential that is given, otherwise what the connection string holds.

    Given may be: a signature as text, anything with `get_token` (azure-identity), with `named_key`
    or with `signature` (azure-core).
    """
    if given is None:
        return of_connection(connection)
    if isinstance(given, str):
        return SignatureCredential(lambda: check_signature(given))
    if callable(getattr(given, "get_token", None)):
        return IdentityCredential(given)
    if hasattr(given, "named_key"):
        return KeyCredential(*given.named_key)
    if isinstance(getattr(given, "signature", None), str):
        return SignatureCredential(lambda: check_signature(given.signature), renews=True)
    raise OptionError(
        f"{type(given).__name__} is no credential: it has no get_token, named_key or signature"
    )


def of_connection(connection: ConnectionString) -> Credential:
    if connection.signature:
        return SignatureCredential(lambda: connection.signature)
    if connection.key:
        return KeyCredential(connection.key_name, connection.key)
    raise OptionError(
        f"nothing opens {connection.place}: give a connection string with a key, or a credential"
    )


def check_signature(text: str) -> str:
    """A signature, as long as it looks like one: a key in its place would be sent over the wire."""
    if not text.startswith("SharedAccessSignature "):
        raise OptionError("a credential that is text must be a token: SharedAccessSignature sr=...")
    return text


def expiry_of(signature: str) -> float:
    """Until when a signature is good; for ever if it does not say so in a way we understand."""
    said = parse_qs(signature.partition(" ")[2]).get("se", [""])[0]
    return float(said) if said.isascii() and said.isdigit() else float("inf")


def renewal_at(now: float, expires_at: float) -> float:
    """When to renew a token: at nine tenths of what is left, as the official clients."""
    return now + 0.9 * (expires_at - now)
