"""`docs/scheduling.md`: filters and scores with their settings, made from the code."""

from __future__ import annotations

import ast
import importlib.resources
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from sits.resources.conform import type_words
from sits.resources.vocabulary import Spec
from sits.routing.scheduling.base import TICK
from sits.routing.scheduling.builtin import ALWAYS, FILTER_SETTINGS, FILTERS, SCORE_SETTINGS, SCORES
from sits.routing.scheduling.checks import candidates_of, made_for
from sits.routing.scheduling.scheduler import MOST_FACETS
from sits.routing.scheduling.seen import ENOUGH, FRESH, LATEST, OLD

PACKAGE = "sits.routing.scheduling"
NEEDED: Mapping[str, dict[str, Any]] = {"label": {"points": {}}, "colour": {"colours": {}}, "cost": {"mostPerMillion": 1}}
"""The settings that something cannot be made without."""
EXAMPLE = """\
apiVersion: sits/v1
kind: Route
metadata:
  name: assistant
spec:
  backends:
    - select: {team: assistant}
  filters:
    - name: zone
      settings: {region: eu, client: false, strict: true}
    - name: latency-promise
      settings: {p95BelowMs: 800, undeclared: keep}
  scores:
    - name: domain
      weight: 3
    - name: load
      weight: 3
    - name: prefix-affinity
      weight: 2
    - name: cost
    - name: label
      weight: 0.5
      settings:
        points: {gpu=h100: 100, gpu=a100: 40}
  explore: 0.02
"""
"""The route of the page; a test makes it."""
VARIES = {"never": "by configuration", "tick": "by tick", "request": "by request"}


def scheduling_page() -> str:
    """The text of the page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield from _INTRO.splitlines()
    yield ""
    yield from (f"    {line}".rstrip() for line in EXAMPLE.splitlines())
    yield ""
    yield from _HOW.splitlines()
    yield from ("", "## Filters", "")
    yield f"{', '.join(f'`{name}`' for name in ALWAYS)} are on for every route, and need not be named."
    yield from ("", "| filter | what holds of those who are left | strict |", "| --- | --- | --- |")
    for name, make in FILTERS.items():
        sieve = make(made_for(candidates_of(2), _needed(name, FILTER_SETTINGS)))
        yield f"| [`{name}`](#filter-{name}) | {_said(make)} | {'yes' if sieve.strict else 'no'} |"
    yield from _settings("filter", FILTER_SETTINGS)
    yield from ("", "## Scores", "")
    yield "| score | gives most to | changes |"
    yield "| --- | --- | --- |"
    for name, maker in SCORES.items():
        score = maker(made_for(candidates_of(2), _needed(name, SCORE_SETTINGS)))
        yield f"| [`{name}`](#score-{name}) | {_said(maker)} | {VARIES[score.varies]} |"
    yield from _settings("score", SCORE_SETTINGS)
    yield ""
    yield from _PLUGINS.splitlines()


def _settings(what: str, kinds: Mapping[str, type[Spec]]) -> Iterator[str]:
    for name, kind in kinds.items():
        yield from ("", f"### {what.capitalize()} {name}", "")
        fields = msgspec.structs.fields(kind)
        if not fields:
            yield "No settings."
            continue
        yield "| setting | type | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for field in fields:
            words = type_words(_type_of(kind, field.name)).replace("|", "\\|")
            yield f"| `{field.encode_name}` | {words} | {_default(field)} | {_meaning(kind, field.name)} |"


def _needed(name: str, kinds: Mapping[str, type[Spec]]) -> dict[str, Any]:
    known = {field.encode_name for field in msgspec.structs.fields(kinds[name])}
    return {key: value for key, value in NEEDED.get(name, {}).items() if key in known}


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"`{msgspec.json.encode(default).decode()}`"


def _type_of(kind: type[Spec], name: str) -> msgspec.inspect.Type:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return next(field.type for field in info.fields if field.name == name)


def _meaning(kind: type[Spec], name: str) -> str:
    texts = _docs()
    found = next(texts[one.__name__, name] for one in kind.__mro__ if (one.__name__, name) in texts)
    return found.replace("\n", " ").replace("|", "\\|")


def _said(make: Callable[..., Any]) -> str:
    return _docs()[make.__name__, ""].replace("\n", " ").replace("|", "\\|")


@cache
def _docs() -> dict[tuple[str, str], str]:
    """Docstrings of classes, functions and attributes, read from the source: compiled classes have none."""
    found: dict[tuple[str, str], str] = {}
    for file in importlib.resources.files(PACKAGE).iterdir():
        if not file.name.endswith(".py"):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name, ""] = ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                found |= {(node.name, name): text for name, text in _attributes(node)}
    return found


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for before, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(before, ast.AnnAssign) or not isinstance(after, ast.Expr):
            continue
        if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            yield ast.unparse(before.target), inspect.cleandoc(after.value.value)


_INTRO = """\
# Filters and scores

Made from `sits/routing/scheduling`; do not edit by hand (`sits docs`).

A route may say what is for and against each of its backends. Filters leave backends out, scores give each of those that are left
0 to 100; who has the highest sum is asked first, and the others after it in their order when it fails. The scheme is that of the
Kubernetes scheduler. What it costs, measured: [performance-decision.md](performance-decision.md).

A route that wants to stay in Europe, prefers backends that are good at what is asked and quick about it, sends prompts that
begin alike to the same backend as long as that has no more than its part, and draws 2 of 100 requests alike from all:"""

_HOW = f"""\
## How a choice is made

1. **Filters that are strict** leave out who may not answer. Where they leave nobody, the request is refused, and the answer
   says why of each.
2. **Health** leaves out those whose breakers are open, unless nobody else is left.
3. **Filters that are not strict** leave out who is not wanted; one that would leave nobody is passed over. Most take the
   setting `strict`; what is declared is strict when not said otherwise, what is measured is not.
4. **Scores** say a number for each backend, and it is made 0 to 100: as it is given; or the highest of all 100 and the
   lowest 0; or, of costs, the least 100 and twice as much 50.
5. **Totals**: each score counts by its share of the weights of all scores, so a total is 0 to 100, too. It is multiplied by
   the backend's own `weight`, and the highest one is asked first. Of several that are alike, the random number of the
   request chooses, each with the same chance.
6. With **`explore`**, that share of the requests goes first to one drawn alike from all who are left, whatever their totals
   are.

A score says how often it can change. *By configuration* and *by tick* ({1000 * TICK:.0f} ms) it is asked once for what of the
request it goes by (its domain, say), and the sums are kept, {MOST_FACETS} of them; only what changes *by request* is computed for
each. So within a tick, scores of the second kind say the same to everybody: alone they would send all of that time to one
backend. Put `load` or `least-outstanding` beside them.

`latency-promise` knows the truth once {ENOUGH} answers of a backend were timed: the 95th percentile of its last {LATEST}, of none
that is older than {OLD / 60:.0f} minutes. It is believed for {FRESH:.0f} s after the last answer: who is left out for being slow
is tried again. Whoever answers after such a silence begins anew. One answer within the bound brings it back; one beyond it leaves
it out for another {FRESH:.0f} s, until there are {ENOUGH} again. Who was within the bound before is not left out for so few."""

_PLUGINS = """\
## Your own

A filter or score of your own is a class: `sits.routing.scheduling.base` is the whole contract, and
`sits.routing.scheduling.checks` are the checks that all of the above are held to. Everything in it runs where every other
request waits: it must not sleep or ask anybody."""
