"""What may be declared of the vital signs of a model: where its server tells of its load, and what Prometheus knows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, Path, did_you_mean, quoted
from sits.resources.vocabulary import Figure, Spec

Query = Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
_PATH = "a path: it begins with / and holds no spaces, in ASCII"
_URL = "an http or https URL without spaces, in ASCII"
OnNoData = Literal["healthy", "unhealthy", "keep"]


class VitalsSpec(Spec, frozen=True):
    """How the server of a model tells of its load. Servers of vLLM, SGLang, TGI and llama.cpp are asked without it, too."""

    off: bool = False
    """Do not ask."""
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]*$(?!\n)", max_length=1000, description=_PATH)] | None = None
    """Where it exposes metrics for Prometheus: `/metrics` when not given, for Ollama `/api/ps`."""
    endpoint: Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+$(?!\n)", description=_URL)] | None = None
    """Base URL, where that is another one than the model's: Triton has its metrics at a port of their own. No credential is sent
    there."""
    every_seconds: Annotated[float, msgspec.Meta(ge=0.2, le=3600)] = 1.0
    """How often it is asked, by each worker."""
    memory_query: Query | None = None
    """A query to the Prometheus server of Settings for the share of accelerator memory in use, 0 to 1; of several values the
    largest counts. `$model` and the like stand for what is declared, as in `health`."""


class HealthSpec(Spec, frozen=True):
    """A model is left alone while a query to the Prometheus server of Settings says that it is not well."""

    query: Query
    """PromQL. Within its strings `$model` (the name of the resource), `$upstream` (the server's own id), `$instance` (host:port
    of the endpoint), `$zone` and `$version` stand for what is declared."""
    above: Figure | None = None
    """It is unwell while any of the values is greater."""
    below: Figure | None = None
    """It is unwell while any of the values is smaller."""
    every_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 5.0
    """How often it is asked."""
    for_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    """How long it must be unwell before it is left alone, and well before it is asked again."""
    on_no_data: OnNoData = "keep"
    """What a query without a value means. A Prometheus that does not answer says nothing of a model, whatever stands here."""


VARIABLES = ("model", "upstream", "instance", "zone", "version")
_QUOTES = "\"'`"
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_MATCHES = re.compile(r"[=!]~\s*\Z")
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r"})


class _Piece(msgspec.Struct, frozen=True):
    """Of a query: `quote` is empty outside of strings; `pattern`: the string is matched as a regular expression."""

    text: str
    quote: str
    pattern: bool = False


def filled(query: str, values: Mapping[str, str]) -> str:
    """The query with its variables replaced: no value ends the string that it stands in, and in a pattern it stands for itself.

    Raises:
        ValueError: the query has faults (see `query_faults`).
    """
    for fault in query_faults(query, (), values):
        raise ValueError(fault.message)

    def put(piece: _Piece) -> str:
        def one(found: re.Match[str]) -> str:
            value = values[found[1]]
            return (_META.sub(r"\\\g<0>", value) if piece.pattern else value).translate(_ESCAPES)

        return _VARIABLE.sub(one, piece.text) if piece.quote else piece.text

    return "".join(map(put, _pieces(query)))


def query_faults(query: str, path: Path, known: Mapping[str, str]) -> Iterator[Fault]:
    """Strings that do not end, variables that are not known, or that stand where no value can be put safely."""
    wrong = list(balanced(query, path))
    yield from wrong
    if wrong:
        return
    pieces = list(_pieces(query))
    for piece in pieces:
        if piece.text.startswith("#"):
            continue
        for found in _VARIABLE.finditer(piece.text):
            name = found[1]
            if name not in VARIABLES:
                hint = did_you_mean(name, VARIABLES) or "one of $" + ", $".join(VARIABLES)
                yield Fault(path, f"{quoted(found[0])} stands for nothing", hint)
            elif name not in known:
                yield Fault(path, f"the model has no {name} to put for {found[0]}", f"declare its {name}")
            elif piece.quote not in ("'", '"'):
                where = "a string in backticks, where nothing can be escaped" if piece.quote else "no string"
                yield Fault(path, f"{found[0]} stands in {where}", f'write "{found[0]}"')


def balanced(query: str, path: Path) -> Iterator[Fault]:
    """Strings that do not end and brackets that do not match: all of PromQL that is looked at here."""
    pieces = list(_pieces(query))
    if pieces and pieces[-1].quote and not _closed(pieces[-1]):
        yield Fault(path, f"a string that begins with {pieces[-1].quote} does not end")
        return
    open_: list[str] = []
    plain = "".join(piece.text for piece in pieces if not piece.quote and not piece.text.startswith("#"))
    for sign in plain:
        if sign in _CLOSES:
            open_.append(sign)
        elif sign in _CLOSES.values() and (not open_ or _CLOSES[open_.pop()] != sign):
            yield Fault(path, f"a {sign} closes nothing that is open", "check the brackets")
            return
    if open_:
        yield Fault(path, f"a {open_[-1]} is not closed", "check the brackets")
    elif not any(piece.quote or piece.text.strip() for piece in pieces if not piece.text.startswith("#")):
        yield Fault(path, "asks nothing", "write a query, like up == 0")


def vitals_faults(vitals: VitalsSpec | None, health: HealthSpec | None, known: Mapping[str, str]) -> Iterator[Fault]:
    """What the shapes cannot say. `known` are the variables that this model has a value for."""
    if vitals is not None and vitals.memory_query is not None:
        yield from query_faults(vitals.memory_query, ("spec", "vitals", "memoryQuery"), known)
    if health is None:
        return
    yield from query_faults(health.query, ("spec", "health", "query"), known)
    if health.above is None and health.below is None:
        yield Fault(("spec", "health"), "says no threshold", "give `above` or `below`")
    elif health.above is not None and health.below is not None and health.below > health.above:
        message = f"every value is above {health.above:g} or below {health.below:g}"
        yield Fault(("spec", "health", "below"), message, "give a figure that is not greater than `above`")


def variables(model: str, upstream: str | None, endpoint: str | None, zone: str | None, version: str | None) -> dict[str, str]:
    """What the variables of a query stand for; those without a value are left out."""
    place = re.sub(r"^https?://", "", endpoint or "").partition("/")[0]
    found = {"model": model, "upstream": upstream or model, "instance": place, "zone": zone, "version": version}
    return {name: value for name, value in found.items() if value}


def _pieces(query: str) -> Iterator[_Piece]:
    """The query cut at the edges of its strings and comments (https://prometheus.io/docs/prometheus/latest/querying/basics)."""
    start = at = 0
    while at < len(query):
        char = query[at]
        if char not in _QUOTES and char != "#":
            at += 1
            continue
        if start < at:
            yield _Piece(query[start:at], "")
        end = _end(query, at)
        pattern = _MATCHES.search(query, max(0, at - 80), at) is not None
        yield _Piece(query[at:end], "" if char == "#" else char, pattern)
        start = at = end
    if start < len(query):
        yield _Piece(query[start:], "")


def _end(query: str, start: int) -> int:
    """Where the string or comment that begins at `start` is over."""
    quote = query[start]
    if quote == "#":
        end = query.find("\n", start)
        return len(query) if end < 0 else end
    at = start + 1
    while at < len(query):
        if query[at] == "\\" and quote != "`":
            at += 1
        elif query[at] == quote:
            return at + 1
        at += 1
    return len(query)


def _closed(piece: _Piece) -> bool:
    text = piece.text
    return len(text) > 1 and text.endswith(piece.quote) and _end(text + " ", 0) == len(text)
