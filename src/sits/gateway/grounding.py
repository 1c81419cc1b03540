"""What an answer is made from, as the client says it: the documents, the time and the subject of a retrieval (RAG).

The same words over other documents, or those of another day, are another question. So these fields are part of what is
compared to the letter, for the exact and for the semantic cache; each document can be purged by its name.
"""

from __future__ import annotations

import msgspec

from sits.inner.errors import Code, SitsError

SOURCES, TIME, DOMAIN = b"x-sits-cache-sources", b"x-sits-cache-time", b"x-sits-cache-domain"
MOST_SOURCES = 12
"""With the tags that every answer has, as many as an answer can be purged by."""
LONGEST = 4096


class Grounding(msgspec.Struct, frozen=True, gc=False):
    """`words` is what has to be equal; `sources` are the names of the documents, without their versions."""

    words: bytes
    sources: tuple[str, ...]


NOWHERE = Grounding(b"", ())


def grounding(headers: dict[bytes, bytes]) -> Grounding:
    """What the headers say: `x-sits-cache-sources: handbook@3, prices@2026-11-29`, in any order; `x-sits-cache-time` and
    `x-sits-cache-domain` are words of the client's own.

    Raises:
        SitsError: `invalid_request`, too much of it.
    """
    said, time, domain = headers.get(SOURCES), headers.get(TIME), headers.get(DOMAIN)
    if said is None and time is None and domain is None:
        return NOWHERE
    parts = sorted({part.strip() for part in (said or b"").split(b",")} - {b""})
    if len(parts) > MOST_SOURCES or sum(map(len, parts)) + len(time or b"") + len(domain or b"") > LONGEST:
        message = f"an answer can be made from {MOST_SOURCES} sources at the most, named in {LONGEST} bytes"
        raise SitsError(Code.INVALID_REQUEST, message, param=SOURCES.decode())
    words = b"\n".join((b",".join(parts), (time or b"").strip(), (domain or b"").strip()))
    names = dict.fromkeys(part.rpartition(b"@")[0] or part for part in parts)
    return Grounding(words, tuple(name.decode("utf-8", "replace") for name in names))
