"""Labelled cards of models, and what a choice of substitutes makes of them.

`substitutes_cards.jsonl`, one card a line: what an operator would write of a model, and the intents that a model of which that is
true can serve. Half of them are Chinese. Splits: `tune` (8 domains), which guards and calibration were made with; `test`
(15 other domains), which was in view when the last constants were chosen; `later` (5 more), written after the method. Each domain
has neighbours that are easily taken for each other (translation from and into a language, code and SQL, clinic and pharmacy,
embeddings and chat about embeddings), most of the skills in three wordings and two languages, and cards that say two
skills, for which a card of one of them is no substitute.

An error is an intent of a primary that its substitute cannot serve. The share is of all intents of primaries for which one is
chosen.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from sits.engines.local.engine import LocalModels, local_engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.engine import RemoteEngine
from sits.gateway.substituting import embed, embedding_model
from sits.inner.sweep import Sweep
from sits.resilience.substitutes.card import Card, described
from sits.resilience.substitutes.measure import Measure
from sits.resilience.substitutes.shelf import EMBEDDER, Shelf
from sits.resilience.substitutes.space import Space

Split = Literal["tune", "test", "later"]


class Labelled(msgspec.Struct, frozen=True):
    """A card and what a model of which it is true can serve."""

    id: str
    split: Split
    lang: Literal["en", "zh"]
    intents: frozenset[str]
    card: Card

    @property
    def domain(self) -> str:
        return self.id.split("/")[1]


class _Row(msgspec.Struct):
    id: str
    split: Split
    lang: Literal["en", "zh"]
    intents: list[str]
    description: str
    domains: list[str]
    embeds: bool = False


class Chosen(msgspec.Struct, frozen=True):
    """The nearest of one primary, whether or not it is near enough, and how many of the primary's intents it serves."""

    primary: Labelled
    substitute: Labelled
    cosine: float

    @property
    def wrong(self) -> int:
        return len(self.primary.intents - self.substitute.intents)


def cards() -> list[Labelled]:
    """The labelled set."""
    text = importlib.resources.files("sits.bench").joinpath("substitutes_cards.jsonl").read_bytes()
    rows = [msgspec.json.decode(line, type=_Row) for line in text.splitlines()]
    return [_labelled(row) for row in rows]


def _labelled(row: _Row) -> Labelled:
    operations = frozenset(("embeddings",)) if row.embeds else frozenset(("chat", "completions"))
    card = described(row.id, row.description, row.domains, operations)
    assert card is not None
    return Labelled(row.id, row.split, row.lang, frozenset(row.intents), card)


def texts(labelled: Sequence[Labelled]) -> list[str]:
    """All that has to be embedded of them."""
    return list(dict.fromkeys(text for one in labelled for text in one.card.texts))


def choices(pool: Sequence[Labelled], vectors: Mapping[str, bytes], space: Space) -> list[Chosen]:
    """The nearest other one of each card, as the gateway would choose it among these."""
    measure = Measure([one.card for one in pool], vectors, space)
    found = []
    for at, primary in enumerate(pool):
        cosines = measure.cosines(at)
        best = max(range(len(pool)), key=cosines.__getitem__)
        if cosines[best] > 0:
            found.append(Chosen(primary, pool[best], cosines[best]))
    return found


def by_embedding(pool: Sequence[Labelled], vectors: Mapping[str, bytes]) -> list[Chosen]:
    """The same by the cosine of the embeddings as they come."""
    import numpy as np

    raw = np.stack([np.frombuffer(vectors[one.card.whole], "<f4") for one in pool]).astype(np.float64)
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    alike = raw @ raw.T
    found = []
    for at, primary in enumerate(pool):
        others = [other for other, one in enumerate(pool) if other != at and primary.card.operations & one.card.operations]
        if others:
            best = max(others, key=lambda other: alike[at, other])
            found.append(Chosen(primary, pool[best], float(alike[at, best])))
    return found


def pools(labelled: Sequence[Labelled], size: int, count: int, seed: int) -> list[list[Labelled]]:
    """Small sets of models, half of them of one domain: what one gateway may have."""
    chance = random.Random(seed)  # noqa: S311 - draws, no secrets
    domains = sorted({one.domain for one in labelled})
    found = []
    for _ in range(count):
        domain = chance.choice(domains)
        near = [one for one in labelled if one.domain == domain]
        pool = {one.id: one for one in [*chance.sample(near, size // 2), *chance.sample(list(labelled), size // 2)]}
        found.append(list(pool.values()))
    return found


def share(chosen: Sequence[Chosen], least: float) -> tuple[int, int]:
    """Intents of primaries whose nearest is near enough, and how many of them it cannot serve."""
    taken = [one for one in chosen if one.cosine >= least]
    return sum(len(one.primary.intents) for one in taken), sum(one.wrong for one in taken)


def embeddings(folder: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """The embeddings of texts by the built-in model, which is fetched into `folder` unless it is there; kept there, too.

    Raises:
        SitsError: it cannot be fetched or run.
    """
    shelf = Shelf(folder / "substitutes" / "embeddings.bin", EMBEDDER)
    found = shelf.take(wanted)
    missing = [text for text in dict.fromkeys(wanted) if text not in found]
    if missing:
        found |= dict(zip(missing, asyncio.run(_embed(folder, missing)), strict=True))
        shelf.keep(found)
    return found


async def _embed(folder: Path, wanted: Sequence[str]) -> list[bytes]:
    loop = asyncio.get_running_loop()
    sweep = Sweep()
    models = LocalModels(folder, lambda address: RemoteEngine(parse_address(address), sweep=sweep, loop=loop))
    engine = local_engine(embedding_model(), models)
    try:
        return await embed(engine, wanted)
    finally:
        await engine.aclose()
        await models.aclose()
