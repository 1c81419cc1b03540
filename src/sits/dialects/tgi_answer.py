"""Answers of TGI's own `/generate` and `/generate_stream` as events.

TGI leaves the stop sequence that ended an answer in its text, where everybody else cuts it off. So the end of the text that
may be the beginning of a stop sequence is held until it is known to be one or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sits.dialects import openai_errors
from sits.dialects.intake import figure, lenient
from sits.dialects.openai_errors import broken
from sits.dialects.sse_answer import EventAnswer
from sits.dialects.token_logprobs import TextLogprobs
from sits.inner.ask import Ask
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, FinishReason, Started, Text, Usage, Used, believed

_FINISH: dict[str, FinishReason] = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}
_STATUS = {"validation": 422, "overloaded": 429, "tool_error": 422, "template_error": 422, "empty_input": 422}
"""A status for errors that come inside a 200; other kinds are the server's own failures."""


def explain_type(status: int, found: openai_errors.Detail, retry_after: float | None) -> SitsError:
    """The error for a `{"error", "error_type"}` body."""
    return openai_errors.classify(status, found, retry_after=retry_after)


def _fault(value: dict[str, Any]) -> SitsError:
    error, kind = value.get("error"), value.get("error_type")
    if not isinstance(error, str) or not isinstance(kind, str):
        return openai_errors.fault(error)
    status = _STATUS.get(kind.lower(), 500)
    return explain_type(status, openai_errors.Detail(error, kind), None)


def split_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """`text` in two: what can go out, and its end that may be the beginning of one of `stops`."""
    for size in range(min(len(text), max(map(len, stops), default=0)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return text[:-size], text[-size:]
    return text, ""


def cut_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """`text` without the stop sequence that it ends with, and which one that is."""
    for stop in stops:
        if stop and text.endswith(stop):
            return text[: -len(stop)], stop
    return text, None


def _end(details: Any, rest: str, stops: Sequence[str]) -> list[Event]:
    """The last events: `rest` is text that was held back."""
    details = details if isinstance(details, dict) else {}
    reason, stop = details.get("finish_reason"), None
    if reason == "stop_sequence":
        rest, stop = cut_stop(rest, stops)
    events: list[Event] = [Text(rest)] if rest else []
    events.append(Finish(_FINISH.get(reason, "stop") if isinstance(reason, str) else "stop", stop_sequence=stop))
    prefill = details.get("prefill")
    prompt = believed(details.get("input_length"))
    if prompt is None and isinstance(prefill, list) and prefill:
        prompt = len(prefill)
    usage = Usage(input=prompt, output=believed(details.get("generated_tokens")))
    if usage != Usage():
        events.append(Used(usage))
    return events


def _token(token: dict[str, Any], top: Any) -> tuple[str, float | None, dict[str, float] | None]:
    likely = None
    if isinstance(top, list):
        likely = {str(each.get("text", "")): figure(each.get("logprob")) or 0.0 for each in top if isinstance(each, dict)}
    text, logprob = token.get("text"), token.get("logprob")
    return text if isinstance(text, str) else "", figure(logprob), likely


def read_generated(ask: Ask, body: bytes) -> list[Event]:
    """The events of a whole answer."""
    try:
        value = lenient(body)
    except ValueError as exc:
        raise broken("The model server's answer is not JSON.") from exc
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        raise broken("The model server's answer is not a JSON object.")
    if value.get("error"):
        raise _fault(value)
    text = value.get("generated_text")
    if not isinstance(text, str):
        raise broken("The model server's answer holds no 'generated_text'.")
    details = value.get("details")
    *rest, finish = (event for event in _end(details, text, ask.sampling.stop) if not isinstance(event, Used))
    if ask.sampling.logprobs:
        said = rest[0].text if rest and isinstance(rest[0], Text) else ""
        rest = [Text(said, logprobs=_all_logprobs(details))]
    return [Started(), *rest, finish, *(event for event in _end(details, "", ()) if isinstance(event, Used))]


def _all_logprobs(details: Any) -> dict[str, Any]:
    held = details if isinstance(details, dict) else {}
    tokens = held.get("tokens")
    tops = held.get("top_tokens")
    tops = tops if isinstance(tops, list) else []
    listed = [each for each in tokens if isinstance(each, dict)] if isinstance(tokens, list) else []
    pairs = [_token(each, tops[at] if at < len(tops) else None) for at, each in enumerate(listed) if not each.get("special")]
    return TextLogprobs().piece(pairs)


def _decoded(data: bytes) -> Any:
    """An event's JSON; None where it is none."""
    try:
        return lenient(data)
    except ValueError:
        return None


class GenerateDecoder(EventAnswer):
    """A stream of tokens as events."""

    __slots__ = ("_held", "_logprobs", "_started", "_stops")

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._stops = ask.sampling.stop
        self._held = ""
        self._logprobs = TextLogprobs() if ask.sampling.logprobs else None
        self._started = False

    def close(self) -> list[Event]:
        if not self.done:
            raise broken("The model server's answer was cut before it was finished.")
        return []

    def _read(self, data: bytes) -> list[Event]:
        value = _decoded(data)
        if not isinstance(value, dict):
            self.skipped += 1
            return []
        if value.get("error"):
            raise _fault(value)
        token = value.get("token")
        if not isinstance(token, dict):
            self.skipped += 1
            return []
        events: list[Event] = [] if self._started else [Started()]
        self._started = True
        if not token.get("special"):
            events += self._say(token, value.get("top_tokens"))
        if isinstance(value.get("generated_text"), str) or isinstance(value.get("details"), dict):
            self.done = True
            events += _end(value.get("details"), self._held, self._stops)
        return events

    def _say(self, token: dict[str, Any], top: Any) -> list[Event]:
        said = _token(token, top)
        text, self._held = split_stop(self._held + said[0], self._stops)
        logprobs = self._logprobs.piece([said]) if self._logprobs is not None else None
        return [Text(text, logprobs=logprobs)] if text or logprobs else []
