"""The lease operation that must precede a write to a blob of the Event Processor Host.

The blob's lease shows that its owner is alive. A free lease is acquired, the holder renews it, and
another host takes it by changing it with the token in the body.

    Body, lease, requested row -> lease_step -> LeasedBlobs -> requests
                                  ^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Literal

from pumphouse.leases.model import RESUME, Ownership
from pumphouse.leases.stores.blob_lease.body import Body

Step = Literal[
    "acquire",  # the lease is free
    "renew",  # we hold it, with the same id
    "change",  # another host holds it; it loses the lease when we change the id
    "borrow",  # write under the owner's lease and leave the lease unchanged
    "release",  # write, then release the lease
    "stuck",  # another host holds it, and the body does not contain the token
]

# Error codes of a lease or blob that differs from our known state: download it and try again.
# Every other conflict means that the row is lost.
STALE_STATE_CODES = (
    "BlobAlreadyExists",
    "ConditionNotMet",
    "LeaseIdMissing",
    "LeaseLost",
    "LeaseNotPresentWithBlobOperation",
    "LeaseNotPresentWithLeaseOperation",
    "LeaseIsBrokenAndCannotBeRenewed",
)


def lease_step(body: Body, leased: bool, our_token: str, requested: Ownership) -> Step:
    """The operation before `requested` is written; `our_token` is our last lease id, or ""."""
    if leased and not body.lease_id:
        return "stuck"
    if not requested.owner:
        return "release"
    if is_nomination(body, requested) or is_request_to_resume(body, requested):
        return "borrow"  # a renewal would keep a dead owner alive
    if not leased:
        return "acquire"
    return "renew" if (our_token, requested.owner) == (body.token, body.owner) else "change"


def is_nomination(body: Body, requested: Ownership) -> bool:
    """Whether the write names a new successor, which an owner never does itself."""
    return (
        requested.owner == body.owner
        and bool(requested.successor)
        and requested.successor != body.successor
    )


def is_request_to_resume(body: Body, requested: Ownership) -> bool:
    """Whether an operator asks the owner to resume, which an owner never writes itself."""
    return requested.owner == body.owner and requested.state == RESUME
