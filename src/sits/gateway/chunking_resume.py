"""A whole answer that was cut by its length, gone on with until it is complete or there is no more room.

    going = Completing.of(body, ask, client, identity)        None: it is complete, or nothing that can be gone on with
    prepared = going.write(dialect, model, most)              the request for its next part, for whoever is asked
    going.take(dialect, body)                                 ... answered; `finish` and `room` say whether there is to be another
    body = going.body()

Streams are gone on with leg by leg as they run (`sits.dialects.continued`); this is for answers that are not streamed. The model
is given what has been said so far, and what it says then is put behind it; the client gets one answer, with the usage of all its
parts and the finish of the last. Each part may be another model's, for models that can be given the beginning of an answer.
"""

from __future__ import annotations

import msgspec

from sits import dialects
from sits.dialects.base import ClientDialect, Identity, Prepared, Reading, UpstreamDialect
from sits.dialects.collect import Answer, Choice
from sits.dialects.continued_seam import Onward
from sits.inner.ask import Ask, Operation, Thinking
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, FinishReason, Reasoning, Text, Usage, Used
from sits.resources.context import ServiceSpec
from sits.routing.context.resume import Cut, answer_room, can_resume

READ_AS: dict[Operation, str] = {"chat": "openai", "completions": "openai", "responses": "openai", "messages": "anthropic"}
"""In whose words the answer to an operation is."""
CHARACTERS_A_TOKEN = 4
"""Where a server says no figures."""


def asked_as(operation: Operation) -> Operation:
    """How the parts of an answer are asked for."""
    return "completions" if operation == "completions" else "chat"


class Completing:
    """One answer on its way to its end. Pure; nothing of it is shared between requests."""

    __slots__ = ("_ask", "_asked", "_client", "_first", "_identity", "_made", "_text", "finish", "parts")

    def __init__(self, first: Answer, ask: Ask, client: ClientDialect, identity: Identity) -> None:
        self._first = first
        self._ask = self._asked = ask
        self._client = client
        self._identity = identity
        self._text = first.choices[0].text
        self._made = (first.usage or Usage()).output or 0
        self.finish: FinishReason | None = first.choices[0].finish
        """Of the last part; `length`: it is to have another."""
        self.parts = 1

    @classmethod
    def of(cls, body: bytes, ask: Ask, client: ClientDialect, identity: Identity) -> Completing | None:
        """The whole answer `body` to `ask`, as `client` has it; None where it is complete or cannot be gone on with.

        Raises:
            SitsError: it cannot be read.
        """
        first = Answer(dialects.upstream(READ_AS[ask.operation]).whole(ask, body))
        if first.usage is None or len(first.choices) != 1 or not _resumable(first.choices[0], ask):
            return None
        return cls(first, ask, client, identity)

    def room(self, service: ServiceSpec, window: int) -> int:
        """Tokens that it may still have of a target with such a window."""
        usage = self._first.usage or Usage()
        return answer_room(Cut(self.finish, usage.input or 0, self._made, self._ask.sampling.max_tokens), service, window)

    def write(self, dialect: UpstreamDialect, model: str, most: int) -> Prepared:
        """The request for the next part, which may have `most` tokens.

        Raises:
            SitsError: `unsupported`, the dialect has no words for an answer that has begun.
        """
        ask, given = self._ask, self._text.rstrip()
        sampling = msgspec.structs.replace(ask.sampling, max_tokens=most)
        following = msgspec.structs.replace(ask, operation=asked_as(ask.operation), stream=False, sampling=sampling)
        if ask.operation == "completions":
            following = msgspec.structs.replace(following, prompts=(f"{ask.prompts[0] if ask.prompts else ''}{given}",))
        else:
            thinking = Thinking(enabled=False) if ask.thinking is not None and ask.thinking.enabled else ask.thinking
            following = msgspec.structs.replace(following, prefix=given, thinking=thinking)
        prepared = dialect.write(following, model)
        self._asked = following
        return prepared

    def take(self, dialect: UpstreamDialect, body: bytes) -> Reading:
        """The part that was asked for last: from now on it belongs to the answer. What it says of itself.

        Raises:
            SitsError: it is none; somebody else may be asked for it.
        """
        part = Answer(dialect.whole(self._asked, body))
        said = part.choices[0] if part.choices else None
        if said is None or said.calls or not (said.text or (said.finish == "stop" and not said.reasoning)):
            raise SitsError(Code.UPSTREAM_BROKEN, "the model did not go on with the answer")
        text, usage = self._text, part.usage
        given = text.rstrip()
        seam = Onward(given, text[len(given) :])
        self._text = text + seam.feed(said.text) + seam.close()
        told = usage.output if usage is not None else None
        self._made += told if told is not None else len(said.text) // CHARACTERS_A_TOKEN
        self.finish = said.finish
        self.parts += 1
        return Reading(usage, said.finish)

    @property
    def told(self) -> Usage:
        """What the client is told of the whole answer: the prompt's tokens once, and those of all parts."""
        return msgspec.structs.replace(self._first.usage or Usage(), output=self._made)

    def body(self) -> bytes:
        """The answer as far as it is, in the client's words."""
        choice = self._first.choices[0]
        events: list[Event] = [self._first.started]
        if choice.reasoning:
            events.append(Reasoning(choice.reasoning, signature=choice.signature))
        events += [Text(self._text), Finish(self.finish or "length"), Used(self.told)]
        return self._client.whole(self._ask, events, self._identity)


def _resumable(choice: Choice, ask: Ask) -> bool:
    """Whether a text can be gone on with, which was cut by its length."""
    if choice.finish != "length" or not can_resume(ask):
        return False
    if ask.operation == "completions" and (ask.extra.get("echo") or not all(isinstance(one, str) for one in ask.prompts)):
        return False
    return not (choice.calls or choice.refusal or not choice.text.strip())
