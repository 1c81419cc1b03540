"""A whole answer that was cut by its length, gone on with until it is complete or there is no more room.

Streams are gone on with by `sits.dialects.continued` (see `sits.routing.context.resume`); this is for answers that are not
streamed. The model is given what it has said so far, and what it says then is put behind it; the client gets one answer, with the
usage of all its parts and the finish of the last. For models that can be given the beginning of an answer, by servers of OpenAI's
family.
"""

from __future__ import annotations

import msgspec

from sits import dialects
from sits.dialects.base import ClientDialect, Identity
from sits.dialects.collect import Answer
from sits.dialects.continued_prefix import formed
from sits.dialects.continued_seam import Onward
from sits.gateway.chunking import AskPiece, Over
from sits.inner.ask import Ask, Operation, Thinking
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, FinishReason, Reasoning, Started, Text, Usage, Used
from sits.resources.context import ServiceSpec
from sits.routing.context.resume import Cut, answer_room
from sits.routing.target import Target

READ_AS: dict[Operation, str] = {"chat": "openai", "messages": "anthropic"}
"""In whose words the answer to an operation is."""
MOST_PARTS = 16


async def complete(
    body: bytes,
    ask: Ask,
    client: ClientDialect,
    identity: Identity,
    target: Target,
    service: ServiceSpec,
    window: int,
    ask_piece: AskPiece,
    over: Over = lambda: None,
) -> tuple[bytes, int]:
    """The whole answer `body` to `ask`, gone on with where it was cut, and how many asks that took: 0 leaves it as it is.

    What goes wrong on the way ends it there: the client gets what there is, with the finish that says that it is cut.
    """
    kind = READ_AS.get(ask.operation)
    if kind is None or "prefill" not in target.capabilities or "chat" not in target.dialect.relays or formed(ask):
        return body, 0
    first = Answer(dialects.upstream(kind).whole(ask, body))
    if len(first.choices) != 1 or first.usage is None or ask.sampling.logprobs:
        return body, 0
    choice = first.choices[0]
    if choice.calls or choice.refusal or not choice.text.strip():
        return body, 0
    text, finish, made, asks = choice.text, choice.finish, first.usage.output or 0, 0
    prompt, asked = first.usage.input or 0, ask.sampling.max_tokens
    while asks < MOST_PARTS:
        room = answer_room(Cut(finish, prompt, made, asked), service, window)
        if not room or over() is not None:
            break
        try:
            part = await _next(ask, target, text, room, ask_piece)
        except SitsError:
            break
        said = part.choices[0] if part.choices else None
        if said is None or not said.text:
            break
        asks += 1
        seam = Onward(text.rstrip(), text[len(text.rstrip()) :])
        text += seam.feed(said.text) + seam.close()
        made += part.usage.output or 0 if part.usage is not None else len(said.text) // 4
        finish = said.finish
    if not asks:
        return body, 0
    return client.whole(ask, _told(first, text, finish or "length", made), identity), asks


async def _next(ask: Ask, target: Target, text: str, room: int, ask_piece: AskPiece) -> Answer:
    """What the model says after `text`.

    Raises:
        SitsError: it was not asked, or did not answer.
    """
    sampling = msgspec.structs.replace(ask.sampling, max_tokens=room)
    thinking = Thinking(enabled=False) if ask.thinking is not None and ask.thinking.enabled else ask.thinking
    following = msgspec.structs.replace(
        ask, operation="chat", stream=False, prefix=text.rstrip(), sampling=sampling, thinking=thinking
    )
    body = await ask_piece(target, target.dialect.write(following, target.name).body)
    return Answer(dialects.upstream("openai").whole(following, body))


def _told(first: Answer, text: str, finish: FinishReason, made: int) -> list[Event]:
    choice, usage = first.choices[0], first.usage or Usage()
    events: list[Event] = [first.started if first.started is not None else Started()]
    if choice.reasoning:
        events.append(Reasoning(choice.reasoning, signature=choice.signature))
    return [*events, Text(text), Finish(finish), Used(msgspec.structs.replace(usage, output=made))]
