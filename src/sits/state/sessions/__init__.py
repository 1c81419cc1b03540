"""Sessions: a context that several nodes and clients change, kept as versioned deltas over the store.

sessions = Sessions("node-1", store, bus, await open_pending(data, "node-1", terms), wall=time.time, token=token)
await sessions.start()
session = await sessions.create("tenant", rules=[RuleRow("turns", "append")])
kept = await sessions.commit(ContextDelta(session.session_id, 1, {"turns": b'["..."]'}, id="7f3a"), "tenant")
"""

from __future__ import annotations

from sits.state.sessions.chain import Catchup
from sits.state.sessions.pending import PendingLog, open_pending
from sits.state.sessions.rules import Rule, RuleRow
from sits.state.sessions.sessions import Claim, Sessions, View
from sits.state.sessions.shapes import Committed, Conflict, ContextDelta, Delta, Gap, PathConflict
from sits.state.sessions.terms import Terms

__all__ = [
    "Catchup",
    "Claim",
    "Committed",
    "Conflict",
    "ContextDelta",
    "Delta",
    "Gap",
    "PathConflict",
    "PendingLog",
    "Rule",
    "RuleRow",
    "Sessions",
    "Terms",
    "View",
    "open_pending",
]
