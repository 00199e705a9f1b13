"""The state machines of AMQP 1.0, as tables.

Three machines are at work on one wire, each inside the other: a connection carries sessions, a
session carries links. Everything that decides which performative may come next lives in this file,
and this file does not know which side we are: an action is "send X" or "receive X", and the two
peers walk the same table with the words exchanged.

* The connection (specification 2.4.6). Headers are exchanged, then opens, then closes. A peer may
  pipeline: say its header and its open before it has heard ours. The states with PIPE in their
  name are those in which we have said more than we have heard.
* The session (2.5.5). Begin and end, each answered once. DISCARDING means that we ended it with an
  error and drop whatever still arrives.
* The link (2.6.3). Attach and detach, each answered once. A refused attach is an attach answered
  by attach and then at once by detach; the specification has no shorter way to say no.

A known weakness: the tables speak of the frames that move a machine, not of those allowed to pass
in a state (a transfer on a link that is only half attached, say). The classes that use the tables
answer that.
"""

from __future__ import annotations

from collections.abc import Mapping

from pumphouse.errors import LocalProtocolError, RemoteProtocolError

Table = Mapping[tuple[str, str], str]

CONNECTION: Table = {
    ("START", "send header"): "HDR_SENT",
    ("START", "receive header"): "HDR_RCVD",
    ("HDR_RCVD", "send header"): "HDR_EXCH",
    ("HDR_SENT", "receive header"): "HDR_EXCH",
    ("HDR_SENT", "send open"): "OPEN_PIPE",
    ("HDR_EXCH", "send open"): "OPEN_SENT",
    ("HDR_EXCH", "receive open"): "OPEN_RCVD",
    ("OPEN_PIPE", "receive header"): "OPEN_SENT",
    ("OPEN_PIPE", "send close"): "OC_PIPE",
    ("OC_PIPE", "receive header"): "CLOSE_PIPE",
    ("OPEN_SENT", "receive open"): "OPENED",
    ("OPEN_SENT", "send close"): "CLOSE_PIPE",
    ("OPEN_RCVD", "send open"): "OPENED",
    ("CLOSE_PIPE", "receive open"): "CLOSE_SENT",
    ("OPENED", "send close"): "CLOSE_SENT",
    ("OPENED", "receive close"): "CLOSE_RCVD",
    ("CLOSE_RCVD", "send close"): "END",
    ("CLOSE_SENT", "receive close"): "END",
}

SESSION: Table = {
    ("UNMAPPED", "send begin"): "BEGIN_SENT",
    ("UNMAPPED", "receive begin"): "BEGIN_RCVD",
    ("BEGIN_SENT", "receive begin"): "MAPPED",
    ("BEGIN_RCVD", "send begin"): "MAPPED",
    ("MAPPED", "send end"): "END_SENT",
    ("MAPPED", "receive end"): "END_RCVD",
    ("MAPPED", "send end with error"): "DISCARDING",
    ("END_RCVD", "send end"): "UNMAPPED",
    ("END_SENT", "receive end"): "UNMAPPED",
    ("DISCARDING", "receive end"): "UNMAPPED",
}

LINK: Table = {
    ("DETACHED", "send attach"): "ATTACH_SENT",
    ("DETACHED", "receive attach"): "ATTACH_RCVD",
    ("ATTACH_SENT", "receive attach"): "ATTACHED",
    ("ATTACH_RCVD", "send attach"): "ATTACHED",
    ("ATTACH_SENT", "send detach"): "DETACH_PIPE",
    ("DETACH_PIPE", "receive attach"): "DETACH_SENT",
    ("ATTACHED", "send detach"): "DETACH_SENT",
    ("ATTACHED", "receive detach"): "DETACH_RCVD",
    ("DETACH_RCVD", "send detach"): "DETACHED",
    ("DETACH_SENT", "receive detach"): "DETACHED",
}


def step(table: Table, name: str, state: str, action: str) -> str:
    """The state after `action`. An illegal one is blamed on whoever acted."""
    after = table.get((state, action))
    if after is not None:
        return after
    message = f"{name} in state {state} cannot {action}"
    if action.startswith("send "):
        raise LocalProtocolError(message)
    raise RemoteProtocolError(message, "amqp:illegal-state")
