"""Every exception that Pumphouse raises, in one tree.

`except PumphouseError` catches all of them. A `LocalProtocolError` is a bug on this side of the
connection, a `RemoteProtocolError` a bug on the other side. A message gives what is wrong, the
value that was found and what to do; it never contains a key or a token.
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


class TokenExpired(AuthError):
    """A token has expired by the clock of the hub. Make a new one, and compare the clocks."""


class HubNotFound(PumphouseError):
    """The event hub or consumer group does not exist. Create it, or correct the name."""


class HubExists(PumphouseError):
    """An event hub or consumer group of this name exists already. Choose another name."""


class PortTaken(PumphouseError):
    """Another program listens on this port. Choose another one; port 0 picks a free one."""


class DataDirectoryError(PumphouseError):
    """A data directory is in use by another process, cannot be read or written, or is not ours."""


class ChangeNotStored(DataDirectoryError):
    """A change of hubs, consumer groups or access rules could not be written to the disk.

    Nothing was changed; the hub continues. If `disk_full`, free some space and retry. `description`
    is the text for clients: it does not contain the path of the directory.
    """

    def __init__(self, directory: str, description: str, *, disk_full: bool = False) -> None:
        super().__init__(f"data directory {directory}: {description}")
        self.description = description
        self.disk_full = disk_full


class ConnectionFailed(PumphouseError):
    """The hub could not be reached, or the connection broke and could not be restored in time."""


class HubUntrusted(ConnectionFailed):
    """The hub's TLS certificate is not trusted. Pass its authority as `ca_file`."""


class ReaderEvicted(AmqpError):
    """The hub detached or refused this reader, because another reader has the partition.

    `epoch` is the epoch of the other reader, if the hub reports it. Retrying does not help; read
    with a higher epoch to take the partition back.
    """

    def __init__(self, condition: str, description: str, epoch: int | None = None) -> None:
        super().__init__(condition, description)
        self.epoch = epoch


class StoreError(PumphouseError):
    """A checkpoint store failed: it is missing, denies access, or did not respond.

    A later call may succeed only if the error is a `StoreUnavailable`.
    """


class StoreUnavailable(StoreError):
    """A checkpoint store timed out or is overloaded. A later call may succeed."""


class StoreMisused(PumphouseError, AssertionError):
    """A bug in the calling code: it tried to write a row that cannot follow the stored one.

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


class LeaseLost(OwnershipLost):
    """This host lost a partition that it had not given up. `on_error` is called with this error.

    `reason` is the reason of the log event `partition_lost`, `seconds` the time since the lease was
    last renewed. The next owner continues after the last checkpoint, so it handles later events
    again, perhaps while this host still handles its last batch.
    """

    def __init__(
        self,
        partition: str,
        held_epoch: int,
        owner: str = "",
        epoch: int = 0,
        *,
        reason: str,
        seconds: float,
        why: str,
    ) -> None:
        super().__init__(partition, held_epoch, owner, epoch)
        now = f" It is now owned by {owner} (epoch {epoch})." if owner else ""
        self.args = (
            f"partition {partition} was lost: {why}.{now} The next owner continues after the last "
            "checkpoint",
        )
        self.reason, self.seconds = reason, seconds


class HandlerStuck(PumphouseError):
    """A handler has not returned within `handler_timeout_s`.

    Its partition makes no progress; other partitions continue and the lease is renewed. Look for a
    call without a time-out in the handler. `on_handler_timeout` can cancel it or give the partition
    up.
    """

    def __init__(self, partition: str, seconds: float, sequence: int | None) -> None:
        super().__init__(
            f"the handler of partition {partition} has not returned for {seconds:.0f} s "
            + (
                "(it has no event)"
                if sequence is None
                else f"(its batch ends with event {sequence})"
            )
        )
        self.partition, self.seconds, self.sequence = partition, seconds, sequence


class PoisonEvent(PumphouseError):
    """The handler failed on this event in every attempt. `__cause__` is its last exception.

    `PoisonPolicy(then=...)` decides what happens next.
    """

    def __init__(self, partition: str, sequence: int | None, tried: int, then: str) -> None:
        super().__init__(
            f"event {sequence} of partition {partition} could not be handled "
            f"({tried} {'attempt' if tried == 1 else 'attempts'}); {then}"
        )
        self.partition, self.sequence, self.tried = partition, sequence, tried


class EventsExpired(PumphouseError):
    """Events after the checkpoint are gone: retention removed them, or the hub was re-created.

    `first` and `last` are the sequence numbers of the missing events, `count` is their number.
    `last` and `count` are None if the hub was re-created (`recreated`), because the number of
    events in the old hub is unknown. The option `on_expired` decides what happens next.
    """

    def __init__(
        self, partition: str, first: int, last: int | None, *, recreated: bool = False
    ) -> None:
        super().__init__(
            f"the hub was re-created: partition {partition} has lost its old events from {first} on"
            if recreated or last is None
            else f"events {first} to {last} of partition {partition} are gone ({last - first + 1} "
            "in all): retention removed them before they were handled"
        )
        self.partition, self.first, self.last, self.recreated = partition, first, last, recreated

    @property
    def count(self) -> int | None:
        return None if self.last is None else self.last - self.first + 1


class PermanentFailure(PumphouseError):
    """A host has stopped because of a permanent failure, which is the `__cause__`.

    The hub or consumer group was deleted, a key or token is no longer accepted, or the store is
    missing. Correct the cause, then start the host again.
    """

    def __init__(self, host: str, seconds: float, cause: Exception) -> None:
        super().__init__(
            f"{host} has stopped, because this failure has lasted for {seconds:.0f} s: {cause}"
        )
        self.__cause__ = cause


class CheckpointRefused(PumphouseError):
    """A checkpoint would move backwards, or a later owner of the partition has fenced it."""


class BadRecord(PumphouseError, ValueError):
    """A body is not a valid record. `reason` is one word, `found` describes the body."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(f"{reason}: {found}")
        self.reason, self.found = reason, found


class RecordsDamaged(PumphouseError):
    """The records of the homes pipeline cannot be read: the manifest or a file listed in it."""


class RecordsContended(PumphouseError):
    """Another process wrote to the same records. Only one pipeline may record into a folder."""
