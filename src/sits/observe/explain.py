"""A decision record as a tree for the terminal: what was asked, what was understood of it, who could have answered and what was
for each, who was chosen and how, who was tried, and what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

import msgspec

from sits.observe.record import Attempt, Draw, Passed, PieceRead, Record, Split, Wish
from sits.observe.stamp import rfc3339
from sits.observe.wording import milliseconds, share
from sits.routing.policies.base import UNSEEN
from sits.routing.scheduling.away import Away

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
        *([Tree(_BEHIND.get(record.behind, f"no client waited: {record.behind}"))] if record.behind else []),
        Tree(f"arrived {rfc3339(record.time)}, trace {record.trace_id or '-'}, span {record.span_id or '-'}"),
        Tree(f"configuration {record.version} ({record.snapshot or '-'})"),
        *_understood(record),
        _chosen(record),
        *([_split(record.split)] if record.split is not None else []),
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
    below = leaves(_rule_passed(one) for one in record.passed)
    below += leaves(_left_out(target, why) for target, why in dict.fromkeys(map(tuple, record.filtered)))
    below += leaves(f"filter {name} would have left nobody, and did not count" for name in record.waived)
    below += leaves(_away(one) for one in record.away)
    if record.draw is not None:
        if record.draw.scores:
            below.append(_candidates(record.draw, record.away))
        below.append(Tree(_draw(record.draw) + _undone(record.draw.chosen, record)))
    if record.cache:
        below.append(Tree(_CACHE.get(record.cache, record.cache)))
    if record.priority is not None:
        waited = f", waited {record.queued_ms:.2f} ms for its turn" if record.queued_ms else ""
        below.append(Tree(f"class P{record.priority}{waited}"))
    if record.colour or record.experiment:
        experiment = ", experiment " + record.experiment if record.experiment else ""
        below.append(Tree(f"colour {record.colour or 'stable'}{experiment}"))
    return Tree(f"route {_name(record.route)}{', rule ' + record.rule if record.rule else ''}", below)


def _undone(chosen: str, record: Record) -> str:
    """That whoever was chosen is not who is asked first, and who is: what was found out since comes before that in the tree."""
    said = [why for target, why in record.filtered if target == chosen]
    if not said:
        return ""
    undone = "put behind others" if all(why.startswith(LATER) for why in said) else "left out"
    first = _first_asked(record)
    return f"; then it was {undone}{f', and {first} was asked first' if first not in ('', chosen) else ''}"


def _first_asked(record: Record) -> str:
    """Whom anything was asked of before all others; nothing where nobody was asked."""
    for one in record.split.asked if record.split is not None else ():
        return one.failed[0] if one.failed else one.target
    return record.attempts[0].target if record.attempts else ""


def _rule_passed(passed: Passed) -> str:
    """Why a rule did not count."""
    said = f"passed over rule {passed.rule}: "
    if passed.clause == "p99BelowMs":
        measured, limit = milliseconds(passed.measured), f"{passed.limit:,.6g}"
        return f"{said}p99 is {measured} ms, must be below {limit} ({passed.clause}; of {passed.seen} answers)"
    if passed.clause == "adapterLoadsAbove":
        measured, limit = share(passed.measured), share(passed.limit)
        return f"{said}{measured} of adapter loads went well, must be above {limit} ({passed.clause}; of {passed.seen} loads)"
    if passed.clause == "again":
        return f"{said}it did not hold, {passed.limit:g} requests try it again, and {passed.measured:g} of them have come back"
    return f"{said}it did not hold when this was recorded"


def _away(one: Away) -> str:
    """Who had nothing to say, and since when."""
    since = f", since {rfc3339(one.since)}" if one.since else ""
    return f"{one.kind} {one.name} said nothing, and did not count: {one.why}{since}"


def _left_out(target: str, why: str) -> str:
    return f"asked later {target}: {why.removeprefix(LATER)}" if why.startswith(LATER) else f"left out {target}: {why}"


def _candidates(draw: Draw, away: Iterable[Away]) -> Tree:
    """What was for each, best first; of a score that said nothing it is not told that it gave 0."""
    whole = sum(score.weight for score in draw.scores) or 1.0
    silent = {one.name for one in away if one.kind == "score"}
    weights = ", ".join(f"{score.name} {share(score.weight / whole, 0)}" for score in draw.scores)
    rows = []
    for index in sorted(range(len(draw.weights)), key=lambda index: -draw.totals[index] * draw.weights[index][1]):
        name, weight = draw.weights[index]
        given = ", ".join(
            f"{score.name} {'nothing' if score.name in silent else format(score.given[index], '.1f')}" for score in draw.scores
        )
        times = "" if len({one for _, one in draw.weights}) == 1 else f"; times its weight, {weight:g}"
        rows.append(f"{name}: {draw.totals[index]:.2f} = {given}{times}")
    return Tree(f"scores, of 100 each: {weights}", leaves(rows))


def _draw(draw: Draw) -> str:
    """How the first one was chosen."""
    by = f", by {draw.policy}" if draw.policy not in ("weighted", "scores") else ""
    leaning = f"; only those of {draw.leaning} came first" if draw.leaning else ""
    if draw.explored:
        return f"drew {draw.chosen} alike from all {len(draw.weights)}, as {share(draw.explore, 0)} are, to learn{leaning}"
    if len(draw.weights) == 1:
        return f"took {draw.chosen}: there was nobody else to choose from"
    if draw.policy == "scores":
        return f"chose {draw.chosen}: the highest score{leaning}" if not draw.leaning else f"chose {draw.chosen}{leaning}"
    if draw.leaning and not draw.seen:
        return f"took {draw.chosen}: of those who were left the only one of {draw.leaning}"
    if not draw.seen or draw.policy in ("weighted", "dynamic-weights"):
        shares = [*zip((name for name, _ in draw.weights), draw.seen or (weight for _, weight in draw.weights), strict=True)]
        total = sum(part for _, part in shares)
        words = ", ".join(f"{name} {part:g}" for name, part in shares)
        return f"drew {draw.chosen} with {draw.number * total:.6g} of {total:g} ({words}){by}{leaning}"
    costs = ", ".join(f"{name} {_cost(cost)}" for (name, _), cost in zip(draw.weights, draw.seen, strict=True))
    if draw.policy == "hash":
        near = f"the nearest with room from {draw.number:.4f} on the ring{_RING.get(draw.by, '')} (steps: {costs})"
        return f"chose {draw.chosen}: {near}{leaning}"
    return f"chose {draw.chosen}: the least cost ({costs}){by}{_read(draw)}{leaning}"


def _read(draw: Draw) -> str:
    """Who had read how much of the prompt before."""
    known = [f"{name} {share(warm / draw.size, 0)}" for (name, _), warm in zip(draw.weights, draw.warm, strict=False) if warm]
    return f"; of the prompt had been read before: {', '.join(known)}" if known else ""


def _cost(cost: float) -> str:
    return "not looked at" if cost >= UNSEEN else f"{cost:.4g}"


_RING = {
    "session": ", where its session is",
    "key": ", where its API key is",
    "header": ", where the route's header is",
    "model": ", where the model is that it asks for",
    "prefix": ", where its beginning is",
    "chance": ", by chance: it says nothing to go by",
}
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


_FROM_CACHE = frozenset(("hit", "semantic", "flight", "stale", "semantic-stale"))
_BEHIND = {
    "piece": "no client waited: it is a piece of a longer prompt, in the same trace",
    "shadow": "no client waited: it is a shadow of another request",
    "renewal": "no client waited: it renews an answer of the cache",
    "later": "no client waited: it had been put off",
    "probe": "no client waited: the gateway asked to see how the model does",
    "judge": "no client waited: the gateway asked how good another answer is",
}


def _split(split: Split) -> Tree:
    """How the prompt was read, piece by piece."""
    because = "its route reads prompts of this length so" if split.because == "stage" else "it fits nobody whole"
    room = f"a window of {split.window:,} tokens has {split.headroom:,} for the answer and {split.notes:,} for notes"
    count = len(split.pieces)
    if not count:
        return Tree(f"to be read in pieces, as {because}: {room}; it was not cut", leaves(_piece(one, 0) for one in split.asked))
    if count == 1:
        return Tree(f"to be read in pieces, as {because}; but one piece of {split.pieces[0]:,} tokens holds it, and {room}")
    sizes = ", ".join(f"{size:,}" for size in split.pieces)
    below = [_piece(one, count) for one in split.asked]
    if split.asked and split.asked[-1].number == count - 1 and _noted(split.asked[-1]):
        below.append(
            f"piece {count} of {count}: {split.pieces[-1]:,} tokens, with the notes of all before, in the attempts that follow"
        )
    head = f"read in {count} pieces of {sizes} tokens, as {because}; {room}, and a piece {split.size:,}"
    return Tree(head, leaves(below))


def _noted(one: PieceRead) -> bool:
    return one.outcome == "ok" and not one.refused


def _piece(one: PieceRead, count: int) -> str:
    failed = f" after {', '.join(one.failed)} failed" if one.failed else ""
    who = f"{one.target or 'nobody'}{failed}"
    known = one.input is not None or one.output is not None
    about = " (estimated)" if one.estimated else ""
    took = f"{one.ms:.2f} ms, record {one.request_id}"
    asked = f"{_figure(one.input)} tokens asked{about}" if known else "tokens not told"
    if not _noted(one):
        what = "made no notes" if one.outcome == "ok" else one.outcome
        return f"piece {one.number} of {count}: {who}: {what}; {took}"
    carried = f"{_figure(one.output)} tokens of notes carried on to piece {one.number + 1}"
    return f"piece {one.number} of {count}: {who}: {asked}, {carried}; {took}"


def _figure(tokens: int | None) -> str:
    return f"{tokens:,}" if tokens is not None else "unknown"


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
    size = f"{record.bytes_in} bytes in, {record.bytes_out} out"
    if not record.target:
        kept = record.cache in _FROM_CACHE and not record.code
        return Tree(f"{'answered by the cache' if kept else 'nobody answered'}; {size}")
    below = []
    if record.usage is not None:
        usage = record.usage
        figures = (("input", usage.input), ("cached", usage.cached), ("output", usage.output), ("reasoning", usage.reasoning))
        said = ", ".join(f"{value} {name}" for name, value in figures if value is not None) or "none said"
        below.append(f"tokens: {said}{' (estimated)' if usage.estimated else ''}")
    if dollars is not None:
        below.append("cost less than $0.000001" if 0.0 < dollars < 5e-7 else f"cost ${dollars:.6f}")
    if record.skipped:
        below.append(f"{record.skipped} unreadable stream events left out")
    finish = f", finish {record.finish}" if record.finish else ""
    who = f"{record.target} as {_name(record.served)}"
    if record.code:
        return Tree(f"ended with {record.code}; {who} was asked last{finish}; {size}", leaves(below))
    return Tree(f"answered by {who}{finish}; {size}", leaves(below))


_SHORTEST = 5e-7
"""Seconds that are told of: less is 0.000 ms."""


def _time(record: Record) -> Tree:
    parts = record.anatomy
    if parts is None:
        return Tree("time not taken")
    names = ("gateway", "queue", "retry", "connect", "first_token", "decode", "aside")
    # What is left over may be off by the last bit of a float, to either side: that is no time.
    shares = [(name, getattr(parts, name)) for name in names]
    told = (f"{name:<11} {value * 1e3:>10.3f} ms" for name, value in shares if abs(value) >= _SHORTEST)
    return Tree(f"{parts.total * 1e3:.2f} ms", leaves(told))


def _name(name: str) -> str:
    return name or "-"


def _plain(text: str) -> str:
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
