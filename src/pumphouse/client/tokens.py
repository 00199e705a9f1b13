"""The tokens of one connection: put before a path is used, and again before they run out.

ConnectionString -> sas.sign -> Tokens -> put-token on $cbs
                                ^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.amqp.types import Timestamp
from pumphouse.client.calls import Calls
from pumphouse.client.connection_string import ConnectionString
from pumphouse.client.sas import sign
from pumphouse.clock import Clock
from pumphouse.errors import AuthError

TOKEN_S = 3600.0  # as the official clients
RENEW_S = 0.9 * TOKEN_S  # six minutes to spare
CHECK_S = 60.0
SAS_TOKEN = "servicebus.windows.net:sastoken"


class Tokens:
    """Which paths are open, and since when."""

    def __init__(self, calls: Calls, connection: ConnectionString, clock: Clock) -> None:
        self.calls = calls
        self.connection = connection
        self.clock = clock
        self._since: dict[str, float] = {}  # path -> when its token was put

    async def cover(self, path: str) -> None:
        """Make sure that a token for this path is with the hub."""
        if path not in self._since:
            await self.put(path)

    async def put(self, path: str) -> None:
        now = self.clock.now()
        resource = self.connection.resource(path)
        expiry = int(now + TOKEN_S)
        asked = {
            "operation": "put-token",
            "type": SAS_TOKEN,
            "name": resource,
            "expiration": Timestamp(expiry * 1000),
        }
        try:
            await self.calls.ask(asked, self.token(resource, expiry))
        except AuthError as refused:
            raise self.not_opened(refused) from None
        self._since[path] = now

    def not_opened(self, refused: AuthError) -> AuthError:
        """The refusal, with what it was that did not open and where it came from."""
        given = self.connection
        what = "SharedAccessSignature" if given.signature else f"key of {given.key_name!r}"
        text = f"{given.place} does not take the {what} of the connection string"
        return AuthError(f"{text}: {refused.description}", refused.status)

    def token(self, resource: str, expiry: int) -> str:
        """A fresh token, or the one that we were given."""
        given = self.connection
        return given.signature or sign(resource, given.key_name, given.key, expiry)

    async def keep(self) -> None:
        """Renew for ever. A token that someone else made cannot be renewed: it just ends."""
        while not self.connection.signature:
            await self.clock.sleep(CHECK_S)
            for path, since in list(self._since.items()):
                if self.clock.now() - since >= RENEW_S:
                    await self.put(path)
