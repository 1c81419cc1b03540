"""What is asked of the semantic cache, and which part of a request is compared by meaning.

Only the text of the last user turn is. All else of the request - system prompt, earlier turns, tools, sampling, images, format -
is compared to the letter: with the exact cache's partition (operation, models, policy scope, tenant) its fingerprint makes the
partition that vectors lie in, and no search leaves a partition.

Beside the text a query may carry facets, structured fields that are compared by rule rather than by meaning. Answers that were
made from documents (RAG) are the case in point: the same question over other sources, or over those of another day, is another
question.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from blake3 import blake3

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import Clause, Scalar
from sits.state.cache.fingerprint import Question, question
from sits.state.cache.semantic.reading import LONGEST, read

ASKED: frozenset[Operation] = frozenset(("chat", "responses", "messages"))
"""Operations that carry a conversation, whose last turn can be a question."""
THRESHOLD = b"x-sits-cache-threshold"


class Policy(msgspec.Struct, frozen=True):
    """What a route lets the semantic cache answer, beside what the exact cache's policy says."""

    threshold: float = 0.9
    """The least score of a hit; callers may ask for more, never for less."""
    candidates: int = 8
    """Neighbours that are looked at more closely."""
    floor: float = 0.8
    """The least cosine of a neighbour. Pairs that the guards let pass have 0.92 and more."""
    turns: int = 4
    """A conversation with more user turns is left alone: its earlier turns, which are compared to the letter, hardly ever meet
    again."""


_POLICY = Policy()


class Facet(msgspec.Struct, frozen=True):
    """A structured field. `within`: how far an entry's value may be from this one (a number then); None: equal."""

    name: str
    value: Scalar
    within: float | None = None


class Freshness(msgspec.Struct, frozen=True):
    """The semantic contract that an answer was made under: only entries of the same intent and grounding are compared."""

    intent: str = ""
    grounding: str = ""
    """What the answer may be based on: a corpus, a scope, a region."""
    max_age: float | None = None
    """Hours that what the answer is based on may be old."""


class Query(msgspec.Struct, frozen=True):
    """One question to the semantic cache."""

    text: str
    partition: str
    """Everything that has to be equal to the letter, as a digest."""
    facets: tuple[Facet, ...] = ()
    freshness: Freshness = Freshness()
    threshold: float | None = None
    """The caller's; what is below the policy's changes nothing."""

    @property
    def key(self) -> bytes:
        """What the query's answer is kept under: partition, text, facets and contract under one BLAKE3 key."""
        facets = sorted((facet.name, facet.value) for facet in self.facets)
        shape = (self.partition, read(self.text).plain, self.text, facets, self.freshness.intent, self.freshness.grounding)
        return blake3(b"semantic\n" + _encode(shape)).digest()

    @property
    def fields(self) -> dict[str, Scalar]:
        """The facets and the contract as fields of the index."""
        held: dict[str, Scalar] = {f"facet.{facet.name}": facet.value for facet in self.facets}
        return held | {"shape": self._shape(), "intent": self.freshness.intent, "grounding": self.freshness.grounding}

    def where(self, now: float) -> list[Clause]:
        """What an entry must meet beside being near."""
        fresh = self.freshness
        held = [Clause("expires", "gt", now), Clause("shape", "eq", self._shape())]
        held += [Clause("intent", "eq", fresh.intent), Clause("grounding", "eq", fresh.grounding)]
        if fresh.max_age is not None:
            held.append(Clause("made", "ge", now - 3600 * fresh.max_age))
        for facet in self.facets:
            held += _clauses(facet)
        return held

    def _shape(self) -> str:
        """Which facets there are: a question with a source is never compared to one without."""
        return "\n".join(sorted(facet.name for facet in self.facets))


def sources(names: Iterable[str]) -> Facet:
    """The documents that an answer is made from, in any order, each with its version: all the same, or no hit."""
    return Facet("sources", blake3(_encode(sorted(set(names)))).hexdigest())


def bucket(moment: float, seconds: float) -> Facet:
    """The stretch of time that a question is about: an answer of another stretch is no hit."""
    return Facet("time", int(moment // seconds))


def threshold(header: bytes | None) -> float | None:
    """The threshold that a caller asks for in a header.

    Raises:
        SitsError: `invalid_request`, it is no number from 0 to 1.
    """
    if header is None:
        return None
    try:
        value = float(header)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        said = header[:40].decode("utf-8", "replace")
        message = f"{THRESHOLD.decode()}: {said!r} is no number from 0 to 1"
        raise SitsError(Code.INVALID_REQUEST, message, param=THRESHOLD.decode())
    return value


class Turn(msgspec.Struct, frozen=True):
    """A request taken apart: the question, and the exact cache's view of all the rest."""

    text: str
    rest: Question

    @property
    def partition(self) -> str:
        """For `Query.partition`."""
        return self.rest.fingerprint.hex()


def turn(partition: bytes, operation: Operation, body: bytes, policy: Policy = _POLICY) -> Turn | None:
    """Take a request apart; None for one whose last turn is no question in text, too long for one, or that has too
    many turns before it.

    `partition` is the exact cache's, with tenant and policy scope in it. Whether the rest lets a cache answer (`rules.bypass`)
    is for the caller to ask with `Turn.rest`.
    """
    if operation not in ASKED:
        return None
    try:
        fields = _decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    place = "input" if operation == "responses" else "messages"
    held = fields.get(place)
    text, turns = "", 1
    if isinstance(held, str):
        text, fields[place] = held, _ASKED_HERE
    elif isinstance(held, list) and held and isinstance(held[-1], dict) and held[-1].get("role") == "user":
        last = dict(held[-1])
        text, last["content"] = _taken(last.get("content"))
        turns = sum(isinstance(one, dict) and one.get("role") == "user" for one in held)
        fields[place] = [*held[:-1], last]
    if not text.strip() or len(text) > LONGEST or turns > policy.turns:
        return None
    rest = question(partition, _encode_json(fields))
    return None if rest is None or rest.kept else Turn(text, rest)


_ASKED_HERE: dict[str, bool] = {"asked": True}
"""Stands where the question was; no client can send it as text."""
_TEXT = frozenset(("text", "input_text"))
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _taken(content: Any) -> tuple[str, Any]:
    """The text of a turn, and the turn without it. What else is in it (images, files) stays, in its place."""
    if isinstance(content, str):
        return content, _ASKED_HERE
    if not isinstance(content, list):
        return "", content
    texts, rest = [], []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "tool_result":
            return "", content
        if isinstance(part, dict) and part.get("type") in _TEXT and isinstance(part.get("text"), str):
            texts.append(part["text"])
            rest.append(part | {"text": _ASKED_HERE})
        else:
            rest.append(part)
    return "\n".join(texts), rest


def _clauses(facet: Facet) -> list[Clause]:
    name = f"facet.{facet.name}"
    if facet.within is None:
        return [Clause(name, "eq", facet.value)]
    if isinstance(facet.value, str | bool):
        raise SitsError(Code.INVALID_REQUEST, f"facet {facet.name!r} has a distance but no number", param=facet.name)
    return [Clause(name, "ge", facet.value - facet.within), Clause(name, "le", facet.value + facet.within)]
