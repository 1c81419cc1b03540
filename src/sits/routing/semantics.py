"""Holding requests against the semantic contracts of models: which clause a call would break."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from urllib.parse import unquote

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.semantics import EmbeddingClause, GroundingClause, SemanticSpec
from sits.routing.scheduling.base import Candidate, Facts, Filter

SCOPE, TIME, EMBEDDING = b"x-sits-grounding-scope", b"x-sits-grounding-time", b"x-sits-embedding"
HEADERS = (SCOPE, TIME, EMBEDDING)
"""What a request says of its grounds."""
LONGEST = 4096
AHEAD = 300.0
"""Seconds that the clock of a client may be ahead of ours."""
DAY_AHEAD = 14 * 3600.0 + AHEAD
"""A date is the day of whoever says it, and in Kiribati (UTC+14) it begins so long before that of UTC."""
_EMBEDDING = re.compile(r"(?P<model>[^@/\s][^@\s]*?)?(?:@(?P<version>[^@/\s]+))?(?:/(?P<dimension>[0-9]{1,6}))?")
"""A name of a model may have slashes in it (`BAAI/bge-m3`); digits behind the last one are a dimension."""


class Grounds(msgspec.Struct, frozen=True):
    """What a request says of its grounds."""

    scopes: frozenset[str] = frozenset()
    oldest: float | None = None
    """Unix seconds of the oldest document."""
    model: str = ""
    version: str = ""
    dimension: int = 0


NOTHING = Grounds()


class _Body(msgspec.Struct):
    dimensions: int | None = None


def grounds(facts: Facts) -> Grounds:
    """What the headers (and `dimensions` of an embedding request) say.

    Raises:
        SitsError: `invalid_request`, with the header named.
    """
    headers = facts.headers
    scope, time, embedding = headers.get(SCOPE), headers.get(TIME), headers.get(EMBEDDING)
    dimension = 0
    if facts.operation == "embeddings" and b'"dimensions"' in facts.body:
        dimension = _dimensions(facts.body)
    if scope is None and time is None and embedding is None:
        return Grounds(dimension=dimension) if dimension else NOTHING
    for name, said in ((SCOPE, scope), (TIME, time), (EMBEDDING, embedding)):
        if said is not None and len(said) > LONGEST:
            raise _bad(name, f"has more than {LONGEST} bytes")
    model, version, size = _embedding(embedding)
    return Grounds(_scopes(scope), _oldest(time, facts.wall), model, version, dimension or size)


def _dimensions(body: bytes) -> int:
    """What an embedding request says of them; one that says nonsense is for the model server to refuse."""
    try:
        return max(0, msgspec.json.decode(body, type=_Body).dimensions or 0)
    except msgspec.MsgspecError:
        return 0


def _scopes(said: bytes | None) -> frozenset[str]:
    """A list of names: as they are, or percent-encoded, for clients that can write nothing but ASCII into a header."""
    if said is None:
        return frozenset()
    parts = said.decode("utf-8", "replace").split(",")
    return frozenset(unquote(part.strip(), errors="replace") for part in parts if part.strip())


def _embedding(said: bytes | None) -> tuple[str, str, int]:
    if said is None:
        return "", "", 0
    found = _EMBEDDING.fullmatch(said.decode("utf-8", "replace").strip())
    if found is None:
        raise _bad(EMBEDDING, "is not MODEL@VERSION/DIMENSION")
    return found["model"] or "", found["version"] or "", int(found["dimension"] or 0)


def _oldest(said: bytes | None, wall: float) -> float | None:
    """The oldest of the times; `wall` is now, 0.0 where nobody says.

    Raises:
        SitsError: `invalid_request`: they are none, or one has not come yet and so is the time of no document.
    """
    if said is None:
        return None
    try:
        parts = [part.strip() for part in said.decode("ascii").split(",") if part.strip()]
        times = [_moment(part) for part in parts]
        oldest = min(times)
    except (ValueError, OverflowError) as error:
        raise _bad(TIME, "is no list of RFC 3339 times or dates") from error
    for part, time in zip(parts, times, strict=True):
        if wall and time - wall > (DAY_AHEAD if _is_date(part) else AHEAD):
            raise _bad(TIME, f"({part[:40]}) is in the future: no document is from then, and grounding.maxAgeHours goes by it")
    return oldest


def _moment(said: str) -> float:
    time = datetime.fromisoformat(said)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _is_date(said: str) -> bool:
    try:
        date.fromisoformat(said)
    except ValueError:
        return False
    return True


def _bad(header: bytes, why: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"{header.decode()} {why}", param=header.decode())


def broken(spec: SemanticSpec, said: Grounds, domain: str, wall: float) -> str:
    """The clause that a call would break and how, or nothing."""
    if spec.intents and domain and domain not in spec.intents:
        return f"breaks its contract: intents: it answers for {', '.join(spec.intents)}, not for {domain}"
    if spec.grounding is not None and (why := _ungrounded(spec.grounding, said, wall)):
        return f"breaks its contract: grounding.{why}"
    if spec.embedding is not None and (why := _other_vectors(spec.embedding, said)):
        return f"breaks its contract: embedding.{why}"
    return ""


def _ungrounded(clause: GroundingClause, said: Grounds, wall: float) -> str:
    if clause.scopes:
        if not said.scopes:
            return f"scopes: the request does not say its scope ({SCOPE.decode()})" if clause.required else ""
        beyond = sorted(said.scopes - set(clause.scopes))
        if beyond:
            return f"scopes: {', '.join(beyond)} is not among {', '.join(clause.scopes)}"
    if clause.max_age_hours is not None:
        if said.oldest is None:
            return f"maxAgeHours: the request does not say how old its documents are ({TIME.decode()})" if clause.required else ""
        hours = (wall - said.oldest) / 3600.0
        if hours > clause.max_age_hours:
            return f"maxAgeHours: documents are {hours:.1f} hours old, {clause.max_age_hours:g} are allowed"
    return ""


def _other_vectors(clause: EmbeddingClause, said: Grounds) -> str:
    if said.model and said.model != clause.model:
        return f"model: {said.model}, not {clause.model}"
    if said.version and clause.version is not None and said.version != clause.version:
        return f"version: {said.version}, not {clause.version}"
    if said.dimension and clause.dimension is not None and said.dimension != clause.dimension:
        return f"dimension: {said.dimension}, not {clause.dimension}"
    return ""


class SemanticFilter(Filter):
    """Leaves out models whose contract the request would break."""

    name = "contract"

    def __init__(self, specs: Mapping[str, SemanticSpec]) -> None:
        self._specs = specs
        """Of the candidates that have one, by name."""
        self._said: Grounds = NOTHING

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> SemanticFilter | None:
        """For candidates of which one has a contract at least."""
        specs = {one.name: one.model.spec.semantics for one in candidates if one.model.spec.semantics is not None}
        return cls(specs) if specs else None

    def asks(self, facts: Facts) -> bool:
        """Reads what the request says of its grounds.

        Raises:
            SitsError: `invalid_request`, as `grounds`.
        """
        self._said = grounds(facts)
        return True

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        spec = self._specs.get(candidate.name)
        return "" if spec is None else broken(spec, self._said, facts.domain, facts.wall)
