"""Every exception that Pumphouse raises, in one tree.

`except PumphouseError` catches all of them. A `LocalProtocolError` is a bug on this side of the
connection, a `RemoteProtocolError` one on the other side. A message gives what is wrong, the value
that was found and what to do; it never contains a key or a token.
"""

from __future__ import annotations


class PumphouseError(Exception):
    """The base class of every error that Pumphouse raises on purpose."""


class OptionError(PumphouseError, ValueError):
    """An option, name or position is invalid. Nothing was changed; correct the value and retry."""


class QuotaExceeded(OptionError):
    """The configured tier does not allow this many hubs, partitions or bytes. Nothing was changed.

    Ask for less, or start the hub with a larger `tier` or without one.
    """


class EventTooLarge(OptionError):
    """An event exceeds the hub's message limit. No event of its batch was sent.

    Split the event, or store the body elsewhere and send a reference to it.
    """


class ProtocolError(PumphouseError):
    """One side of a connection violated AMQP 1.0."""


class LocalProtocolError(ProtocolError):
    """This side was about to violate AMQP: a bug here or in the calling code. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer violated AMQP. The connection is closed with `condition` and this message."""

    condition = "amqp:connection:framing-error"

    def __init__(self, message: str, condition: str | None = None) -> None:
        super().__init__(message)
        if condition is not None:
            self.condition = condition


class MalformedBytes(RemoteProtocolError):
    """The peer sent bytes that are not valid AMQP. Decoding stopped at the byte `offset`."""

    condition = "amqp:decode-error"

    def __init__(self, offset: int, found: str) -> None:
        super().__init__(f"at byte {offset}: {found}")
        self.offset = offset
        self.found = found


class AmqpError(PumphouseError):
    """The hub refused a request. `condition` is the AMQP condition, `description` its text."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{description} ({condition})" if description else condition)
        self.condition = condition
        self.description = description


class AuthError(PumphouseError):
    """A token, key or claim was rejected. `status` is the status code of the CBS response.

    Check the key or credential, whether the token has expired, and whether the access rule has the
    claim that the call needs: Send, Listen or Manage.
    """

    def __init__(self, description: str, status: int = 401) -> None:
        super().__init__(description)
        self.description = description
        self.status = status


class HubNotFound(PumphouseError):
    """The event hub or consumer group does not exist. Create it, or correct the name."""


class HubExists(PumphouseError):
    """An event hub or consumer group of this name exists already."""


class PortTaken(PumphouseError):
    """Another program listens on this port. Choose another one; port 0 picks a free one."""


class DataDirectoryError(PumphouseError):
    """A data directory is in use by another process, unreadable, or was not made by Pumphouse."""


class ConnectionFailed(PumphouseError):
    """The hub could not be reached, or the connection broke and could not be restored in time."""


class HubUntrusted(ConnectionFailed):
    """The hub's TLS certificate is not trusted. Pass its authority as `ca_file`, or correct it."""


class ReaderEvicted(AmqpError):
    """A reader with at least the same epoch has taken the partition, or keeps this one out.

    `epoch` is the epoch of the other reader, if the hub reports it. Retrying does not help; read
    with a higher epoch to take the partition back.
    """

    def __init__(self, condition: str, description: str, epoch: int | None = None) -> None:
        super().__init__(condition, description)
        self.epoch = epoch


class StoreError(PumphouseError):
    """A checkpoint store failed and will keep failing: it is missing, or access is denied."""


class StoreUnavailable(StoreError):
    """A checkpoint store timed out or is overloaded. A later call may succeed."""


class StoreMisused(PumphouseError, AssertionError):
    """A row was written that cannot follow the stored one: a bug in the calling code.

    Nothing was written. Stores in the cloud would accept such a row; the memory store raises, so
    that tests find the bug.
    """


class OwnershipLost(PumphouseError):
    """This host no longer owns the partition: another host claimed it, or the lease expired.

    Stop handling its events. No other action is needed: the new owner continues after the last
    checkpoint.
    """

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
    """A handler has not returned within `handler_timeout_s`. It is not interrupted.

    Its partition waits until it returns; other partitions continue and the lease is renewed. Look
    for a call without a time-out in the handler.
    """

    def __init__(self, partition: str, seconds: float, sequence: int | None) -> None:
        super().__init__(
            f"the handler of partition {partition} has not returned for {seconds:.0f} s (its batch "
            f"ends with event {sequence}); the partition waits until it does"
        )
        self.partition, self.seconds, self.sequence = partition, seconds, sequence


class PoisonEvent(PumphouseError):
    """The handler failed on this event in every attempt. `__cause__` is its last exception.

    What happens next is decided by `PoisonPolicy(then=...)`.
    """

    def __init__(self, partition: str, sequence: int | None, tried: int, then: str) -> None:
        super().__init__(
            f"event {sequence} of partition {partition} could not be handled ({tried} attempts); "
            f"{then}"
        )
        self.partition, self.sequence, self.tried = partition, sequence, tried


class CheckpointRefused(PumphouseError):
    """A checkpoint would move backwards, or a later owner of the partition has fenced it."""


class BadRecord(PumphouseError, ValueError):
    """A body is not a valid record. `reason` is one word, `found` describes the body."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(f"{reason}: {found}")
        self.reason, self.found = reason, found


class RecordsDamaged(PumphouseError):
    """The recorded files of the homes pipeline cannot be read: the manifest or a file in it."""


class RecordsContended(PumphouseError):
    """Another process wrote to the same records. Only one pipeline may record into a folder."""
