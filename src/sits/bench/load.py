"""What a round of load found, whoever made the load."""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, frozen=True):
    """Times in milliseconds as the client saw them."""

    requests: int
    """Complete answers."""
    seconds: float
    p50: float
    p99: float
    bytes_read: int
    refused: int = 0
    """Answers that were not 2xx."""
    broken: int = 0
    """Connections that failed, broke or timed out."""
    first_p50: float | None = None
    """Until the first byte of the body, where the client looks."""
    first_p99: float | None = None
    jitter_p99: float | None = None
    """How far the gaps between the events of a stream are from the upstream's pace."""

    @property
    def void(self) -> str | None:
        """Why the round does not count; None when every answer was good."""
        if self.refused or self.broken:
            return f"{self.refused} answers not 2xx, {self.broken} connections broken"
        return None if self.requests else "no answer was complete"


class Ask(msgspec.Struct, frozen=True):
    """What the load sends, how often, and to whom."""

    url: str
    """Of the gateway, without a path."""
    path: str
    body: bytes
    headers: dict[str, str]
    connections: int
    seconds: float
    stream: bool = False


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that `share` of the sorted list does not exceed; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
