"""Every exception Pumphouse raises, in one tree.

Blame is split as between two people on a telephone line: a `LocalProtocolError` is our bug (or
our caller's), a `RemoteProtocolError` is the peer's. Each message names the thing, what was found
and what to do next, and never carries a key or a token.
"""

from __future__ import annotations


class PumphouseError(Exception):
    """Everything that Pumphouse raises on purpose."""


class OptionError(PumphouseError, ValueError):
    """An option, name or position given by the user makes no sense; nothing was changed."""


class QuotaExceeded(OptionError):
    """The tier that the hub was told to keep to does not allow this much; nothing was changed."""


class EventTooLarge(OptionError):
    """An event is larger than the hub takes. Nothing of its batch was sent."""


class ProtocolError(PumphouseError):
    """The AMQP rules were broken by one side or the other."""


class LocalProtocolError(ProtocolError):
    """We were about to break the rules: a bug here or in the calling code. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules. The connection is closed with `condition` and this message."""

    condition = "amqp:connection:framing-error"

    def __init__(self, message: str, condition: str | None = None) -> None:
        super().__init__(message)
        if condition is not None:
            self.condition = condition


class MalformedBytes(RemoteProtocolError):
    """Bytes that are not valid AMQP. `offset` is the byte at which decoding stopped."""

    condition = "amqp:decode-error"

    def __init__(self, offset: int, found: str) -> None:
        super().__init__(f"at byte {offset}: {found}")
        self.offset = offset
        self.found = found


class AmqpError(PumphouseError):
    """A refusal with an AMQP condition: by the hub towards a client, or received from a hub."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{description} ({condition})" if description else condition)
        self.condition = condition
        self.description = description


class AuthError(PumphouseError):
    """A token, key or claim that does not open the door. `status` is the CBS status code."""

    def __init__(self, description: str, status: int = 401) -> None:
        super().__init__(description)
        self.description = description
        self.status = status


class HubNotFound(PumphouseError):
    """No event hub or consumer group of that name exists."""


class HubExists(PumphouseError):
    """An event hub or consumer group of that name exists already."""


class PortTaken(PumphouseError):
    """Another program listens on the port we were told to use."""


class DataDirectoryError(PumphouseError):
    """A data directory is in use, unreadable, or not one of ours."""


class ConnectionFailed(PumphouseError):
    """A hub could not be reached, or the connection to it broke."""


class HubUntrusted(ConnectionFailed):
    """Who answered could not prove to be the hub: its certificate is not one that we trust."""


class ReaderEvicted(AmqpError):
    """Another reader of at least our epoch has taken the partition, or holds it and we may not.

    `epoch` is the other reader's, where the hub names it.
    """

    def __init__(self, condition: str, description: str, epoch: int | None = None) -> None:
        super().__init__(condition, description)
        self.epoch = epoch


class StoreError(PumphouseError):
    """A checkpoint store could not be read, or said no for good (it is missing, or we may not)."""


class StoreUnavailable(StoreError):
    """A store gave no answer in time, or one that says to come again: a later call may succeed."""


class StoreMisused(PumphouseError, AssertionError):
    """A row that no row of ours may follow: a bug in the calling code. Nothing was written.

    Stores in the cloud would have taken it; the memory store raises, so that tests find the bug.
    """


class OwnershipLost(PumphouseError):
    """A partition is no longer ours: somebody else's write came first, or our lease ran out."""

    def __init__(self, partition: str, held_epoch: int, owner: str = "", epoch: int = 0) -> None:
        now = f"is now owned by {owner} (epoch {epoch})" if owner else "is no longer ours"
        super().__init__(
            f"partition {partition} {now}; we held epoch {held_epoch}. "
            "Its pump stops; no action is needed"
        )
        self.partition, self.held_epoch, self.owner, self.epoch = (
            partition,
            held_epoch,
            owner,
            epoch,
        )


class HandlerStuck(PumphouseError):
    """A handler has had a batch in hand for too long. It goes on; its partition waits."""

    def __init__(self, partition: str, seconds: float, sequence: int | None) -> None:
        super().__init__(
            f"the handler of partition {partition} has had the batch that ends with event "
            f"{sequence} in hand for {seconds:.0f} s; nothing else of this partition is handled "
            "meanwhile"
        )
        self.partition, self.seconds, self.sequence = partition, seconds, sequence


class PoisonEvent(PumphouseError):
    """An event on which the handler raises, however often it is tried. The cause is chained."""

    def __init__(self, partition: str, sequence: int | None, tried: int, then: str) -> None:
        super().__init__(
            f"event {sequence} of partition {partition} could not be handled ({tried} attempts); "
            f"{then}"
        )
        self.partition, self.sequence, self.tried = partition, sequence, tried


class CheckpointRefused(PumphouseError):
    """A checkpoint that would move backwards, or that a later owner has fenced off."""


class BadRecord(PumphouseError, ValueError):
    """A body that is not the record it should be. `reason` is one word, `found` says what was."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(f"{reason}: {found}")
        self.reason, self.found = reason, found


class RecordsDamaged(PumphouseError):
    """The records of the homes cannot be read: their manifest, or a file that it names."""


class RecordsContended(PumphouseError):
    """Somebody else has written to the same records: two pipelines record into one place."""
