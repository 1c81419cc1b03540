"""Whether what a plugin was shown is as it was: it may look at a request and at the candidates, and change neither.

Looked at in sampled calls only, for it takes a microsecond for each candidate. What was changed there is put back.

What a plugin has put there may have code of its own, which is not run: nothing is compared but what is of the very type that was
there before, and is a number or a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import Candidate, Facts


def _attributes(kind: type, *but: str) -> tuple[str, ...]:
    """The public attributes of a class with slots, compiled or not."""
    kinds = (GetSetDescriptorType, MemberDescriptorType)
    return tuple(
        sorted(name for name, value in vars(kind).items() if isinstance(value, kinds) and name[0] != "_" and name not in but)
    )


OF_CANDIDATE = _attributes(Candidate)
OF_STATE = _attributes(TargetState)
OF_FACTS = _attributes(Facts, "beginnings")
"""`beginnings` is filled in by whoever asks for them first."""
_PLAIN: frozenset[type] = frozenset((str, bytes, int, float, bool, type(None)))
_GONE = object()
_candidate: Callable[[Any], tuple[Any, ...]] = attrgetter(*OF_CANDIDATE)
_state: Callable[[Any], tuple[Any, ...]] = attrgetter(*OF_STATE)
_facts: Callable[[Any], tuple[Any, ...]] = attrgetter(*OF_FACTS)


class Untouched:
    """How a request and candidates are now."""

    __slots__ = ("_candidates", "_facts", "_headers", "_labels", "_request", "_seen", "_states")

    def __init__(self, facts: Facts, candidates: Sequence[Candidate]) -> None:
        self._facts: Facts = facts
        self._candidates: Sequence[Candidate] = candidates
        self._request: tuple[Any, ...] = _facts(facts)
        self._headers: dict[bytes, bytes] = dict(facts.headers)
        self._seen: list[tuple[Any, ...]] = [_candidate(one) for one in candidates]
        self._states: list[tuple[Any, ...]] = [_state(one.state) for one in candidates]
        self._labels: list[dict[str, str]] = [dict(one.labels) for one in candidates]

    def restored(self) -> str:
        """Puts back what was changed. Empty, or what that was."""
        changed = _put_back(self._facts, OF_FACTS, self._request, "")
        if not _same(self._facts.headers, self._headers):
            self._facts.headers = self._headers
            changed = "headers"
        if changed:
            return f"changed `{changed}` of the request"
        found = ""
        for one, seen, state, labels in zip(self._candidates, self._seen, self._states, self._labels, strict=True):
            changed = _put_back(one, OF_CANDIDATE, seen, "") or _put_back(one.state, OF_STATE, state, "state.")
            if not _same(one.labels, labels):
                one.labels = labels
                changed = "labels"
            if changed:
                found = f"changed `{changed}` of candidate {one.name}"
        return found


def _put_back(one: Any, names: Sequence[str], before: tuple[Any, ...], prefix: str) -> str:
    changed = ""
    for name, value in zip(names, before, strict=True):
        now = getattr(one, name, _GONE)
        if now is not value and not _equal(now, value):
            setattr(one, name, value)
            changed = prefix + name
    return changed


def _equal(now: object, before: object) -> bool:
    kind = type(before)
    return type(now) is kind and kind in _PLAIN and now == before


def _same(now: Mapping[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether it has what it had, in that order."""
    if len(now) != len(before):
        return False
    if all(map(is_, now.values(), before.values())) and all(map(is_, now, before)):
        return True
    has, had = [*now, *now.values()], [*before, *before.values()]
    return all(one is old or _equal(one, old) for one, old in zip(has, had, strict=True))
