"""What an outbox has done so far: plain counters that metrics read out."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct):
    written: int = 0
    removed: int = 0
    refused: int = 0
    """Writes that there was no room for."""
    upserted: int = 0
    """Vectors that were put into the index; one may be twice."""
    deleted: int = 0
    undone: int = 0
    """Records taken back since the index refused their vectors."""
    parked: int = 0
    healed: int = 0
    """Ids that the sweep found apart."""
    doubted: int = 0
    """Intents that another node had relayed meanwhile, and that were made anew."""
    failures: int = 0
    """Rounds that store or index did not answer."""
