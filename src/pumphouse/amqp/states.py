"""The state machines of AMQP 1.0, as tables.

Three machines run on one connection, one inside the other: a connection carries sessions, a
session carries links. The tables decide which performative may come next. They are the same for
both sides: an action is "send X" or "receive X".

* The connection (specification 2.4.6). Headers are exchanged, then opens, then closes. A peer may
  pipeline: send its header and its open before it has received ours. In a state with PIPE in its
  name we have sent more than we have received.
* The session (2.5.5). Begin and end, each answered once. DISCARDING means that we ended it with an
  error and drop the frames that still arrive.
* The link (2.6.3). Attach and detach, each answered once. A refused attach is an attach answered
  by an attach and an immediate detach; the specification has no shorter form.

The tables contain only the frames that change a state. Whether another frame is allowed in a state
(for example a transfer on a half attached link) is checked by the classes that use the tables.
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


def step(table: Table, kind: str, name: object, state: str, action: str) -> str:
    """The state after `action` of a connection, session or link.

    An illegal action raises LocalProtocolError if it is ours, else RemoteProtocolError.
    """
    after = table.get((state, action))
    if after is not None:
        return after
    shown = kind if name is None else f"{kind} {name!r}"
    message = f"{shown} in state {state} cannot {action}"
    if action.startswith("send "):
        raise LocalProtocolError(message)
    raise RemoteProtocolError(message, "amqp:illegal-state")
