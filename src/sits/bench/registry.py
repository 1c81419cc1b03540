"""`sits bench registry`: whether services are found by what they are for, beside a search of their names."""

from __future__ import annotations

import importlib.resources
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from sits.bench import BenchError, Outcome, Plan
from sits.bench.environment import environment, load_before
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table
from sits.bench.substitutes_set import embeddings
from sits.inner.errors import SitsError
from sits.routing.registry import Lexical, ServiceCard, fused
from sits.routing.registry.words import words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]

COMMAND = "sits bench registry --out docs"
HIT5 = ">= 0.9"
NAMED = ">= 1"
Search = Callable[["Query"], list[str]]


class Query(msgspec.Struct, frozen=True):
    """A query and the service that it means."""

    text: str
    services: list[str]
    lang: Literal["en", "zh"]
    kind: Literal["meaning", "words", "name"]
    split: Literal["tune", "test"]


class Marks(msgspec.Struct, frozen=True):
    """How well a search does."""

    hit1: float
    hit5: float
    mrr: float
    """Mean reciprocal rank; what is not found at all counts 0."""
    count: int


def run(plan: Plan) -> Outcome:
    """Measure."""
    busy = load_before()
    cards, queries = services(), labelled()
    try:
        folder = plan.cache / "registry"
        vectors = embeddings(folder, [*(card.text for card in cards), *(query.text for query in queries)])
        from sits.resilience.substitutes.space import space
    except (SitsError, ImportError) as error:
        raise BenchError(getattr(error, "message", str(error))) from error
    place = space().place
    plan.say(f"registry: {len(queries)} queries over {len(cards)} services")
    rows = place([vectors[card.text] for card in cards])
    asked = dict(zip([query.text for query in queries], place([vectors[query.text] for query in queries]), strict=True))
    searches = _searches(cards, rows, asked)
    test = [query for query in queries if query.split == "test"]
    meant = [query for query in test if query.kind == "meaning"]
    figures = [*_quality(searches, meant, test), *_near(cards, rows, asked, test), *_speed(cards, rows, asked, queries)]
    ran = environment({}, busy)
    sections = [
        _table(searches, meant, test),
        _wrong(searches["registry"], meant),
        Section("How it is measured", _METHOD.format(services=len(cards), queries=len(queries))),
    ]
    page = Page("performance-registry", "Registry: services found by meaning", _INTRO, COMMAND, ran, sections)
    return Outcome(figures, page)


def setup(plan: Plan) -> None:
    """Fetch the embedding model, 91 MB."""
    try:
        embeddings(plan.cache / "registry", ["ready"])
    except SitsError as error:
        raise BenchError(error.message) from error


def services() -> list[ServiceCard]:
    """The services."""
    return [msgspec.json.decode(line, type=ServiceCard) for line in _lines("services.jsonl")]


def labelled() -> list[Query]:
    """The queries."""
    return [msgspec.json.decode(line, type=Query) for line in _lines("queries.jsonl")]


def _lines(name: str) -> list[bytes]:
    return importlib.resources.files("sits.bench").joinpath(f"registry_data/{name}").read_bytes().splitlines()


def _searches(cards: Sequence[ServiceCard], rows: Matrix, asked: Mapping[str, Matrix]) -> dict[str, Search]:
    """By what is compared. `names` is what registries have: words and pieces of words of the name."""
    names = [card.name for card in cards]
    everybody, lexical = frozenset(names), Lexical(cards)
    pieces = {name: _pieces(name) for name in names}

    def semantic(query: Query) -> list[tuple[str, float]]:
        cosines = rows @ asked[query.text]
        return sorted(zip(names, map(float, cosines), strict=True), key=lambda pair: (-pair[1], pair[0]))

    def by_name(query: Query) -> list[str]:
        called, own = lexical.called(query.text), _pieces(query.text)
        alike = {name: len(own & piece) / len(own | piece) for name, piece in pieces.items() if own & piece}
        return list(dict.fromkeys([*called, *sorted(alike, key=lambda name: (-alike[name], name))]))

    def by_words(query: Query) -> list[str]:
        return [match.name for match in lexical.search(query.text)]

    def together(query: Query) -> list[str]:
        found = fused(lexical.called(query.text), lexical.search(query.text), semantic(query), everybody, len(names))
        return [one.name for one in found]

    return {
        "names": by_name,
        "words": by_words,
        "meaning": lambda query: [name for name, _ in semantic(query)],
        "registry": together,
    }


def _pieces(text: str) -> frozenset[str]:
    """Three letters in a row of each word, and the word."""
    found = set(words(text))
    for word in list(found):
        found |= {word[at : at + 3] for at in range(len(word) - 2)}
    return frozenset(found)


def marks(search: Search, queries: Sequence[Query]) -> Marks:
    """How well a search does on queries."""
    ranks = []
    for query in queries:
        found = search(query)
        ranks.append(next((1 / at for at, name in enumerate(found, 1) if name in query.services), 0.0))
    count = len(ranks)
    return Marks(sum(rank == 1 for rank in ranks) / count, sum(rank >= 0.2 for rank in ranks) / count, sum(ranks) / count, count)


def _quality(searches: Mapping[str, Search], meant: Sequence[Query], test: Sequence[Query]) -> list[Figure]:
    figures = []
    ours = marks(searches["registry"], meant)
    figures.append(bounded("registry_hit5", ours.hit5, "", HIT5, f"{ours.count} queries that mean a service and do not name it"))
    figures.append(measured("registry_hit1", ours.hit1, ""))
    figures.append(measured("registry_mrr", ours.mrr, ""))
    for lang in ("en", "zh"):
        mine = marks(searches["registry"], [query for query in meant if query.lang == lang])
        figures.append(measured(f"registry_hit1_{lang}", mine.hit1, "", f"{mine.count} queries; hit@5 {mine.hit5:.3f}"))
    named = marks(searches["registry"], [query for query in test if query.kind == "name"])
    figures.append(bounded("registry_named_hit1", named.hit1, "", NAMED, f"{named.count} queries with the name in them"))
    worded = [query for query in test if query.kind == "words"]
    found, plain = marks(searches["registry"], worded), marks(searches["meaning"], worded)
    said = f"{found.count} queries with words of the card; by meaning alone {plain.hit1:.3f}"
    figures.append(measured("registry_worded_hit1", found.hit1, "", said))
    other = marks(searches["names"], meant)
    figures.append(measured("registry_names_alone_hit1", other.hit1, "", f"names alone; hit@5 {other.hit5:.3f}"))
    figures.append(measured("registry_names_alone_mrr", other.mrr, ""))
    return figures


def _near(cards: Sequence[ServiceCard], rows: Matrix, asked: Mapping[str, Matrix], test: Sequence[Query]) -> list[Figure]:
    """What 0.3, below which a service is not meant, does on queries that nothing was set by."""
    place = {card.name: at for at, card in enumerate(cards)}
    own = [float(rows[place[query.services[0]]] @ asked[query.text]) for query in test if query.kind == "meaning"]
    others = [
        float(cosine)
        for query in test
        for at, cosine in enumerate(rows @ asked[query.text])
        if cards[at].name not in query.services
    ]
    below = sum(cosine < 0.3 for cosine in own) / len(own)
    above = sum(cosine >= 0.3 for cosine in others) / len(others)
    return [
        measured(
            "registry_meant_below_cold", 100 * below, "%", f"of the services that are meant; median {statistics.median(own):.2f}"
        ),
        measured("registry_others_above_cold", 100 * above, "%", f"of the others; median {statistics.median(others):.2f}"),
    ]


def _speed(cards: Sequence[ServiceCard], rows: Matrix, asked: Mapping[str, Matrix], queries: Sequence[Query]) -> list[Figure]:
    lexical, names = Lexical(cards), [card.name for card in cards]
    everybody = frozenset(names)
    spent = []
    for query in queries:
        begun = time.perf_counter()
        cosines = rows @ asked[query.text]
        semantic = sorted(zip(names, map(float, cosines), strict=True), key=lambda pair: -pair[1])
        fused(lexical.called(query.text), lexical.search(query.text), semantic, everybody, 5)
        spent.append(time.perf_counter() - begun)
    return [measured("registry_search_p50", 1e3 * statistics.median(spent), "ms", "without the embedding of the query")]


def _table(searches: Mapping[str, Search], meant: Sequence[Query], test: Sequence[Query]) -> Section:
    rows = []
    sets: list[tuple[str, list[Query]]] = [
        ("that mean it", list(meant)),
        ("of these English", [query for query in meant if query.lang == "en"]),
        ("of these Chinese", [query for query in meant if query.lang == "zh"]),
        ("with words of the card", [query for query in test if query.kind == "words"]),
        ("with its name", [query for query in test if query.kind == "name"]),
    ]
    for name, search in searches.items():
        for called, part in sets:
            found = marks(search, part)
            rows.append([name, called, f"{found.hit1:.3f}", f"{found.hit5:.3f}", f"{found.mrr:.3f}", str(found.count)])
    return Section("Searches side by side", _SEARCHES, [Table(["search", "queries", "hit@1", "hit@5", "MRR", "count"], rows)])


def _wrong(search: Search, meant: Sequence[Query]) -> Section:
    rows = []
    for query in meant:
        found = search(query)
        if found[0] not in query.services:
            rows.append([query.text, query.services[0], found[0], str(found.index(query.services[0]) + 1)])
    return Section("What is not found first", "", [Table(["query", "means", "found first", "its rank"], rows)])


_INTRO = """\
A service is looked for by what it should do: "fraud detection" means the one that analyses the behaviour of transactions.
[The registry](registry.md) says how to ask. Here is how often the right one comes first, and among five, beside
a search of names."""
_SEARCHES = """\
`names`: trigrams and words of the name. `words`: BM25 over the whole card. `meaning`: embeddings on the calibrated map alone.
`registry`: what the gateway does, all three."""
_METHOD = """\
{services} services and {queries} queries, half of them Chinese, were written for this project by the author of the method: most
queries have no word of the name or the card, 30 have words of the card, 12 the name. Eight services describe themselves in
Chinese, four came from Consul or Eureka and say little. Each query means one service; where another one would do as well, that
counts as wrong. Services were dealt into `tune` (every third) and `test`: one vector for a whole card, the map of substitutes
and the gate of the words were chosen on queries of `tune`; the figures are of `test`. All services can be found in both."""
