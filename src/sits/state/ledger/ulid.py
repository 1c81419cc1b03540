"""Names that sort by the time they were made (ULID, github.com/ulid/spec)."""

from __future__ import annotations

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26


def ulid(seconds: float, entropy: bytes) -> str:
    """26 characters: 48 bits of milliseconds, 80 bits of `entropy` (10 bytes)."""
    number = (round(seconds * 1000) & (1 << 48) - 1) << 80 | int.from_bytes(entropy[:10])
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))
