"""What a model is said to be good at, and what of it can be asked: the resource read once, without I/O.

The text is the description and after it the subjects: `domains`, and those labels that say what a model is for. Names, families,
sizes and owners say nothing of abilities and are left out, so that a family's coder is not taken for its translator. Capabilities
(`tools`, `vision` ...) are no matter of likeness: what a request needs of them is compared as sets, when it comes.
"""

from __future__ import annotations

import re

import msgspec

from sits.resilience.substitutes.named import Direction, directions, programs
from sits.resources.kinds import Model

SUBJECTS = ("task", "skill", "domain", "subject", "language", "languages", "use-case")
"""Labels that say what a model is for."""
LONGEST = 2000
"""Characters of a text that count; the embedder reads about so many."""
MOST_CLAIMS = 16
OPERATIONS = frozenset(("chat", "completions", "embeddings"))
"""Capabilities that are endpoints: without one in common two models are asked for different things."""


class Card(msgspec.Struct, frozen=True):
    """One model."""

    name: str
    text: str
    """The description; the subjects where there is none."""
    whole: str
    """The description and the subjects."""
    claims: tuple[str, ...] = ()
    """The parts of a description that says several things."""
    directions: frozenset[Direction] = frozenset()
    programs: frozenset[str] = frozenset()
    operations: frozenset[str] = OPERATIONS

    @property
    def texts(self) -> tuple[str, ...]:
        """All that has to be embedded of it."""
        return (self.whole, self.text, *self.claims)

    def covered_by(self, other: Card) -> bool:
        """Whether the other one can be asked for the same, as far as names and endpoints tell."""
        if not self.operations & other.operations or (not self.directions and other.directions):
            return False
        if not self.directions <= other.directions:
            return False
        # A card that names no language may be good at any.
        return not (self.programs and other.programs) or self.programs <= other.programs


def card(model: Model, capabilities: frozenset[str]) -> Card | None:
    """The card of a model that can do these things; None where nothing is said of what it is good at."""
    spec, labels = model.spec, model.metadata.labels
    subjects = [*spec.domains, *(labels[key] for key in SUBJECTS if key in labels)]
    return described(model.metadata.name, spec.description or "", subjects, capabilities & OPERATIONS)


def described(name: str, description: str, subjects: list[str], operations: frozenset[str] = OPERATIONS) -> Card | None:
    """A card of a description and subjects; None where both are empty."""
    text = " ".join(description.split())[:LONGEST]
    listed = ", ".join(dict.fromkeys(subject.strip() for subject in subjects if subject.strip()))[:LONGEST]
    whole = f"{text} {listed}".strip()
    if not whole:
        return None
    return Card(name, text or listed, whole, claims(text), directions(whole), programs(whole), operations)


_SENTENCE = re.compile(r"[.;:!?]\s+|[.;:!?]$|[。；：！？]")
_AND = re.compile(r",?\s+and\s+")
_JOINED = re.compile("，|并且|以及|并(?=[\u4e00-\u9fff])|和|与|及")
_VERB = re.compile(r"[A-Za-z]+s\b")
_CHINESE = re.compile("[\u4e00-\u9fff]")


def claims(text: str) -> tuple[str, ...]:
    """The parts of a description that each say something: sentences, and what `and` joins; none where it says one thing.

    A part that is a noun gets the verb of the one before: "Writes tests and documentation" says "Writes documentation", too.
    """
    found: list[str] = []
    for sentence in _SENTENCE.split(text):
        part = sentence.strip()
        if _CHINESE.search(part):
            found += [piece.strip() for piece in _JOINED.split(part) if len(piece.strip()) > 1]
        elif part:
            found += _english(part)
    return tuple(found[:MOST_CLAIMS]) if len(found) > 1 else ()


def _english(sentence: str) -> list[str]:
    first, *others = [piece.strip() for piece in _AND.split(sentence) if piece.strip()] or [""]
    verb = _VERB.match(first)
    return [first, *(piece if verb is None or _VERB.match(piece) else f"{verb[0]} {piece}" for piece in others)]
