"""A decision record as a tree for the terminal."""

from __future__ import annotations

from sits.observe.record import Attempt, Record
from sits.observe.stamp import rfc3339

Branch = tuple[str, list[str]]
"""A line and the lines under it."""


def explain(record: Record) -> str:
    """What happened and why, in plain text; control characters that a client slipped in are shown, not obeyed."""
    outcome = f"{record.status} {record.code}".rstrip()
    head = f"{record.request_id}  {record.operation}{' stream' if record.stream else ''}  {outcome}"
    branches = [
        (f"asked for {_name(record.requested)} by {'key ' + record.key if record.key else 'nobody in particular'}", []),
        (f"arrived {rfc3339(record.time)}, trace {record.trace_id or '-'}, span {record.span_id or '-'}", []),
        (f"configuration {record.version} ({record.snapshot or '-'})", []),
        _chosen(record),
        _attempts(record),
        _answer(record),
        _time(record),
    ]
    lines = [head]
    for place, (line, below) in enumerate(branches):
        last = place == len(branches) - 1
        lines.append(("└─ " if last else "├─ ") + line)
        for depth, leaf in enumerate(below):
            lines.append(("   " if last else "│  ") + ("└─ " if depth == len(below) - 1 else "├─ ") + leaf)
    return "".join(_visible(character) for character in "\n".join(lines)) + "\n"


def _chosen(record: Record) -> Branch:
    leaves = [f"left out {target}: {why}" for target, why in record.filtered]
    if record.draw is not None:
        total = sum(weight for _, weight in record.draw.weights)
        shares = ", ".join(f"{target} {weight:g}" for target, weight in record.draw.weights)
        leaves.append(f"drew {record.draw.chosen} with {record.draw.number:.4f} of {total:g} ({shares})")
    if record.cache:
        leaves.append(_CACHE.get(record.cache, record.cache))
    if record.priority is not None:
        waited = f", waited {record.queued_ms:.2f} ms for its turn" if record.queued_ms else ""
        leaves.append(f"class P{record.priority}{waited}")
    if record.colour or record.experiment:
        leaves.append(f"colour {record.colour or 'stable'}{', experiment ' + record.experiment if record.experiment else ''}")
    return f"route {_name(record.route)}", leaves


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


def _attempts(record: Record) -> Branch:
    if not record.attempts:
        return "no attempt was made", []
    return f"{len(record.attempts)} attempt{'s' if len(record.attempts) > 1 else ''}", [_attempt(a) for a in record.attempts]


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


def _answer(record: Record) -> Branch:
    if record.rung:
        age = "" if record.rung_age is None else f", {record.rung_age} s old"
        what = "a kept answer" if record.rung == "cache" else "the route's template"
        return f"answered by {what}{age}, instead of {record.rung_because}; {record.bytes_out} bytes out", []
    if not record.target:
        return f"nobody answered; {record.bytes_in} bytes in, {record.bytes_out} out", []
    leaves = []
    if record.usage is not None:
        usage = record.usage
        figures = (("input", usage.input), ("cached", usage.cached), ("output", usage.output), ("reasoning", usage.reasoning))
        said = ", ".join(f"{value} {name}" for name, value in figures if value is not None) or "none said"
        leaves.append(f"tokens: {said}{' (estimated)' if usage.estimated else ''}")
    if record.skipped:
        leaves.append(f"{record.skipped} unreadable stream events left out")
    finish = f", finish {record.finish}" if record.finish else ""
    return (
        f"answered by {record.target} as {_name(record.served)}{finish}; {record.bytes_in} bytes in, {record.bytes_out} out",
        leaves,
    )


def _time(record: Record) -> Branch:
    parts = record.anatomy
    if parts is None:
        return "time not taken", []
    names = ("gateway", "queue", "retry", "connect", "first_token", "decode")
    shares = [(name, getattr(parts, name)) for name in names]
    return f"{parts.total * 1e3:.2f} ms", [f"{name:<11} {value * 1e3:>10.3f} ms" for name, value in shares if value]


def _name(name: str) -> str:
    return name or "-"


def _visible(character: str) -> str:
    return character if character == "\n" or character.isprintable() else character.encode("unicode_escape").decode()
