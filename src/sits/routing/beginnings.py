"""How prompts begin, and who has read such a beginning before.

A model server keeps the attention state of what it has read (prefix caching: Kwon et al., vLLM, SOSP 2023; Zheng et al., SGLang,
2024), so that a prompt that begins like one before is answered sooner by who has read that one. What each has been sent is
remembered here by digests of how bodies begin, each of them made from the one before and the next block, so that one digest
stands for all bytes up to its end. Nothing of a body is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from zlib import crc32

from sits.routing.reports import Journal

EDGES = (
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152, 65_536,
)  # fmt: skip
"""Bytes of a body up to which there is a digest. Beyond, a prompt is taken to go on as it began: so little is spent on any."""
SHORTEST = EDGES[0]
"""Bytes that a body must have to be remembered."""
REMEMBERED = 32_768
"""Digests that are remembered when not said otherwise: 160 bytes each."""
_BLOCKS = tuple((start, edge, edge << 32) for start, edge in pairwise((0, *EDGES)))
MOST_BITS = 4096
"""Names that a memory tells apart before it begins anew."""


def beginnings(body: bytes, team: str = "") -> list[int]:
    """A digest of the body up to each of the `EDGES` that it reaches: a checksum and the edge. The same body of another team has
    others, so that nobody can tell by who answers what another team has sent.

    Two that are taken for one send a request where it need not go, and no more; of 30,000 that are remembered, one in 100,000 is.
    Checksums go on from the one before, and read bytes where they are.
    """
    size, checksum = len(body), crc32(team.encode()) if team else 0
    view = memoryview(body)
    found: list[int] = []
    for start, edge, mark in _BLOCKS:
        if edge > size:
            break
        checksum = crc32(view[start:edge], checksum)
        found.append(mark | checksum)
    return found


class Beginnings:
    """Who has read which beginnings, as bits; what was not used for longest is forgotten.

    Two tables take turns: what is used is in the young one, and when that is half of all, it becomes the old one. So nothing is
    moved or searched for to forget something.
    """

    __slots__ = ("_bits", "_half", "_old", "_young", "generation", "journal")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._half: int = max(1, remembered // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._bits: dict[str, int] = {}
        self.generation: int = 0
        """How often it has begun anew: whoever holds bits of an earlier generation has them given anew (`bits`)."""
        self.journal: Journal | None = None
        """Where it is written down for the other processes of this service, if there are any."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def bit(self, name: str) -> int:
        """The bit of a backend, the same whatever the configuration is, for this generation."""
        found = self._bits.get(name)
        if found is None:
            if len(self._bits) >= MOST_BITS:
                self._anew()
            found = self._bits[name] = 1 << len(self._bits)
        return found

    def bits(self, names: Sequence[str]) -> list[int]:
        """Those of several, all of one generation and so all different."""
        bits = self._bits
        new = len({name for name in names if name not in bits})
        if new and len(bits) + new > MOST_BITS:
            self._anew()
        return [bits.setdefault(name, 1 << len(bits)) for name in names]

    def told(self, name: str) -> int:
        """The bit of a backend that has been sent anything; 0 of any other one, which so is given none for being looked at."""
        return self._bits.get(name, 0)

    def _anew(self) -> None:
        self._bits.clear()
        self._young.clear()
        self._old.clear()
        self.generation += 1

    def keep(self, remembered: int) -> None:
        """Remember so many from now on."""
        self._half = max(1, remembered // 2)

    def who(self, digest: int) -> int:
        """The bits of those who have read it."""
        found = self._young.get(digest)
        return found if found is not None else self._old.get(digest, 0)

    def learn(self, digest: int, bit: int) -> bool:
        """It is being read by this one, too; whether that one had read it before."""
        young = self._young
        known = young.get(digest)
        if known is not None:
            if known & bit:
                return True
            young[digest] = known | bit
            return False
        if len(young) >= self._half:
            self._old = young
            young = self._young = {}
        known = self._old.get(digest, 0)
        young[digest] = known | bit
        return known & bit != 0

    def hear(self, name: str, digests: Sequence[int]) -> None:
        """Another process of this service has sent a prompt that begins so to this one."""
        bit = self.bit(name)
        for digest in digests:
            self.learn(digest, bit)

    def of(self, body: bytes, team: str = "") -> Reading | None:
        """What is known of a prompt of a team; None of one that is too short to matter."""
        return Reading(len(body), beginnings(body, team), self) if len(body) >= SHORTEST else None


class Reading:
    """A prompt to be read, in bytes of its body, and how much of it each backend has read before."""

    __slots__ = ("_digests", "_memory", "_told", "size")

    def __init__(
        self,
        size: int,
        digests: Sequence[int] = (),
        memory: Beginnings | None = None,
        told: Mapping[str, float] | None = None,
    ) -> None:
        """By digests and a memory of them; or as it is told, by name: a decision that is made again."""
        self.size: float = float(size)
        self._digests: Sequence[int] = digests
        self._memory: Beginnings | None = memory
        self._told: Mapping[str, float] | None = told

    def warm(self, names: Sequence[str]) -> list[float]:
        """Bytes that each has read before."""
        told, memory = self._told, self._memory
        if told is not None:
            return [told.get(name, 0.0) for name in names]
        found = [0.0] * len(names)
        if memory is None:
            return found
        known = -1
        edge = 0
        size = self.size
        for index, digest in enumerate(self._digests):
            still = known & memory.who(digest)
            if still != known:
                if known > 0 and edge:
                    _mark(found, names, memory, known & ~still, float(edge))
                known = still
                if not still:
                    return found
            edge = EDGES[index]
        if known > 0 and edge:
            _mark(found, names, memory, known, size if edge == EDGES[len(EDGES) - 1] else float(edge))
        return found

    def sent(self, name: str) -> float:
        """It is being sent to this one, who will have read it; how many bytes of it that one had read before."""
        told, memory = self._told, self._memory
        if told is not None:
            return told.get(name, 0.0)
        if memory is None:
            return 0.0
        bit = memory.bit(name)
        edge = 0
        warm = True
        for index, digest in enumerate(self._digests):
            if not memory.learn(digest, bit):
                warm = False
            elif warm:
                edge = EDGES[index]
        if not warm and memory.journal is not None:
            memory.journal.read(name, self._digests)
        return self.size if edge == EDGES[len(EDGES) - 1] else float(edge)


def _mark(found: list[float], names: Sequence[str], memory: Beginnings, those: int, edge: float) -> None:
    for index, name in enumerate(names):
        if memory.told(name) & those:
            found[index] = edge
