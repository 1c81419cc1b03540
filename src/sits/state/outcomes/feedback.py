"""`POST /v1/feedback`: what a user says of an answer, read and checked."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.outcomes.awaiting import MOST_CHANGES, Heard
from sits.state.outcomes.outcome import LABELS

LONGEST_ID: Final = 200
LONGEST_COMMENT: Final = 2000
LONGEST_KEY: Final = 200
FIELDS: Final = ("request_id", "score", "thumbs", "comment", "key")
MOST_WORDS: Final = 10_000
"""Requests that nothing is learned from of which the last word is remembered."""


class Feedback(msgspec.Struct, frozen=True):
    """A verdict on one answer."""

    request_id: str
    score: float
    """-1 to 1."""
    comment: str | None = None
    """In the user's words; it is content: not logged, not kept."""
    key: str | None = None
    """Whose request it is, where an administrator says so."""


class Words:
    """The last words on requests that nothing is learned from, so that each is recorded once; `most`, the oldest go first."""

    __slots__ = ("_most", "_words")

    def __init__(self, most: int = MOST_WORDS) -> None:
        self._most = most
        self._words: OrderedDict[tuple[str | None, str], tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._words)

    def said(self, key: str | None, request_id: str, score: float, *, admin: bool = False) -> Heard:
        """What this word is; `counted`, `changed`: see `heard`, once it is recorded."""
        before = self._words.get((key, request_id))
        if before is None:
            return "counted"
        last, changes = before
        if last == score:
            return "repeated"
        return "refused" if changes >= (2 * MOST_CHANGES if admin else MOST_CHANGES) else "changed"

    def heard(self, key: str | None, request_id: str, score: float) -> None:
        """It is recorded."""
        before = self._words.pop((key, request_id), None)
        self._words[key, request_id] = (score, 0 if before is None else before[1] + 1)
        if len(self._words) > self._most:
            self._words.popitem(last=False)


def parse(body: bytes) -> Feedback:
    """The feedback in a body.

    Raises:
        SitsError: `invalid_request`, and `param` is the field at fault.
    """
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise SitsError(Code.INVALID_REQUEST, f"the body is not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise _refuse("the body is not a JSON object")
    for field in given:
        if field not in FIELDS:
            raise _refuse(f"{field[:80]!r} is not a field of feedback; there are: {', '.join(FIELDS)}", field[:80])
    request_id = given.get("request_id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= LONGEST_ID:
        raise _refuse("`request_id` is the `x-request-id` of the answer", "request_id")
    comment = given.get("comment")
    if comment is not None and (not isinstance(comment, str) or len(comment) > LONGEST_COMMENT):
        raise _refuse(f"`comment` is a text of at most {LONGEST_COMMENT} characters", "comment")
    key = given.get("key")
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY):
        raise _refuse("`key` is the name of the key that asked", "key")
    return Feedback(request_id, _score(given.get("score"), given.get("thumbs")), comment, key)


def _score(score: object, thumbs: object) -> float:
    if (score is None) == (thumbs is None):
        raise _refuse("either `score` or `thumbs` is given", "score")
    if thumbs is not None:
        if thumbs not in ("up", "down"):
            raise _refuse('`thumbs` is "up" or "down"', "thumbs")
        return LABELS[str(thumbs)]
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1.0 <= score <= 1.0:
        raise _refuse("`score` is a number from -1 to 1", "score")
    return float(score)


def _refuse(message: str, param: str | None = None) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, message, param=param)
