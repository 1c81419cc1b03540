"""Whether an answer that was cut by its length is gone on with, and how much it may still have.

An answer ends by its length for one of two reasons. The client said how long it may be: then that is what it wanted, and nothing
is gone on with. Or the server's own limit or window was met: then a service with `resume` has the model go on, up to the route's
`most`. Of a streamed answer the finish is held back until that is known (`sits.dialects.continued`).
"""

from __future__ import annotations

import msgspec

from sits.dialects.continued import Continued
from sits.dialects.continued_prefix import formed
from sits.inner.ask import Ask
from sits.inner.estimate import ask_tokens, text_tokens
from sits.resources.context import ServiceSpec

FEWEST = 16
"""Tokens of room below which going on is not worth an ask."""
SPARE = 16
"""Tokens that are left free: the answer so far is part of the next prompt, and may have a few more there than it was made of."""
MOST_PARTS = 16
"""Of one answer, the first among them."""


class Cut(msgspec.Struct, frozen=True):
    """An answer that ended, as far as it has come."""

    finish: str | None
    prompt: int
    """Tokens of the prompt that was asked first."""
    made: int
    """Tokens of the answer over all its parts."""
    asked: int | None = None
    """The longest answer that the client asked for."""


def answer_room(cut: Cut, service: ServiceSpec, window: int, fewest: int = FEWEST) -> int:
    """Tokens that the answer may still have; 0 where it is not gone on with, for there is room for less than `fewest`.

    `window` is what prompt and answer may have together (`Context.window`).
    """
    if cut.finish != "length" or not service.resume or cut.made <= 0:
        return 0
    left = window - cut.prompt - cut.made - SPARE
    if cut.asked is not None:
        left = min(left, cut.asked - cut.made)
    return left if left >= fewest else 0


def can_resume(ask: Ask) -> bool:
    """Whether answers to `ask` are such that they can be gone on with: one text, without a form, tools or log probabilities."""
    sampling = ask.sampling
    one = (sampling.n or 1) == 1 and len(ask.prompts) <= 1
    return one and not (ask.tools or sampling.logprobs or formed(ask))


def room_left(answer: Continued, ask: Ask, service: ServiceSpec, window: int) -> int:
    """As `answer_room`, of a streamed answer whose finish by length is held back, or one of whose further parts broke off.

    Where the server does not say how many tokens there were, its pieces are counted, of which one may be several tokens. That is
    not good enough to hold to what the client asked for: then it is not gone on with. Only of a part that broke off, whose server
    had no time to say it, the pieces have to do, as with any stream that breaks.
    """
    made, _ = answer.spent()
    asked, usage = ask.sampling.max_tokens, answer.usage
    if asked is not None and not answer.figures:
        return 0
    prompt = usage.input if usage is not None else None
    if prompt is None:
        prompt = ask_tokens(ask) + round(sum(text_tokens(one) for one in ask.prompts if isinstance(one, str)))
    # What broke off is gone on with to its end; only for a part more there has to be room that is worth an ask.
    return answer_room(Cut("length", prompt, made, asked), service, window, FEWEST if answer.held else 1)
