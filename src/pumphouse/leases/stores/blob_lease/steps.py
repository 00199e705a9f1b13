"""Which lease must be held before a row of the Event Processor Host may be written, and how?

The blob's lease is the liveness of its owner: it is acquired where nobody holds it, renewed by its
holder, and taken from another by changing it with the token that the body shows.

    Body, lease, wanted row -> lease_step -> BlobLeaseStore -> requests
                               ^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Literal

from pumphouse.leases.model import Ownership
from pumphouse.leases.stores.blob_lease.body import Body

Step = Literal[
    "acquire",  # nobody holds it
    "renew",  # it is ours, by the same lease
    "change",  # it is somebody's; whoever knows only the old id has then lost it
    "borrow",  # write under the owner's lease and leave it as it is
    "release",  # write, then give the lease back
    "stuck",  # it is held by somebody who does not show the token
]

# The lease was not as we thought; a look at it will tell. Everything else has been lost for good.
STALE_STATE_CODES = (
    "BlobAlreadyExists",
    "ConditionNotMet",
    "LeaseIdMissing",
    "LeaseLost",
    "LeaseNotPresentWithBlobOperation",
    "LeaseNotPresentWithLeaseOperation",
    "LeaseIsBrokenAndCannotBeRenewed",
)


def lease_step(body: Body, leased: bool, our_token: str, wanted: Ownership) -> Step:
    """`our_token` is the id of the lease that we have made last, if any."""
    if leased and not body.token:
        return "stuck"
    if not wanted.owner:
        return "release"
    if asks_for_it(body, wanted):
        return "borrow"  # to renew it would keep a dead owner alive
    if not leased:
        return "acquire"
    return "renew" if (our_token, wanted.owner) == (body.token, body.owner) else "change"


def asks_for_it(body: Body, wanted: Ownership) -> bool:
    """Whether the write is a nomination: the owner itself never names a new successor."""
    return (
        wanted.owner == body.owner and bool(wanted.successor) and wanted.successor != body.successor
    )
