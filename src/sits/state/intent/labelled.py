"""Labelled queries in a file, one JSON object a line: `text`, `domain` (`unknown` for none), and if they are there `lang`,
`split`, `group` and `hard`. Other keys are passed over, which is told, unless they look like one of these.

A file is read to its end, so that everything that is wrong with it is said at once, where it is and what to write instead: also
what only shows when labels are held against something, of lines with which something else is wrong, too.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.problem import did_you_mean, quoted
from sits.routing.intent.cut import cut

UNKNOWN = "unknown"
"""The one word for what is of no domain."""
Split = Literal["examples", "tune", "test"]
MOST_TOLD = 20
"""Lines that are named of those with something wrong; of more, how many there are."""
LINE = '{"text": "...", "domain": "..."}'


class Query(msgspec.Struct, frozen=True):
    """A query and what it wants."""

    text: Annotated[str, msgspec.Meta(min_length=1)]
    domain: Annotated[str, msgspec.Meta(min_length=1)]
    lang: str = ""
    split: Split = "test"
    group: str = ""
    """Queries that say the same (translations of each other) share it, so that none is tried on its twin."""
    hard: bool = False
    """Whether it is close to another domain on purpose."""


class Label(msgspec.Struct, frozen=True):
    """The domain that a line names, whatever else is wrong with it."""

    line: int
    domain: str
    text: str = ""
    """Empty where it has none."""
    split: Split | None = None
    """None where it is none of those."""


class Labelled(msgspec.Struct, frozen=True):
    """The queries of a file, and where each is."""

    path: str
    queries: tuple[Query, ...]
    lines: tuple[int, ...]
    faults: tuple[tuple[int, str], ...] = ()
    """What is wrong with other lines. `refuse` tells it."""
    labels: tuple[Label, ...] = ()
    """Of all lines that name a domain, those with something wrong among them."""
    foreign: tuple[tuple[int, str, int], ...] = ()
    """(first line, key, lines with it) of keys that are passed over."""

    def only(self, *splits: Split) -> Labelled:
        """Those of some splits, and the labels of those of which it cannot be told."""
        kept = [at for at, query in enumerate(self.queries) if query.split in splits]
        return msgspec.structs.replace(
            self,
            queries=tuple(self.queries[at] for at in kept),
            lines=tuple(self.lines[at] for at in kept),
            labels=tuple(label for label in self.labels if label.split is None or label.split in splits),
        )

    def refuse(self, faults: Sequence[tuple[int, str]] = (), whole: str = "") -> None:
        """Refuse it for what is wrong with some of its lines, if anything: what was when it was read, and these. `whole` is what
        is wrong with it as a whole.

        Raises:
            SitsError: `invalid_request`, with the lines.
        """
        _refuse(self.path, sorted([*self.faults, *faults], key=lambda one: one[0]), whole)

    def doubts(self) -> Iterator[str]:
        """What is odd about it and no reason to refuse it: the same text twice, under two domains or on both sides of a trial;
        keys that are passed over."""
        first: dict[str, Label] = {}
        twice, other = [], []
        for label in self.labels:
            text = label.text.strip().casefold()
            before = first.setdefault(text, label) if text else label
            if before.domain != label.domain:
                was = f"{quoted(before.domain)} in line {before.line}"
                twice.append((label.line, f"{quoted(label.text, 40)} is {quoted(label.domain)} here and {was}"))
            elif before.split and label.split and (before.split == "test") != (label.split == "test"):
                other.append(label.line)
        yield from _listed(self.path, twice)
        if other:
            are = "1 text of the split `test` is" if len(other) == 1 else f"{len(other):,} texts of the split `test` are"
            yield f"{self.path}:{other[0]}: {are} in the others, too: what is known beforehand is no trial"
        keys = []
        for line, key, count in self.foreign:
            lines = f" in {count:,} lines" if count > 1 else ""
            keys.append((line, f"{quoted(key, 40)} is no key of a query, and is passed over{lines}"))
        yield from _listed(self.path, keys)


_KEYS = Query.__struct_fields__
_convert = msgspec.convert


def parse(lines: Iterable[bytes], file: str = "line") -> list[Query]:
    """The queries of lines of JSON; empty lines are passed over.

    Raises:
        SitsError: `invalid_request`: some lines are none; the message names them as `file:number`.
    """
    found = _read(lines, file)
    found.refuse()
    return list(found.queries)


def load(path: Path) -> Labelled:
    """The queries of a file.

    Raises:
        SitsError: `invalid_request`: it cannot be read, some of its lines are no queries, or it has none.
    """
    found = look(path)
    found.refuse()
    return found


def look(path: Path) -> Labelled:
    """The same of a file that is to be refused when all that is wrong with it is known: whoever asks calls `refuse`.

    Raises:
        SitsError: `invalid_request`: it cannot be read, or there is nothing in it.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error.strerror}") from error
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SitsError(Code.INVALID_REQUEST, f"{path}: it is UTF-16; save it as UTF-8")
    found = _read(raw.removeprefix(codecs.BOM_UTF8).splitlines(), str(path))
    if not found.queries and not found.faults:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: no query; it has one a line, as {LINE}")
    return found


def domains_of(queries: Sequence[Query | Label]) -> tuple[str, ...]:
    """The domains that are named, in order of the alphabet, `unknown` left out."""
    return tuple(sorted({query.domain for query in queries} - {UNKNOWN}))


def nobodys(given: Labelled, domains: Iterable[str], whose: str) -> list[tuple[int, str]]:
    """What is wrong with labels that are none of these domains: they would be taken for unknown, or count as wrong whatever is
    said. `whose` says whose they would have to be."""
    names = sorted(domains)
    known = {*names, UNKNOWN}
    return [
        (label.line, f"`domain` {quoted(label.domain)} is nobody's: {whose} has it; {_instead(label.domain, names)}")
        for label in given.labels
        if label.domain not in known
    ]


def too_few(given: Labelled, fewest: int) -> list[tuple[int, str]]:
    """What is wrong with labels of a few queries to fit on, which are most likely misspelt: each where it is first."""
    counts = Counter(label.domain for label in given.labels)
    first: dict[str, int] = {}
    for label in given.labels:
        if label.split is not None:
            first.setdefault(label.domain, label.line)
    few = {name: count for name, count in counts.items() if name != UNKNOWN and count < fewest and name in first}
    others = [name for name in counts if name not in few]
    found = []
    for name, count in few.items():
        instead = did_you_mean(name, [*others, UNKNOWN])
        have = f"{count} quer{'y' if count == 1 else 'ies'}"
        needed = f"{quoted(name)} has {have} to fit on and tune with; {fewest} are needed"
        found.append((first[name], f"{needed}; {instead}" if instead else needed))
    return found


def _instead(name: str, names: Sequence[str]) -> str:
    hint = did_you_mean(name, [*names, UNKNOWN])
    if hint:
        return hint
    listed = ", ".join(quoted(one) for one in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"write one of {listed}, or {quoted(UNKNOWN)} for what is of none"


def _read(lines: Iterable[bytes], file: str) -> Labelled:
    queries: list[Query] = []
    numbers: list[int] = []
    faults: list[tuple[int, str]] = []
    labels: list[Label] = []
    foreign: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        told = _object(line)
        if isinstance(told, str):
            faults.append((number, told))
            continue
        wrong = list(_faults(told))
        faults += [(number, one) for one in wrong]
        labels += _label(number, told)
        for key in told.keys() - set(_KEYS):
            if not did_you_mean(key, _KEYS):
                first, count = foreign.get(key, (number, 0))
                foreign[key] = first, count + 1
        if not wrong:
            # Cut here, so that all who fit, tune and try read of a long one what a gateway does.
            fields = {key: value for key, value in told.items() if key in _KEYS} | {"text": cut(told["text"])}
            queries.append(_convert(fields, Query))
            numbers.append(number)
    keys = sorted((first, key, count) for key, (first, count) in foreign.items())
    return Labelled(file, tuple(queries), tuple(numbers), tuple(faults), tuple(labels), tuple(keys))


def _label(number: int, found: dict[str, Any]) -> Iterator[Label]:
    """What an object names as its domain, if anything."""
    domain, text, split = found.get("domain"), found.get("text"), found.get("split", "test")
    if isinstance(domain, str) and domain.strip():
        known = split if split in get_args(Split) else None
        yield Label(number, domain, text if isinstance(text, str) else "", known)


def _refuse(file: str, faults: Sequence[tuple[int, str]], whole: str = "") -> None:
    told = [*_listed(file, faults), *([f"{file}: {whole}"] if whole else [])]
    if told:
        raise SitsError(Code.INVALID_REQUEST, "\n".join(told))


def _listed(file: str, faults: Sequence[tuple[int, str]]) -> Iterator[str]:
    yield from (f"{file}:{number}: {what}" for number, what in faults[:MOST_TOLD])
    if len(faults) > MOST_TOLD:
        yield f"{file}: and {len(faults) - MOST_TOLD:,} more"


def _object(line: bytes) -> dict[str, Any] | str:
    """What is on a line; in words, why nothing is."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is no UTF-8; save the file as UTF-8"
    try:
        found = msgspec.json.decode(text)
    except RecursionError:
        return f"it is nested too deeply; write {LINE}"
    except msgspec.DecodeError:
        return f"it is no JSON{_from(text)}; write {LINE}, one object a line"
    if not isinstance(found, dict):
        return f"{quoted(found, 40)} is no object; write {LINE}"
    return found


def _from(text: str) -> str:
    """From where on it is none, as far as that can be told."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f" from column {error.pos + 1} on"
    except RecursionError:
        pass
    return ""


def _faults(found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an object, and what to write instead."""
    for key in found.keys() - set(_KEYS):
        meant = did_you_mean(key, _KEYS)
        if meant:
            yield f"{quoted(key)} is no key of a query; {meant}"
    for key, what in (("text", "what a user asks"), ("domain", f"the name of a domain, or {quoted(UNKNOWN)} for none")):
        value = found.get(key)
        if key not in found:
            yield f"`{key}` is missing; write {what}"
        elif not isinstance(value, str):
            yield f"`{key}` is {quoted(value, 40)}; write {what}, in quotes"
        elif not value.strip():
            yield f"`{key}` is empty; write {what}"
    for key in ("lang", "group"):
        if not isinstance(found.get(key, ""), str):
            yield f"`{key}` is {quoted(found[key], 40)}; write it in quotes"
    if not isinstance(found.get("hard", False), bool):
        yield f"`hard` is {quoted(found['hard'], 40)}; write true or false"
    split, splits = found.get("split", "test"), get_args(Split)
    if split not in splits:
        meant = did_you_mean(split, splits) if isinstance(split, str) else ""
        yield f"`split` is {quoted(split, 40)}; {meant or 'write one of ' + ', '.join(quoted(one) for one in splits)}"
