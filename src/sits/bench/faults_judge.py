"""Holds what came against what is right, cell by cell. Pure: everything that is looked at is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sits.bench.faults_cells import OWN, TOKENS, Cell
from sits.bench.faults_client import Answer
from sits.bench.faults_wire import FINISHES, Said, read, read_error

TEXT = " ".join(f"w{number}" for number in range(1, TOKENS + 1))
"""What is said where nothing is lost and nothing doubled."""


class Booked(msgspec.Struct, frozen=True):
    """One entry of the ledger, as far as it is looked at."""

    attempt: int
    final: bool
    outcome: str
    model: str
    output_tokens: int | None
    cost: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """One request as a server got it."""

    model: str
    request_id: str
    secrets: list[str]
    """Header fields of the client that are nobody else's business."""


class Found(msgspec.Struct):
    """One cell after its run."""

    cell: Cell
    wrong: list[str]
    came: str = ""
    """What the client got, for a table."""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.wrong


def first(cell: Cell) -> str:
    """The name of its first target."""
    return f"{cell.name}.a"


def second(cell: Cell) -> str:
    return f"{cell.name}.b"


def alias(cell: Cell) -> str:
    """What its client asks for."""
    return f"{cell.name}.alias"


def targets(cell: Cell) -> list[str]:
    """The targets of its attempts, in order."""
    return [first(cell), second(cell)][: len(cell.right.outcomes)]


def heard(cell: Cell, answer: Answer) -> Said:
    """What a raw answer says."""
    if answer.status == 200:
        return read(cell.operation, answer.body, streamed=cell.streamed)
    said = read_error(cell.operation, answer.body)
    said.status = answer.status
    return said


def judge_answer(cell: Cell, answer: Answer, said: Said) -> Iterator[str]:
    """What is wrong with an answer as bytes: framing, head, form."""
    right = cell.right
    if answer.fault:
        yield answer.fault
    if not answer.whole:
        yield "the answer was cut"
    yield from differ("status", answer.status, right.status)
    yield from said.wrong
    heads = answer.headers
    streams = cell.streamed and right.status == 200
    kind = heads.get("content-type", "").partition(";")[0]
    yield from differ("content-type", kind, "text/event-stream" if streams else "application/json")
    told = 1 if right.continued or (right.code and right.status == 200) else len(right.outcomes)
    yield from differ("x-sits-attempts", heads.get("x-sits-attempts"), str(told))
    yield from differ("x-sits-target", heads.get("x-sits-target"), targets(cell)[told - 1])
    yield from differ("x-sits-requested", heads.get("x-sits-requested"), alias(cell))
    yield from differ("x-sits-error", heads.get("x-sits-error", ""), "" if right.status == 200 else right.code)
    yield from differ("retry-after", heads.get("retry-after", ""), right.retry_after)
    name = second(cell).encode()
    seams = (answer.body.count(b"\n: sits-continued %b\n" % name), answer.body.count(b'"sits_continued":["%b"]' % name))
    yield from differ("marks of the seam, and in the last event", seams, (1, 1) if right.continued else (0, 0))


def judge_said(cell: Cell, said: Said) -> Iterator[str]:
    """What is wrong with what an answer says, whoever read it."""
    right = cell.right
    yield from differ("how it ended", said.end, "complete" if right.complete else "error")
    yield from differ("code", said.code, right.code)
    if right.tokens is None:
        if not said.text or said.text == TEXT or not TEXT.startswith(said.text):
            yield f"tokens: {said.text!r}, not some of the first ones"
    else:
        yield from differ("tokens", said.text, TEXT[: _length(right.tokens)])
    if right.complete:
        yield from differ("finish", said.finish, FINISHES[cell.operation])
        if not right.continued:
            yield from differ("model", said.model, targets(cell)[-1])
    if right.complete and said.usage is not None:
        figure = said.usage.get("output_tokens", said.usage.get("completion_tokens"))
        yield from differ("output tokens of the usage", figure, TOKENS)
    if right.told:
        message = str(said.error.get("message", ""))
        wanted = "maximum context length" if "context" in right.told else "too hot"
        if wanted not in message:
            yield f"the target's message is not passed on: {message!r}"
        if "anthropic" not in (OWN[cell.operation], cell.way.engines[cell.operation]):
            # Anthropic's errors have no code.
            yield from differ("code of the error", said.error.get("code"), right.told)


def judge_record(cell: Cell, record: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the decision record."""
    right = cell.right
    attempts = record.get("attempts", [])
    yield from differ("record: targets", [one["target"] for one in attempts], targets(cell))
    yield from differ("record: outcomes", [one["outcome"] for one in attempts], list(right.outcomes))
    yield from differ("record: statuses", [one["status"] for one in attempts], list(right.statuses))
    yield from differ("record: status", record.get("status"), right.status)
    yield from differ("record: code", record.get("code", ""), right.code)
    yield from differ("record: skipped", record.get("skipped", 0), right.skipped)
    yield from differ("record: stream", record.get("stream", False), cell.streamed)


def judge_asked(cell: Cell, asked: Sequence[Sequence[Asked]]) -> Iterator[str]:
    """What each server was asked; one that is not there cannot say."""
    wanted = [0 if cell.trouble.fault is None else 1, len(cell.right.outcomes) - 1]
    yield from differ("requests at the servers", [len(mine) for mine in asked], wanted)
    for mine, name in zip(asked, (first(cell), second(cell)), strict=True):
        for one in mine:
            yield from differ("model that a server was asked for", one.model, name)
            yield from differ("x-request-id at a server", one.request_id, cell.name)
            if one.secrets:
                yield f"a server was sent the client's {', '.join(one.secrets)}"


def judge_metrics(cell: Cell, counted: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """What is wrong with `sits_attempts_total`, here by (target, outcome)."""
    mine = {pair: value for pair, value in counted.items() if pair[0] in (first(cell), second(cell))}
    wanted = dict(Counter(zip(targets(cell), cell.right.outcomes, strict=True)))
    yield from differ("sits_attempts_total", mine, wanted)


def judge_ledger(cell: Cell, entries: Sequence[Booked]) -> Iterator[str]:
    """What is wrong with what is in the ledger: one entry an attempt, the last of them final."""
    right = cell.right
    came = [(one.attempt, one.final, one.outcome, one.model) for one in sorted(entries, key=lambda one: one.attempt)]
    last = len(right.outcomes)
    said = [*right.outcomes[:-1], right.code or "ok"]
    wanted = [
        (number, number == last, outcome, target)
        for number, (outcome, target) in enumerate(zip(said, targets(cell), strict=True), 1)
    ]
    yield from differ("ledger", came, wanted)
    if came != wanted or right.tokens is None or right.status != 200:
        return
    used = [one.output_tokens for one in entries]
    if right.continued and cell.again:
        yield from differ("ledger: output tokens", used[-1], TOKENS)
    elif right.continued:
        yield from differ("ledger: output tokens, all together", sum(one or 0 for one in used), TOKENS)
    elif right.complete:
        yield from differ("ledger: output tokens", used[-1], TOKENS)
    else:
        yield from differ("ledger: output tokens, all together", sum(one or 0 for one in used), right.tokens)


def differ(what: str, came: Any, wanted: Any) -> Iterator[str]:
    """One line if they do."""
    if came != wanted:
        yield f"{what}: expected {wanted!r}, came {came!r}"


def came(cell: Cell, said: Said) -> str:
    """What the client got, in the words of `Right.short`."""
    if said.end == "complete":
        if cell.right.complete:
            return cell.right.short
        return said.model
    if said.status not in (0, 200):
        return str(said.status)
    return f"{len(said.text.split())} + `{said.code}`" if said.end == "error" else "cut"


def _length(tokens: int) -> int:
    return len(" ".join(f"w{number}" for number in range(1, tokens + 1)))
