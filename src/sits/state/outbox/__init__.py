"""Safe double writes: a record in the store and its vector in an index are never apart for good.

    outbox = Outbox(store, vectors, "notes", 384, owner=process_id)
    await outbox.start()
    await outbox.write("team-7", Item("7f3a", vector, {"language": "zh"}), Put("notes/7f3a", b"..."))
    await outbox.remove("team-7", "7f3a")
    await outbox.aclose()

How it works, and what is seen in between, is in `outbox.py`. `audit` proves that both agree, `repair` mends what does not.
"""

from __future__ import annotations

from sits.state.outbox.audit import Audit, audit, audit_all
from sits.state.outbox.outbox import Outbox
from sits.state.outbox.repair import Repair, repair
from sits.state.outbox.tally import Tally
from sits.state.outbox.terms import Terms

__all__ = ["Audit", "Outbox", "Repair", "Tally", "Terms", "audit", "audit_all", "repair"]
