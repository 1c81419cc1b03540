"""The language of probes: a question to the figures of an experiment. This is its grammar; what the names mean: docs/chaos.md.

query     = product { ("+" | "-") product }
product   = factor { ("*" | "/") factor }
factor    = NUMBER | "-" factor | "(" query ")" | ( call | selection ) [ "over" PHASE ]
call      = FUNCTION "(" selection { "," selection } ")"
selection = NAME [ "{" [ label { "," label } ] "}" ]
label     = NAME ( "=" | "!=" | "=~" | "!~" ) STRING
PHASE     = "before" | "during" | "after" | "run"

ratio(sits_requests_total{code=""}, sits_requests_total) over during
p99(gen_ai_server_time_to_first_token_seconds{route="chat"}) * 1000
success_share{load="paying"} over after
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sits.resources.problem import did_you_mean

FUNCTIONS: dict[str, int] = {
    "delta": 1, "rate": 1, "sum": 1, "max": 1, "min": 1, "mean": 1, "count": 1, "p50": 1, "p90": 1, "p95": 1, "p99": 1,
    "ratio": 2,
}  # fmt: skip
"""Name -> how many selections it takes."""
PHASES = ("before", "during", "after", "run")
LONGEST = 2000
"""Characters of a query."""
DEEPEST = 50
"""Brackets in brackets."""
Phase = Literal["before", "during", "after", "run", ""]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<sign>!=|=~|!~|[-+*/(){},=]))'
)


class QueryError(ValueError):
    """A query that cannot be read; `position` counts characters from 1."""

    def __init__(self, message: str, position: int, hint: str = "") -> None:
        super().__init__(f"{message} at character {position}" + (f"; {hint}" if hint else ""))
        self.position = position
        self.hint = hint


class Match(msgspec.Struct, frozen=True):
    """What a label must be like."""

    label: str
    sign: Literal["=", "!=", "=~", "!~"]
    value: str
    position: int

    def holds(self, value: str) -> bool:
        """Whether a series whose label has this value is meant; a label that is not there is empty."""
        if self.sign in ("=", "!="):
            return (value == self.value) is (self.sign == "=")
        return (re.fullmatch(self.value, value) is not None) is (self.sign == "=~")


class Selection(msgspec.Struct, frozen=True):
    """All series of a name whose labels match."""

    name: str
    matches: tuple[Match, ...]
    position: int


class Number(msgspec.Struct, frozen=True):
    value: float


class Call(msgspec.Struct, frozen=True):
    """A function over a phase; `function` is empty for a figure that is named alone."""

    function: str
    selections: tuple[Selection, ...]
    phase: Phase
    position: int


class Operation(msgspec.Struct, frozen=True):
    sign: Literal["+", "-", "*", "/"]
    left: Node
    right: Node


Node = Number | Call | Operation


def parse(text: str) -> Node:
    """The query as a tree.

    Raises:
        QueryError: it is none; says where and what was expected.
    """
    if len(text) > LONGEST:
        raise QueryError(f"a query has {LONGEST} characters at the most; this one ends", LONGEST + 1)
    reader = _Reader(text)
    node = reader.query(0)
    reader.end()
    return node


def selections(node: Node) -> list[Selection]:
    """Every selection in a query."""
    if isinstance(node, Call):
        return list(node.selections)
    if isinstance(node, Operation):
        return [*selections(node.left), *selections(node.right)]
    return []


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    out: list[_Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            rest = text[at:]
            if rest.strip():
                start = at + len(rest) - len(rest.lstrip()) + 1
                raise QueryError(f"{text[start - 1]!r} is not understood", start)
            break
        kind = found.lastgroup or ""
        out.append(_Token(kind, found[kind], found.start(kind) + 1))
        at = found.end()
    out.append(_Token("end", "the end", len(text) + 1))
    return out


class _Reader:
    """Recursive descent: one method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> str:
        return self._take().text if self._next.kind in ("sign", "name") and self._next.text in texts else ""

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._wrong(f"{text!r}")

    def _wrong(self, expected: str, hint: str = "") -> QueryError:
        return QueryError(f"{expected} is expected, not {self._next.text}", self._next.position, hint)

    def end(self) -> None:
        if self._next.kind != "end":
            raise self._wrong("the end, or + - * /")

    def query(self, depth: int) -> Node:
        left = self._product(depth)
        while sign := self._accept("+", "-"):
            left = Operation("+" if sign == "+" else "-", left, self._product(depth))
        return left

    def _product(self, depth: int) -> Node:
        left = self._factor(depth)
        while sign := self._accept("*", "/"):
            left = Operation("*" if sign == "*" else "/", left, self._factor(depth))
        return left

    def _factor(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise QueryError("too many brackets", self._next.position)
        if self._accept("-"):
            return Operation("-", Number(0.0), self._factor(depth + 1))
        if self._accept("("):
            inner = self.query(depth + 1)
            self._expect(")")
            return inner
        if self._next.kind == "number":
            return Number(float(self._take().text))
        if self._next.kind != "name":
            raise self._wrong("a number, a figure or a function")
        token = self._next
        follows = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if follows.kind == "sign" and follows.text == "(":
            function, chosen = token.text, self._call()
        else:
            function, chosen = "", (self._selection(),)
        return Call(function, chosen, self._phase(), token.position)

    def _call(self) -> tuple[Selection, ...]:
        token = self._take()
        if token.text not in FUNCTIONS:
            raise QueryError(f"there is no function {token.text!r}", token.position, did_you_mean(token.text, FUNCTIONS))
        self._expect("(")
        chosen = [self._selection()]
        while self._accept(","):
            chosen.append(self._selection())
        self._expect(")")
        wanted = FUNCTIONS[token.text]
        if len(chosen) != wanted:
            raise QueryError(f"{token.text} takes {wanted} of these, not {len(chosen)},", token.position)
        return tuple(chosen)

    def _selection(self) -> Selection:
        if self._next.kind != "name":
            raise self._wrong("the name of a figure")
        token = self._take()
        matches: list[Match] = []
        if self._accept("{") and not self._accept("}"):
            matches.append(self._match())
            while self._accept(","):
                matches.append(self._match())
            self._expect("}")
        return Selection(token.text, tuple(matches), token.position)

    def _match(self) -> Match:
        if self._next.kind != "name":
            raise self._wrong("the name of a label")
        label = self._take()
        sign = self._accept("=", "!=", "=~", "!~")
        if not sign:
            raise self._wrong("one of = != =~ !~")
        if self._next.kind != "string":
            raise self._wrong("a text in double quotes")
        quoted = self._take()
        value = re.sub(r"\\(.)", r"\1", quoted.text[1:-1]) if sign in ("=", "!=") else quoted.text[1:-1]
        if sign in ("=~", "!~"):
            try:
                re.compile(value)
            except re.error as error:
                raise QueryError(f"{value!r} is no regular expression ({error})", quoted.position) from error
        return Match(label.text, sign, value, label.position)  # type: ignore[arg-type]  # one of the four

    def _phase(self) -> Phase:
        if not self._accept("over"):
            return ""
        token = self._take()
        if token.text not in PHASES:
            hint = did_you_mean(token.text, PHASES) or f"one of {', '.join(PHASES)}"
            raise QueryError(f"there is no phase {token.text!r}", token.position, hint)
        return token.text  # type: ignore[return-value]  # one of PHASES
