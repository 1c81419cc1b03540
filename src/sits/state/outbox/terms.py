"""What an outbox may take, and what happens then."""

from __future__ import annotations

from typing import Literal

import msgspec


class Terms(msgspec.Struct, frozen=True):
    """Times are in seconds."""

    backlog: int = 10_000
    """Intents that may wait, parked ones among them. With more, writes are not taken; removals are, each of which makes room in
    the end. A node counts once a second: together nodes may pass it by what they write in one."""
    full: Literal["refuse", "wait"] = "refuse"
    """What a write does then: it is refused at once, or waits for room for `patience`, and is refused then."""
    patience: float = 2.0
    refused: Literal["undo", "park"] = "undo"
    """What is done with a record whose vector the index will never take: it is taken back, and that is recorded; or it stays,
    and the intent is parked until a person has looked at it."""
    tries: int = 5
    """After so many the intent is parked, whatever it was that failed. An index that is away does not count as a try."""
    batch: int = 100
    """Intents that are relayed at one go."""
    tick: float = 0.2
    """How often the relaying node looks for what other nodes wrote. What it wrote itself it sees at once."""
    lease: float = 10.0
    """How long a node that has died keeps others from relaying."""
    rest: float = 0.1
    """After a failure nothing is asked for so long, twice as long after the next one, `longest_rest` at the most."""
    longest_rest: float = 5.0
    sweep: float = 5.0
    """How often a page of records and vectors is compared, by the node that relays."""
    sweep_page: int = 500
    old: float = 60.0
    """An intent that has waited for so long is a fault, for the audit."""
