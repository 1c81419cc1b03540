"""What of a request is in its row, and what is not: headers that nobody looked at or that carry credentials, the rest of a long
one, what the redaction of the file has masked.

A rule whose outcome depends on such a thing is undecidable on another route. On the route as it was the record says which rule
counted: then what is not known is taken to be as that rule wants it, and all else is decided by the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from sits.observe.trace_row import MASKED, Row
from sits.observe.trace_sample import CUT, headers_looked_at
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import Match
from sits.resources.kinds import Model, Route
from sits.routing.matching import Matcher, Rule
from sits.routing.plan import Choice
from sits.routing.scheduling.base import Facts
from sits.routing.semantics import HEADERS as GROUNDS
from sits.routing.semantics import LONGEST

NEVER = "which was not recorded"
BEGINNING = "of which only the beginning was recorded"
HIDDEN = "which was masked in the record"
REPLACED = "\ufffd"
KEPT_ONCE = 1024


class Known:
    """Of the requests of one recorded route."""

    def __init__(self, route: Route | None, more: Iterable[str]) -> None:
        self._looked_at = frozenset(name.decode() for name in headers_looked_at(route, more))

    def headers(self, row: Row) -> dict[bytes, bytes]:
        """Those of the request; of one that is not whole the beginning, and then something that nobody asks for."""
        found = {}
        for name, value in row.asked.headers.items():
            if MASKED in value or _cut(row, name, value):
                value = value.partition(MASKED)[0].partition(REPLACED)[0] + CUT
            found[name.encode()] = value.encode()
        return found

    def lacks(self, row: Row, header: str) -> str:
        """Why not all of a header is known; empty where it is, or where it is known that there was none."""
        name = header.lower()
        value = row.asked.headers.get(name)
        if value is None:
            return "" if name in self._looked_at else NEVER
        return HIDDEN if MASKED in value else BEGINNING if _cut(row, name, value) else ""

    def reads(self, row: Row, name: str, settings: Sequence[str], models: Sequence[Model]) -> str:
        """Why a filter or score, of which `settings` name the headers, cannot be asked of this request; empty where it can."""
        asked = row.asked
        if name == "contract":
            return self._contract(row, models)
        if name in ("zone", "adapter") and MASKED in (asked.region if name == "zone" else asked.adapter):
            return f"the {'region' if name == 'zone' else 'adapter'}, {HIDDEN}"
        for header in settings:
            why = self.lacks(row, header)
            if why:
                return f"header {header}, {why}"
        return ""

    def _contract(self, row: Row, models: Sequence[Model]) -> str:
        specs = [model.spec.semantics for model in models if model.spec.semantics is not None]
        if not row.asked.domain and any(spec.intents for spec in specs):
            return f"the domain, {NEVER}"
        for header in (name.decode() for name in GROUNDS):
            why = self.lacks(row, header)
            # Of one that is too long it is enough to know that.
            if why and len(row.asked.headers.get(header, "").encode()) < LONGEST:
                return f"header {header}, {why}"
        sized = any(spec.embedding is not None and spec.embedding.dimension is not None for spec in specs)
        if sized and row.asked.operation == "embeddings" and row.asked.dimensions < 0 and row.body is None:
            return f"the dimension, {NEVER}"
        return ""


def _cut(row: Row, name: str, value: str) -> bool:
    """Whether it is but the beginning of a header. Older traces kept 1,024 bytes without a word, and put a sign in the place of
    what is no text."""
    if name in row.asked.cut or REPLACED in value:
        return True
    return KEPT_ONCE - 4 < len(value.encode()) <= KEPT_ONCE


def unknown_rule(known: Known, choice: Choice, facts: Facts, row: Row) -> tuple[str, Match | None]:
    """What a rule of another route asks that nobody knows, where it is up to that, and the match that counts otherwise."""
    assert choice.route is not None
    for (rule, _), declared in zip(choice.rules, choice.route.spec.rules, strict=True):
        if rule.watch is not None and not rule.watch.holds(facts.now):
            continue
        for match in matches_of(declared):
            lacks = dict(_lacks(known, match, facts, row, gathered=False))
            if not Matcher(_without(match, lacks)).matches(facts):
                continue
            if lacks:
                return f"rule {rule.name} asks for {_told(lacks)}", None
            return "", match
    return "", None


def recall_rule(known: Known, choice: Choice, facts: Facts, row: Row, counted: str | None) -> str:
    """Have the rule of that name count again, of a route that is as it was: what of the request is not known is made to be as it
    wants it. Empty `counted`: none did; None: nobody knows. Why that cannot be, if it cannot."""
    assert choice.route is not None
    asked, blocked = [], ""
    for (rule, _), declared in zip(choice.rules, choice.route.spec.rules, strict=True):
        for match in matches_of(declared):
            lacks = dict(_lacks(known, match, facts, row, gathered=True))
            if lacks and Matcher(_without(match, lacks)).matches(facts):
                blocked = blocked or f"rule {rule.name} asks for {_told(lacks)}"
                if rule.name == counted:
                    asked.append((match, lacks))
    if not blocked or counted == "":
        return ""  # What is not whole is none that somebody asks for.
    if counted is None:
        return blocked
    before = dict(facts.headers), facts.region, facts.adapter
    if _counts(choice, facts) == counted:
        return ""
    for match, lacks in asked:
        facts.headers = {**before[0], **dict(_wanted(match, lacks, before[0]))}
        facts.region = match.region[0] if "region" in lacks else before[1]
        facts.adapter = match.adapter[0] if "adapter" in lacks else before[2]
        if _counts(choice, facts) == counted:
            return ""
    facts.headers, facts.region, facts.adapter = before
    return blocked


def _counts(choice: Choice, facts: Facts) -> str:
    rules: Iterable[Rule] = (rule for rule, _ in choice.rules)
    return next((rule.name for rule in rules if rule.counts(facts)), "")


def _wanted(match: Match, lacks: dict[str, str], had: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Headers as a match wants them: where it asks for the beginning only, with something behind that nobody asks for."""
    for name, value in match.headers.items():
        if f"header {name}" in lacks:
            key, text = name.lower().encode(), value.encode()
            begun = had.get(key, b"")
            if text.endswith(b"*"):
                text = begun if begun.startswith(text[:-1]) else text[:-1] + CUT.encode()
            yield key, text


def _lacks(known: Known, match: Match, facts: Facts, row: Row, *, gathered: bool) -> Iterator[tuple[str, str]]:
    """What a match asks that nobody knows of this request, and why. Where that was `gathered` for these rules, nothing is missing
    of what is not there: nobody had read a domain, say."""
    if not gathered:
        if match.domain and not facts.domain:
            yield "domain", NEVER
        if match.complexity and not facts.tier:
            yield "complexity", NEVER
        if match.prompt_tokens is not None and not facts.tokens:
            yield "prompt_tokens", NEVER
    if match.region and MASKED in row.asked.region:
        yield "region", HIDDEN
    if match.adapter and MASKED in row.asked.adapter:
        yield "adapter", HIDDEN
    for name, value in match.headers.items():
        why = known.lacks(row, name) or (HIDDEN if MASKED in value else "")
        if why and _open(facts.headers.get(name.lower().encode()), value.encode(), why):
            yield f"header {name}", why


def _open(said: bytes | None, wanted: bytes, why: str) -> bool:
    """Whether it is not clear from its beginning whether a header is as it is wanted."""
    if said is None or why == HIDDEN:
        return True
    begun = said.removesuffix(CUT.encode())
    if wanted.endswith(b"*"):
        return not begun.startswith(wanted[:-1]) and wanted[:-1].startswith(begun)
    return wanted.startswith(begun) and wanted != begun


def _told(lacks: dict[str, str]) -> str:
    """`domain, header x-a, which was not recorded`."""
    reasons = list(dict.fromkeys(lacks.values()))
    return "; ".join(f"{', '.join(what for what, why in lacks.items() if why == reason)}, {reason}" for reason in reasons)


def _without(match: Match, lacks: dict[str, str]) -> Match:
    """The match without what is not known: if that fails, the whole does."""
    return msgspec.structs.replace(
        match,
        region=[] if "region" in lacks else match.region,
        adapter=[] if "adapter" in lacks else match.adapter,
        domain=[] if "domain" in lacks else match.domain,
        complexity=[] if "complexity" in lacks else match.complexity,
        prompt_tokens=None if "prompt_tokens" in lacks else match.prompt_tokens,
        headers={name: value for name, value in match.headers.items() if f"header {name}" not in lacks},
    )
