"""Context fit of a request: who of those that may be asked has room for it, counted only where its size alone does not say.

    fitness = Fitness(targets, context)                  once, with the table
    fitness.quick(body, plain, headroom)                 every request: one comparison, whatever the number of targets
    await fitness.judge(tokens, ask, body, ...)          the others: bounds, then counts, for each target

What a model's window cannot hold is refused by what is certain, never by an estimate: a prompt that was only estimated to be too
long is asked for all the same, of larger windows first, and the model server has the last word. It has none about the `most` of a
route that says what is to become of longer prompts: there an estimate counts, and a sparing one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import msgspec

from sits.inner.ask import Ask, ImagePart, Part, ToolResultPart
from sits.inner.errors import SitsError
from sits.inner.estimate import ask_tokens, fewest_tokens
from sits.resources.context import ContextSpec, ServiceSpec, TokenizerSpec
from sits.resources.kinds import Model
from sits.routing.context.bounds import ESCAPED, Bounds, Shape, kept
from sits.routing.context.fit import FITS, Fit, Verdict, fit, refusal
from sits.routing.context.stages import NO_SERVICE, Context, Stage
from sits.routing.target import Target
from sits.state.tokens.base import Count

UNCOUNTED = Count(0, False, "bounds")
"""The count of a prompt that needed none."""
REWRITTEN = 4
"""Tokens, at the most, for a byte of tools and schemas, which templates write anew: some with indentation, to some depth. Not
certain, so it only ever says that something fits."""
_RANK = {Verdict.FITS: 0, Verdict.NEEDS_COUNT: 1, Verdict.TIGHT: 2, Verdict.DOES_NOT_FIT: 3}


def tokenizer_of(model: Model) -> TokenizerSpec | None:
    """How the tokens of a model are counted, as it is declared."""
    return model.spec.tokenizer


class Counts(Protocol):
    """What is needed of `sits.state.tokens.Tokens`."""

    def known(self, target: Target, ask: Ask) -> Count | None: ...

    async def count(self, target: Target, ask: Ask) -> Count: ...


class Row(msgspec.Struct, frozen=True):
    """One target with a window: what is needed to judge it."""

    target: Target
    window: int
    shape: Shape
    alike: Hashable
    """Equal for targets that count alike: replicas of a model are asked once."""
    limit: int = 0
    """Tokens that the route allows, whatever the server would take; 0: it leaves that to the server."""

    @classmethod
    def of(cls, target: Target, window: int, spec: TokenizerSpec | None, limit: int = 0) -> Row:
        said = target.model.spec
        weights = str(said.local.source) if said.local is not None else ""
        source = (spec.source, str(spec.frame)) if spec is not None else ("", "")
        return cls(target, window, Shape.of(spec), (said.engine, target.upstream_model, said.version, weights, source), limit)


class Judged(msgspec.Struct, frozen=True):
    """What is known of a request's room."""

    count: Count
    """Of the target that was planned first, where one was made."""
    stage: Stage | None
    """What is done with prompts of that length; None where the route has no stages."""
    fits: dict[str, Fit]
    """By target, of those with a window."""
    split: bool = False
    """It is to be read in pieces."""

    def order(self, targets: Sequence[Target]) -> list[Target]:
        """Who may be asked, best first: who has room before who may have; of these, whom the stage prefers; else as they were.
        Empty where nobody has room."""
        stage = self.stage
        ranked = []
        for place, target in enumerate(targets):
            verdict = self.fits.get(target.name, FITS).verdict
            if verdict is not Verdict.DOES_NOT_FIT:
                wished = stage is not None and stage.prefers(target.model)
                # Where only an estimate speaks, the larger window is the safer one.
                window = -self.fits[target.name].window if verdict is Verdict.NEEDS_COUNT else 0
                ranked.append((_RANK[verdict], not wished, window, place, target))
        return [target for *_, target in sorted(ranked, key=lambda row: row[:4])]

    def refusal(self, name: str) -> SitsError:
        """What a client is told whose prompt nobody behind `name` has room for."""
        return refusal(name, {target: one for target, one in self.fits.items() if one.verdict is Verdict.DOES_NOT_FIT})


class Fitness:
    """Who can be asked by one name, compiled: their windows and what is certain of their tokenizers."""

    __slots__ = ("_edge", "_fixed", "_growth", "_picky", "_smallest", "any", "context", "rows", "uneven")

    def __init__(
        self,
        targets: Sequence[Target],
        spec: ContextSpec | None = None,
        tokenizer: Callable[[Model], TokenizerSpec | None] = tokenizer_of,
    ) -> None:
        self.context = Context(spec) if spec is not None else None
        rows = []
        for target in targets:
            window, limit = target.model.spec.window, 0
            if self.context is not None:
                limit, window = self.context.limit(window), self.context.window(window)
            if window is not None:
                rows.append(Row.of(target, window, tokenizer(target.model), limit))
        self.rows = {row.target.name: row for row in rows}
        self.any = bool(rows)
        """Whether there is anything to judge; where not, nothing is asked of it."""
        self.uneven = len({self.rows[one.name].window if one.name in self.rows else 0 for one in targets}) > 1
        """Whether one may have room for an answer for which another one has none."""
        self._smallest = min((row.window for row in rows), default=0)
        self._growth = max((row.shape.growth for row in rows), default=1)
        self._fixed = max((row.shape.fixed for row in rows), default=0)
        self._picky = self.context is not None and self.context.stages[0].picky
        self._edge = self.context.edge if self.context is not None else self._smallest

    def quick(self, body: bytes, plain: bool, headroom: int = 0) -> bool:
        """Whether the request fits everybody and is of the first stage, by its size alone. `plain`: it has no tools, no schemas.

        Bodies so small that they pass are never looked into; larger ones are for `judge`. Images are for whoever asks to see to.
        """
        size, room = len(body), self._smallest - (headroom or 1)
        if not plain:
            size *= REWRITTEN
        if size + self._fixed > room:
            return False
        # An escape may stand for more than its bytes only where text grows sixfold: then growth counts for ASCII, too.
        grown = 1 if self._growth <= ESCAPED and body.isascii() else self._growth
        upper = size * grown + self._fixed
        return upper < self._edge and upper <= room

    def passes(self, body: bytes, headroom: int, *, plain: bool, shows: Callable[[bytes], bool]) -> bool:
        """As `quick`, and `shows` (whether there is an image) is asked only where the size would pass."""
        return self.quick(body, plain, headroom) and not self._picky and not shows(body)

    def short(self, asked: int, targets: Sequence[Target]) -> dict[str, int]:
        """The windows of those that have no room for so long an answer, whatever the prompt is; none where nobody has."""
        if asked < self._smallest:
            return {}
        rows = self.rows
        found = {one.name: rows[one.name].window for one in targets if one.name in rows and rows[one.name].window <= asked}
        return found if len(found) < len(targets) else {}

    async def judge(
        self,
        tokens: Counts,
        ask: Ask,
        body: bytes,
        targets: Sequence[Target],
        service: ServiceSpec = NO_SERVICE,
    ) -> Judged:
        """The verdict for each of `targets`, by exact counts where the bounds do not say. Never raises."""
        bounds = Bounds(body, is_plain(ask))
        bounds.sharpen()
        texts, shown = list(kept(ask)), shows(ask)
        asked = ask.sampling.max_tokens or 0
        fits: dict[str, Fit] = {}
        open_: list[Row] = []
        for target in targets:
            row = self.rows.get(target.name)
            if row is not None:
                lower, upper = _most(row, bounds, texts, shown)
                fits[target.name] = found = fit(row.window, service.headroom, lower, upper, asked=asked)
                if found.verdict is Verdict.NEEDS_COUNT:
                    open_.append(row)
        first = self.rows.get(targets[0].name) if targets else None
        stage = (
            self.context.stage(*_most(first, bounds, texts, shown)) if self.context is not None and first is not None else None
        )
        if stage is None and self.context is not None and first is not None and first not in open_:
            open_.append(first)
        if shown:
            # Servers count pictures by what they see of them, or not at all; and a picture may be megabytes.
            guess = Count(ask_tokens(ask), False, "estimate: images")
            counted = {row.target.name: guess for row in open_}
        else:
            counted = await _counts(tokens, ask, open_)
        fewest = 0
        if any(row.limit and not counted[row.target.name].exact for row in open_):
            fewest = sum(map(fewest_tokens, texts))
        for row in open_:
            fits[row.target.name] = _counted(row, counted[row.target.name], fits[row.target.name], fewest)
        count = counted.get(first.target.name, UNCOUNTED) if first is not None else UNCOUNTED
        if stage is None and self.context is not None:
            stage = self.context.stage(count.tokens, count.tokens)
        return Judged(count, stage, fits, self._splits(stage, fits))

    def _splits(self, stage: Stage | None, fits: dict[str, Fit]) -> bool:
        """Whether it is read in pieces: the route does that with prompts so long, or with those that fit nobody. A stage speaks
        for prompts that fit; of others only where the route does not say what is to become of them."""
        if self.context is None:
            return False
        oversize = self.context.spec.oversize
        nobody = bool(fits) and all(one.verdict is Verdict.DOES_NOT_FIT for one in fits.values())
        if nobody and oversize is not None:
            return oversize == "split"
        return stage is not None and stage.chunked


def _most(row: Row, bounds: Bounds, texts: list[str], shown: bool) -> tuple[int, int]:
    """The least and the most tokens for one target."""
    upper = bounds.upper(row.shape)
    if shown:
        upper = max(upper, row.window)
    elif not bounds.certain:
        upper *= REWRITTEN
    return row.shape.least(texts), upper


async def _counts(tokens: Counts, ask: Ask, rows: list[Row]) -> dict[str, Count]:
    """A count for each, by one of those that count alike."""
    by: dict[Hashable, Target] = {}
    for row in rows:
        by.setdefault(row.alike, row.target)
    found: dict[Hashable, Count] = {}
    for alike, target in by.items():
        known = tokens.known(target, ask)
        if known is not None:
            found[alike] = known
    waiting = [alike for alike in by if alike not in found]
    made = await asyncio.gather(*(tokens.count(by[alike], ask) for alike in waiting))
    found.update(zip(waiting, made, strict=True))
    return {row.target.name: found[row.alike] for row in rows}


def _counted(row: Row, count: Count, before: Fit, fewest: int) -> Fit:
    """The verdict by a count. An estimate says that something fits; that it does not only where the route has a limit of its own,
    and the `fewest` tokens that such a prompt may have are too many for it."""
    if before.verdict is not Verdict.NEEDS_COUNT:
        return before
    if count.exact:
        return fit(row.window, before.headroom, 0, 0, count.tokens, before.asked, count.overhead)
    by_guess = fit(row.window, before.headroom, 0, 0, count.tokens, before.asked)
    if by_guess is FITS:
        return by_guess
    if row.limit and fewest + max(before.headroom, 1) > row.limit:
        lower = max(fewest, before.lower)
        return msgspec.structs.replace(before, verdict=Verdict.DOES_NOT_FIT, lower=lower, guess=max(count.tokens, lower))
    return before


def is_plain(ask: Ask) -> bool:
    """Whether the prompt is made of text alone."""
    return not ask.tools and ask.output is None and not shows(ask)


def shows(ask: Ask) -> bool:
    """Whether there is an image in the prompt."""
    return any(_shows(part) for message in ask.messages for part in message.parts)


def _shows(part: Part) -> bool:
    if isinstance(part, ToolResultPart):
        return any(isinstance(one, ImagePart) for one in part.content)
    return isinstance(part, ImagePart)
