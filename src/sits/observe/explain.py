"""A decision record as a tree for the terminal: what was asked, what was understood of it, who could have answered and what was
for each, who was chosen and how, who was tried, and what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

import msgspec

from sits.observe.record import Attempt, Draw, Record, Wish
from sits.observe.stamp import rfc3339
from sits.routing.policies.base import UNSEEN

WIDTH = 130
"""Columns; longer lines go on in the next one. Chinese characters take two."""
NARROWEST = 20
LATER = "is asked later: "
"""How a reason begins in `Record.filtered` where a target was not left out, but put behind others that were chosen after it."""


class Tree(msgspec.Struct, frozen=True):
    """A line and what is under it."""

    line: str
    below: list[Tree] = []


def leaves(lines: Iterable[str]) -> list[Tree]:
    """Lines with nothing under them."""
    return [Tree(line) for line in lines]


def explain(record: Record, width: int = WIDTH, dollars: float | None = None) -> str:
    """What happened and why, in plain text; control characters that a client slipped in are shown, not obeyed. `dollars` is what
    it cost, where somebody knows."""
    outcome = f"{record.status} {record.code}".rstrip()
    head = f"{record.request_id}  {record.operation}{' stream' if record.stream else ''}  {outcome}"
    branches = [
        Tree(f"asked for {_name(record.requested)} by {'key ' + record.key if record.key else 'nobody in particular'}"),
        Tree(f"arrived {rfc3339(record.time)}, trace {record.trace_id or '-'}, span {record.span_id or '-'}"),
        Tree(f"configuration {record.version} ({record.snapshot or '-'})"),
        *_understood(record),
        _chosen(record),
        _attempts(record),
        _answer(record, dollars),
        _time(record),
    ]
    return "\n".join([*_wrapped(_plain(head), width), *_drawn(branches, "", width)]) + "\n"


def _drawn(branches: list[Tree], before: str, width: int) -> Iterator[str]:
    for place, tree in enumerate(branches):
        last = place == len(branches) - 1
        under = before + ("   " if last else "│  ")
        lines = _wrapped(_plain(tree.line), max(NARROWEST, width - len(before) - 6))  # what goes on stands further in
        yield before + ("└─ " if last else "├─ ") + lines[0]
        for more in lines[1:]:
            yield under + ("│  " if tree.below else "   ") + more
        yield from _drawn(tree.below, under, width)


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of so many columns, cut at spaces where there are any."""
    lines, start, columns, space = [], 0, 0, -1
    for place, character in enumerate(text):
        columns += 2 if east_asian_width(character) in "WF" else 1
        if character == " ":
            space = place
        if columns > width and place > start:
            end = space if space > start else place
            lines.append(text[start:end].rstrip())
            start = end + 1 if end == space else end
            columns = sum(2 if east_asian_width(one) in "WF" else 1 for one in text[start : place + 1])
            space = -1
    lines.append(text[start:])
    return lines


def _understood(record: Record) -> Iterator[Tree]:
    """What was found out about the request, where its route looks at that."""
    wish = record.wish
    if wish is None:
        return
    facts = []
    if wish.domain:
        sure = f" ({wish.confidence:.2f}, {wish.stage or 'nobody says by whom'})" if wish.confidence is not None else ""
        facts.append(f"domain {wish.domain}{sure}")
    if wish.complexity is not None:
        facts.append(f"complexity {wish.complexity:.2f}{', tier ' + wish.tier if wish.tier else ''}")
    if wish.arm:
        facts.append(_learned(wish))
    if wish.tokens:
        facts.append(f"{wish.tokens} tokens of prompt{'' if wish.exact else ', not counted exactly'}")
    if wish.region:
        facts.append(f"region {wish.region}")
    if wish.adapter:
        facts.append(f"adapter {wish.adapter}")
    if wish.qps:
        facts.append(f"{wish.qps:g} requests a second on this route")
    yield Tree("understood", leaves(facts)) if facts else Tree("nothing was to be understood of it")


def _learned(wish: Wish) -> str:
    """What was drawn to be learned from, and how it could have come out."""
    load = f", load {wish.load:.2f}" if wish.load is not None else ""
    if wish.chance >= 1.0:
        return f"took {wish.arm}, as was learned{load}"
    others = ", ".join(f"{arm} {chance:.3g}" for arm, chance in wish.chances if arm != wish.arm)
    best = "the best so far" if wish.best == wish.arm else f"to learn; the best so far is {wish.best}"
    return f"drew {wish.arm} with a chance of {wish.chance:.3g} ({others}), {best}{load}"


def _chosen(record: Record) -> Tree:
    below = leaves(_passed_over(target, why) for target, why in dict.fromkeys(map(tuple, record.filtered)))
    if record.draw is not None:
        if record.draw.scores:
            below.append(_candidates(record.draw))
        below.append(Tree(_draw(record.draw)))
    if record.cache:
        below.append(Tree(_CACHE.get(record.cache, record.cache)))
    if record.priority is not None:
        waited = f", waited {record.queued_ms:.2f} ms for its turn" if record.queued_ms else ""
        below.append(Tree(f"class P{record.priority}{waited}"))
    if record.colour or record.experiment:
        experiment = ", experiment " + record.experiment if record.experiment else ""
        below.append(Tree(f"colour {record.colour or 'stable'}{experiment}"))
    return Tree(f"route {_name(record.route)}{', rule ' + record.rule if record.rule else ''}", below)


def _passed_over(target: str, why: str) -> str:
    return f"asked later {target}: {why.removeprefix(LATER)}" if why.startswith(LATER) else f"left out {target}: {why}"


def _candidates(draw: Draw) -> Tree:
    """What was for each, best first."""
    whole = sum(score.weight for score in draw.scores) or 1.0
    weights = ", ".join(f"{score.name} {score.weight / whole:.0%}" for score in draw.scores)
    rows = []
    for index in sorted(range(len(draw.weights)), key=lambda index: -draw.totals[index] * draw.weights[index][1]):
        name, weight = draw.weights[index]
        given = ", ".join(f"{score.name} {score.given[index]:.1f}" for score in draw.scores)
        times = "" if len({one for _, one in draw.weights}) == 1 else f"; times its weight, {weight:g}"
        rows.append(f"{name}: {draw.totals[index]:.2f} = {given}{times}")
    return Tree(f"scores, of 100 each: {weights}", leaves(rows))


def _draw(draw: Draw) -> str:
    """How the first one was chosen."""
    by = f", by {draw.policy}" if draw.policy not in ("weighted", "scores") else ""
    leaning = f"; only those of {draw.leaning} came first" if draw.leaning else ""
    if draw.explored:
        return f"drew {draw.chosen} alike from all {len(draw.weights)}, as {draw.explore:.0%} are, to learn{leaning}"
    if draw.policy == "scores":
        return f"chose {draw.chosen}: the highest score{leaning}" if not draw.leaning else f"chose {draw.chosen}{leaning}"
    if not draw.seen or draw.policy in ("weighted", "dynamic-weights"):
        shares = [*zip((name for name, _ in draw.weights), draw.seen or (weight for _, weight in draw.weights), strict=True)]
        total = sum(share for _, share in shares)
        words = ", ".join(f"{name} {share:g}" for name, share in shares)
        return f"drew {draw.chosen} with {draw.number * total:.6g} of {total:g} ({words}){by}{leaning}"
    costs = ", ".join(f"{name} {_cost(cost)}" for (name, _), cost in zip(draw.weights, draw.seen, strict=True))
    if draw.policy == "hash":
        return f"chose {draw.chosen}: the nearest with room from {draw.number:.4f} on the ring (steps: {costs}){leaning}"
    return f"chose {draw.chosen}: the least cost ({costs}){by}{_read(draw)}{leaning}"


def _read(draw: Draw) -> str:
    """Who had read how much of the prompt before."""
    known = [f"{name} {warm / draw.size:.0%}" for (name, _), warm in zip(draw.weights, draw.warm, strict=False) if warm]
    return f"; of the prompt had been read before: {', '.join(known)}" if known else ""


def _cost(cost: float) -> str:
    return "not looked at" if cost >= UNSEEN else f"{cost:.4g}"


_CACHE = {
    "hit": "answered by the cache: the same question",
    "semantic": "answered by the cache: other words for the same question",
    "flight": "answered by an equal question that was under way",
    "stale": "answered by the cache: the same question, gone stale",
    "semantic-stale": "answered by the cache: other words for the same question, gone stale",
    "renewal": "asked anew behind an answer that had gone stale; no client waited",
    "miss": "the cache had no answer",
    "bypass": "nothing for the cache",
}


def _attempts(record: Record) -> Tree:
    if not record.attempts:
        return Tree("no attempt was made")
    head = f"{len(record.attempts)} attempt{'s' if len(record.attempts) > 1 else ''}"
    return Tree(head, leaves(_attempt(attempt) for attempt in record.attempts))


def _attempt(attempt: Attempt) -> str:
    times = [
        f"{name} {value:.2f} ms"
        for name, value in (
            ("connect", attempt.connect_ms),
            ("headers", attempt.headers_ms),
            ("first", attempt.first_ms),
            ("total", attempt.total_ms),
        )
        if value is not None
    ]
    facts = [
        *([_KINDS.get(attempt.kind, attempt.kind)] if attempt.kind != "first" else []),
        attempt.outcome or "unfinished",
        *([f"status {attempt.status}"] if attempt.status else []),
        *times,
        *(["reused connection"] if attempt.reused else []),
        f"{attempt.pieces} piece{'' if attempt.pieces == 1 else 's'}",
    ]
    return f"{attempt.target}: {', '.join(facts)}{' - ' + attempt.why if attempt.why else ''}"


_KINDS = {
    "next": "asked next",
    "again": "asked again",
    "larger": "asked for its larger context",
    "hedge": "asked beside a slow one",
    "continuation": "went on with the answer",
}


def _answer(record: Record, dollars: float | None) -> Tree:
    if record.rung:
        age = "" if record.rung_age is None else f", {record.rung_age} s old"
        what = "a kept answer" if record.rung == "cache" else "the route's template"
        return Tree(f"answered by {what}{age}, instead of {record.rung_because}; {record.bytes_out} bytes out")
    if not record.target:
        return Tree(f"nobody answered; {record.bytes_in} bytes in, {record.bytes_out} out")
    below = []
    if record.usage is not None:
        usage = record.usage
        figures = (("input", usage.input), ("cached", usage.cached), ("output", usage.output), ("reasoning", usage.reasoning))
        said = ", ".join(f"{value} {name}" for name, value in figures if value is not None) or "none said"
        below.append(f"tokens: {said}{' (estimated)' if usage.estimated else ''}")
    if dollars is not None:
        below.append(f"cost ${dollars:.6f}")
    if record.skipped:
        below.append(f"{record.skipped} unreadable stream events left out")
    finish = f", finish {record.finish}" if record.finish else ""
    return Tree(
        f"answered by {record.target} as {_name(record.served)}{finish}; {record.bytes_in} bytes in, {record.bytes_out} out",
        leaves(below),
    )


def _time(record: Record) -> Tree:
    parts = record.anatomy
    if parts is None:
        return Tree("time not taken")
    names = ("gateway", "queue", "retry", "connect", "first_token", "decode", "aside")
    shares = [(name, getattr(parts, name)) for name in names]
    return Tree(f"{parts.total * 1e3:.2f} ms", leaves(f"{name:<11} {value * 1e3:>10.3f} ms" for name, value in shares if value))


def _name(name: str) -> str:
    return name or "-"


def _plain(text: str) -> str:
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
