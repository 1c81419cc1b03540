"""Context fit of a request: who of those that may be asked has room for it, counted only where its size alone does not say.

    fitness = Fitness(targets, context)                  once, with the table
    fitness.quick(body, certain, headroom)               every request: one comparison, whatever the number of targets
    await fitness.judge(tokens, ask, body, ...)          the others: bounds, then counts, for each target

What is refused is refused by what is certain, never by an estimate: a prompt that was only estimated to be too long is asked for
all the same, of larger windows first, and the model server has the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from sits.inner.ask import Ask, ImagePart, Part, ToolResultPart
from sits.inner.errors import SitsError
from sits.resources.context import ContextSpec, ServiceSpec, TokenizerSpec
from sits.resources.kinds import Model
from sits.routing.context.bounds import ESCAPED, Bounds, Shape, kept
from sits.routing.context.fit import FITS, Fit, Verdict, fit, refusal
from sits.routing.context.stages import NO_SERVICE, Context, Stage
from sits.routing.target import Target
from sits.state.tokens.base import Count

UNCOUNTED = Count(0, False, "bounds")
"""The count of a prompt that needed none."""
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

    __slots__ = ("_edge", "_fixed", "_growth", "_picky", "_smallest", "any", "context", "rows")

    def __init__(
        self,
        targets: Sequence[Target],
        spec: ContextSpec | None = None,
        tokenizer: Callable[[Model], TokenizerSpec | None] = tokenizer_of,
    ) -> None:
        self.context = Context(spec) if spec is not None else None
        rows = []
        for target in targets:
            window = target.model.spec.context_window
            if self.context is not None:
                window = self.context.window(window)
            if window is not None:
                rows.append(Row(target, window, Shape.of(tokenizer(target.model))))
        self.rows = {row.target.name: row for row in rows}
        self.any = bool(rows)
        """Whether there is anything to judge; where not, nothing is asked of it."""
        self._smallest = min((row.window for row in rows), default=0)
        self._growth = max((row.shape.growth for row in rows), default=1)
        self._fixed = max((row.shape.fixed for row in rows), default=0)
        self._picky = self.context is not None and self.context.stages[0].picky
        self._edge = self.context.edge if self.context is not None else self._smallest

    def quick(self, body: bytes, certain: bool, headroom: int = 0) -> bool:
        """Whether the request fits everybody and is of the first stage, by its size alone. `certain`: its prompt is text alone,
        without tools, schemas or images.

        Bodies so small that they pass are never looked into; larger ones are for `judge`.
        """
        size, room = len(body), self._smallest - (headroom or 1)
        if not certain or size + self._fixed > room:
            return False
        # An escape may stand for more than its bytes only where text grows sixfold: then growth counts for ASCII, too.
        grown = 1 if self._growth <= ESCAPED and body.isascii() else self._growth
        upper = size * grown + self._fixed
        return upper < self._edge and upper <= room

    def passes(self, body: bytes, headroom: int, *, plain: bool, shows: Callable[[bytes], bool]) -> bool:
        """As `quick`, and `shows` (whether there is an image) is asked only where the size would pass."""
        return self.quick(body, plain, headroom) and not self._picky and not shows(body)

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
        texts = list(kept(ask))
        asked = ask.sampling.max_tokens or 0
        fits: dict[str, Fit] = {}
        open_: list[Row] = []
        for target in targets:
            row = self.rows.get(target.name)
            if row is not None:
                found = self._bounded(row, bounds, texts, service.headroom, asked)
                fits[target.name] = found
                if found.verdict is Verdict.NEEDS_COUNT:
                    open_.append(row)
        first = self.rows.get(targets[0].name) if targets else None
        stage = self._stage(first, bounds, texts)
        if stage is None and self.context is not None and first is not None and first not in open_:
            open_.append(first)
        counted = dict(zip((row.target.name for row in open_), await self._counts(tokens, ask, open_), strict=True))
        for row in open_:
            fits[row.target.name] = self._counted(row, counted[row.target.name], fits[row.target.name])
        count = counted.get(first.target.name, UNCOUNTED) if first is not None else UNCOUNTED
        if stage is None and self.context is not None:
            stage = self.context.stage(count.tokens, count.tokens)
        return Judged(count, stage, fits, self._splits(stage, fits))

    def _bounded(self, row: Row, bounds: Bounds, texts: list[str], headroom: int, asked: int) -> Fit:
        upper = bounds.upper(row.shape)
        if not bounds.certain:
            upper = max(upper, row.window)
        return fit(row.window, headroom, row.shape.least(texts), upper, asked=asked)

    def _stage(self, row: Row | None, bounds: Bounds, texts: list[str]) -> Stage | None:
        if self.context is None or row is None or not bounds.certain:
            return None
        return self.context.stage(row.shape.least(texts), bounds.upper(row.shape))

    async def _counts(self, tokens: Counts, ask: Ask, rows: list[Row]) -> list[Count]:
        known = [tokens.known(row.target, ask) for row in rows]
        waiting = [row.target for row, found in zip(rows, known, strict=True) if found is None]
        made = iter(await asyncio.gather(*(tokens.count(target, ask) for target in waiting)))
        return [found if found is not None else next(made) for found in known]

    def _counted(self, row: Row, count: Count, before: Fit) -> Fit:
        if before.verdict is not Verdict.NEEDS_COUNT:
            return before
        if count.exact:
            return fit(row.window, before.headroom, 0, 0, count.tokens, before.asked, count.overhead)
        by_guess = fit(row.window, before.headroom, 0, 0, count.tokens, before.asked)
        return by_guess if by_guess is FITS else before

    def _splits(self, stage: Stage | None, fits: dict[str, Fit]) -> bool:
        """Whether it is read in pieces: the route does that with prompts so long, or with those that fit nobody."""
        if self.context is None:
            return False
        if stage is not None and stage.chunked:
            return True
        nobody = bool(fits) and all(one.verdict is Verdict.DOES_NOT_FIT for one in fits.values())
        return nobody and self.context.spec.oversize == "split"


def is_plain(ask: Ask) -> bool:
    """Whether the prompt is made of text alone."""
    if ask.tools or ask.output is not None:
        return False
    return not any(_shows(part) for message in ask.messages for part in message.parts)


def _shows(part: Part) -> bool:
    if isinstance(part, ToolResultPart):
        return any(isinstance(one, ImagePart) for one in part.content)
    return isinstance(part, ImagePart)
