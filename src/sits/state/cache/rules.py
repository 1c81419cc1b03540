"""What may be kept: the policy of a route, the wishes of a client, and what makes an answer a good one.

Only a complete good answer is ever kept: one with a reason why it stopped, which is that it was finished. Errors, refusals,
answers cut at a limit, filtered ones and empty ones are not; neither are tool calls, which ask for an act that may be right
only once, unless the policy says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sits.dialects import anthropic_words, openai_usage
from sits.inner.ask import Operation

if TYPE_CHECKING:
    from sits.state.cache.answer import Answer
    from sits.state.cache.fingerprint import Question

Scope = Literal["tenant", "route", "global"]
CACHED: frozenset[Operation] = frozenset(("chat", "completions", "responses", "messages", "embeddings"))
"""Operations whose answers are worth keeping; a count of tokens is made faster than it is looked up elsewhere."""


class Policy(msgspec.Struct, frozen=True):
    """What a route keeps. A route without a policy has no cache and pays for none."""

    ttl: float = 3600.0
    """Seconds that an answer is fresh at the most."""
    scope: Scope = "tenant"
    """Who shares: the requests of one key, all of this route, or all routes to the same models."""
    answer_bytes: int = 1024 * 1024
    """The largest answer that is kept."""
    sampled: Literal["never", "unsaid", "always"] = "unsaid"
    """Whether answers are kept that another draw would have made otherwise. Most clients say nothing about temperature and
    expect that a cache which was switched on answers them, so `unsaid` keeps theirs; a client that asks for a temperature
    above 0, or for several answers, asks for variety and gets it. `never` keeps only what was asked for with temperature 0 or
    a seed."""
    tools: bool = False
    """Whether answers with tool calls are kept."""
    wait: float = 30.0
    """Seconds that a request waits for the answer to an equal one that is under way; 0 to ask on its own."""
    stale: float = 0.0
    """Seconds that an answer which is not fresh any more is given still, while it is made anew behind (RFC 5861); 0 for never."""


Bypass = Literal["operation", "stateful", "sampled"]
"""Why a cache has nothing to do with a question."""


def bypass(policy: Policy, operation: Operation, question: Question) -> Bypass | None:
    """Why a cache has nothing to do with this question, None when it has."""
    if operation not in CACHED:
        return "operation"
    if question.kept:
        return "stateful"
    if operation == "embeddings":
        return None  # Nothing is drawn.
    if policy.sampled == "always" or question.drawn == "greedy":
        return None
    return "sampled" if question.drawn == "random" or policy.sampled == "never" else None


class Wish(msgspec.Struct, frozen=True):
    """What the request's `Cache-Control` asks for (RFC 9111 5.2.1). Stale answers are only there where the route keeps them, so
    `max-stale` never brings more than that."""

    read: bool = True
    """May be answered from the cache."""
    keep: bool = True
    """Its answer may be kept."""
    max_age: float | None = None
    min_fresh: float = 0.0
    max_stale: float | None = None
    """Seconds that an answer may be stale. None: nothing was said. Then whoever speaks of `max-age` or `min-fresh` wants a fresh
    one, as the RFC has it, and all others take what the route gives."""
    only: bool = False
    """Wants no answer that is not in the cache: 504 then (RFC 9111 5.2.1.7)."""
    slack: float | None = None
    """Not the client's: seconds that the route gives an answer after it has gone stale, where it keeps some for longer than that
    (for its ladder). None: as long as they are kept."""

    def accepts(self, answer: Answer, now: float) -> bool:
        """Whether an answer that has not expired is fresh enough."""
        if not self.read or (self.slack is not None and now >= answer.fresh + self.slack):
            return False
        until = answer.fresh if self.max_age is None else min(answer.fresh, answer.made + self.max_age)
        if until - now >= self.min_fresh:
            return True
        if self.min_fresh > 0:
            return False
        if self.max_stale is None:
            return self.max_age is None
        return now - until <= self.max_stale


ANY = Wish()
"""Of a client that wishes for nothing."""
FRESH = Wish(max_stale=0.0)
"""No stale answer."""


def wish(header: bytes | None) -> Wish:
    """The wish in a `cache-control` field; directives that are not known are passed over (RFC 9111 5.2.3)."""
    if header is None:
        return ANY
    read, keep, only = True, True, False
    max_age: float | None = None
    max_stale: float | None = None
    min_fresh = 0.0
    for directive in header.lower().split(b","):
        name, _, value = directive.strip().partition(b"=")
        match name.strip():
            case b"no-store":
                read = keep = False
            case b"no-cache":
                read = False
            case b"max-age":
                age = _seconds(value)
                # Of two that disagree, and of one that cannot be read, the strictest reading holds (RFC 9111 4.2.1).
                max_age = min(max_age if max_age is not None else age or 0.0, age or 0.0)
            case b"min-fresh":
                fresh = _seconds(value)
                min_fresh = max(min_fresh, float("inf") if fresh is None else fresh)
                max_stale = 0.0 if fresh == 0.0 else max_stale
            case b"max-stale":
                # Without a value: however stale (5.2.1.2).
                stale = _seconds(value) if value else float("inf")
                max_stale = min(max_stale if max_stale is not None else stale or 0.0, stale or 0.0)
            case b"only-if-cached":
                only = True
    return Wish(read, keep, max_age, min_fresh, max_stale, only)


def _seconds(value: bytes) -> float | None:
    digits = value.strip().strip(b'"')
    return float(digits) if digits.isdigit() and len(digits) < 12 else None


Fault = Literal["unreadable", "unfinished", "truncated", "filtered", "refused", "empty", "tools"]
"""Why an answer is not kept."""


def fault(operation: Operation, body: bytes, *, tools: bool = False) -> Fault | None:
    """Why a whole 2xx answer of that operation is not to be kept; None for a complete good one. `tools`: calls are no reason."""
    try:
        match operation:
            case "chat" | "completions":
                return _chat(_decode_chat(body), tools)
            case "responses":
                return _response(_decode_response(body), tools)
            case "messages":
                return _message(_decode_message(body), tools)
            case "embeddings":
                data = _decode_vectors(body).data
                return None if data and all(_full(vector.embedding) for vector in data) else "empty"
    except (msgspec.MsgspecError, RecursionError):
        pass
    return "unreadable"


_ABSENT = msgspec.Raw()
_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_BAD: dict[str, Fault] = {"length": "truncated", "content_filter": "filtered", "refusal": "refused", "pause": "unfinished"}
"""By the inner form's finish reason. Words that a dialect does not list are not taken for a good end here."""


def _full(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) not in _EMPTY


class _ChatMessage(msgspec.Struct, gc=False):
    content: msgspec.Raw = _ABSENT
    refusal: str | None = None
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    audio: msgspec.Raw = _ABSENT


class _ChatChoice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    message: _ChatMessage | None = None
    text: str | None = None


class _Chat(msgspec.Struct, gc=False):
    choices: list[_ChatChoice]
    error: msgspec.Raw = _ABSENT


_decode_chat = msgspec.json.Decoder(_Chat).decode


def _chat(answer: _Chat, tools: bool) -> Fault | None:
    if _full(answer.error) or not answer.choices:
        return "unreadable"
    for choice in answer.choices:
        finish = openai_usage.FINISH.get(choice.finish_reason or "", None)
        if finish is None:
            return "unfinished"
        if finish in _BAD:
            return _BAD[finish]
        said = choice.message
        if said is None:
            if not choice.text:
                return "empty"
            continue
        if said.refusal:
            return "refused"
        calls = _full(said.tool_calls) or _full(said.function_call)
        if (calls or finish == "tool_calls") and not tools:
            return "tools"
        if not (calls or _full(said.content) or _full(said.audio)):
            return "empty"
    return None


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    status: str | None = None
    content: list[_Part] | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[_Item]
    status: str | None = None
    error: msgspec.Raw = _ABSENT


_decode_response = msgspec.json.Decoder(_Response).decode


def _response(answer: _Response, tools: bool) -> Fault | None:
    if _full(answer.error):
        return "unreadable"
    if answer.status != "completed":
        return "truncated" if answer.status == "incomplete" else "unfinished"
    said = False
    for item in answer.output:
        if item.status not in (None, "completed"):
            return "unfinished"
        if item.type == "message":
            parts = item.content or []
            if any(part.type == "refusal" for part in parts):
                return "refused"
            said = said or any(part.text for part in parts)
        elif item.type != "reasoning":
            # A call to a function or a hosted tool, a wish for approval, or an act of later days.
            if not tools:
                return "tools"
            said = True
    return None if said else "empty"


class _Message(msgspec.Struct, gc=False):
    content: list[_Part]
    type: str = ""
    stop_reason: str | None = None


_decode_message = msgspec.json.Decoder(_Message).decode
_QUIET = frozenset(("text", "thinking", "redacted_thinking"))


def _message(answer: _Message, tools: bool) -> Fault | None:
    if answer.type == "error":
        return "unreadable"
    finish = anthropic_words.FINISH.get(answer.stop_reason or "", None)
    if finish is None:
        return "unfinished"
    if finish in _BAD:
        return _BAD[finish]
    # A call to a tool of the client or of the server, or an act of later days.
    calls = any(block.type not in _QUIET for block in answer.content)
    if (calls or finish == "tool_calls") and not tools:
        return "tools"
    return None if calls or any(block.type == "text" and block.text for block in answer.content) else "empty"


class _Vector(msgspec.Struct, gc=False):
    embedding: msgspec.Raw = _ABSENT


class _Vectors(msgspec.Struct, gc=False):
    data: list[_Vector]


_decode_vectors = msgspec.json.Decoder(_Vectors).decode
