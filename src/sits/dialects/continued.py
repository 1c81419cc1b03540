"""An answer that goes on where a target broke off: one stream to the client, one leg for each target that has a part in it.

    continued = Continued(ask, client)
    prepared, onset = continued.write(dialect, model, prefill=...)        # the request for a target
    leg = continued.leg(decoder, identity, onset, target=...)             # a `Translation`: feed, close
    ... it breaks: the same two lines again for the next target

The client's encoder lives here, so ids, the model's name, the numbers of blocks and events stay the same from leg to leg. The
next target goes on in one of three ways: from the text so far, where it can be given the beginning of an answer (`prefill`);
anew, where the client has no text yet (`anew`); and else it is asked the same question, and what it says is dropped as long as
it is what the client has (`replay`). How the texts meet is told in `continued_seam`.

With `resumes`, a leg that finishes by its length holds that finish back (`held`): whoever runs it has a target go on, by one more
leg, or says that nobody does (`cut_off`).
"""

from __future__ import annotations

import msgspec

from sits.dialects.base import ClientDialect, Decoder, Encoder, Identity, Prepared, UpstreamDialect
from sits.dialects.continued_leg import Leg, Onset
from sits.dialects.continued_prefix import formed
from sits.inner.ask import Ask, Thinking
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, Refusal, Text, Usage, Used

LONGEST = 4 * 1024 * 1024
"""Characters of text that are kept to go on from; a longer answer cannot be continued."""


class Continued:
    """One answer, over as many legs as it takes. Pure; nothing of it is shared between requests."""

    __slots__ = (
        "_ask",
        "_blank",
        "_client",
        "_encoder",
        "_legs",
        "_refused",
        "_room",
        "_text",
        "finished",
        "held",
        "resumes",
        "single",
    )

    def __init__(self, ask: Ask, client: ClientDialect) -> None:
        self._ask = ask
        self._client = client
        self._encoder: Encoder | None = None
        self._legs: list[Leg] = []
        """Those of which the client has something; the last one owns the answer."""
        self._text: list[str] = []
        self._room = LONGEST
        self._blank = 0
        """Pieces of nothing but white space at the end of the text: they are said again, and so are not spent."""
        self._refused = False
        self.finished = False
        """The client has the finish of the answer."""
        self.single = (ask.sampling.n or 1) == 1 and len(ask.prompts) <= 1
        """There is one choice; of several, one could not be continued without the others."""
        self.resumes = False
        """Whether a finish by length is held back."""
        self.held = False
        """The last leg is complete, but for its finish by length, which is held back."""

    @property
    def text(self) -> str:
        """The text that the client has."""
        if len(self._text) > 1:
            self._text = ["".join(self._text)]
        return self._text[0] if self._text else ""

    @property
    def begun(self) -> bool:
        """Whether the client has anything of the answer."""
        return self._encoder is not None

    @property
    def targets(self) -> tuple[str, ...]:
        """Who has a part in the answer, in order."""
        return tuple(leg.target for leg in self._legs)

    @property
    def parts(self) -> int:
        """How many legs came to their end, cut or not; others broke off."""
        return sum(1 for leg in self._legs if leg.finish is not None)

    @property
    def figures(self) -> bool:
        """Whether everybody who came to an end told how many tokens there were."""
        ended = [leg.usage for leg in self._counted() if leg.finish is not None]
        return all(usage is not None and usage.output is not None for usage in ended)

    # What the next target is asked.

    def onset(self, prefill: bool) -> Onset:
        """How the next target is asked; `prefill` is whether it can be given the beginning of its answer.

        Raises:
            SitsError: `stream_broken`: the answer cannot be continued, and why.
        """
        if not self.begun:
            return Onset("first")
        if self.finished:
            raise _final("it is complete")
        if not self.single:
            raise _final("there is more than one choice")
        if self._refused:
            raise _final("the model has begun to refuse")
        if self._room < 0:
            raise _final(f"it is longer than {LONGEST} characters")
        text, after = self.text, len(self._legs)
        if not text.strip():
            return Onset("anew", text, after)
        if self._ask.sampling.logprobs:
            raise _final("its log probabilities are those of one model")
        if self._ask.operation == "completions":
            prompt = self._ask.prompts[0] if self._ask.prompts else ""
            prefill = isinstance(prompt, str) and not self._ask.extra.get("echo") and not formed(self._ask)
        return Onset("prefill" if prefill else "replay", text, after)

    def next_ask(self, prefill: bool) -> Ask:
        """The request for the next target, as `onset` says.

        Raises:
            SitsError: as `onset`.
        """
        return self._asked(self.onset(prefill))

    def write(self, dialect: UpstreamDialect, model: str, *, prefill: bool, most: int | None = None) -> tuple[Prepared, Onset]:
        """The request for the next target in its dialect, and what its leg is to be made with.

        Where the dialect has no words for an answer that has begun like this one, the question is asked anew: but not where
        `most`, the tokens that a held answer may still have, is given.

        Raises:
            SitsError: as `onset`; `unsupported`, the dialect has no words for the question either.
        """
        onset = self.onset(prefill)
        try:
            return dialect.write(self._asked(onset, most), model), onset
        except SitsError as refusal:
            if onset.mode != "prefill" or refusal.code is not Code.UNSUPPORTED or most is not None:
                raise
        return dialect.write(self._ask, model), msgspec.structs.replace(onset, mode="replay")

    def _asked(self, onset: Onset, most: int | None = None) -> Ask:
        ask = self._ask
        if onset.mode != "prefill":
            return ask
        given = onset.given
        sampling = ask.sampling
        if most is None:
            most = sampling.max_tokens - self.spent()[0] if sampling.max_tokens is not None else None
        if most is not None:
            sampling = msgspec.structs.replace(sampling, max_tokens=max(1, most + self._blank))
        if ask.operation == "completions":
            return msgspec.structs.replace(ask, prompts=(f"{ask.prompts[0]}{given}",), sampling=sampling)
        thinking = ask.thinking
        if thinking is not None and thinking.enabled:
            thinking = Thinking(enabled=False)  # it has reasoned, or has done without
        return msgspec.structs.replace(ask, prefix=given, sampling=sampling, thinking=thinking)

    def leg(self, decoder: Decoder, identity: Identity, onset: Onset, *, target: str = "") -> Leg:
        """The next target's part. `identity` labels the answer if this leg begins it; `target` names the leg at the seam."""
        return Leg(self, decoder, identity, onset, target)

    # What a leg does with the answer.

    def owned_by(self, leg: Leg) -> bool:
        return bool(self._legs) and self._legs[-1] is leg

    def take_over(self, leg: Leg) -> bytes:
        """From now on the answer is this leg's: its beginning for the client, or the seam.

        Raises:
            SitsError: `stream_broken`: the answer is another leg's by now.
        """
        if leg.onset.after != len(self._legs):
            raise _final("another target has it by now")
        if self._encoder is None:
            self._encoder = encoder = self._client.encoder(self._ask, leg.identity)
            self._legs.append(leg)
            opening = [encoder.feed(leg.started)] if leg.started is not None else []
            if leg.usage is not None:
                opening.append(encoder.feed(Used(leg.usage)))
            return b"".join(opening)
        self._legs.append(leg)
        self.held = False
        self._encoder.continued += (leg.target,)
        if self._client.stream_type != b"text/event-stream":
            return b""
        return b": sits-continued %b\n\n" % leg.target.encode()

    def tell(self, event: Event) -> bytes:
        """The wire form of one event, which is noted."""
        assert self._encoder is not None
        if isinstance(event, Text):
            if event.index == 0:
                self._blank = self._blank + 1 if event.text.isspace() else 0
                self._room -= len(event.text)
                if self._room >= 0:
                    self._text.append(event.text)
                else:
                    self._text = []
        elif isinstance(event, Refusal):
            self._refused = True
        elif isinstance(event, Finish) and event.index == 0:
            self.finished = True
        return self._encoder.feed(event)

    def finish(self) -> bytes:
        """What ends the stream: usage over all legs, terminator."""
        assert self._encoder is not None
        usage = self.usage
        told = self._encoder.feed(Used(usage)) if usage is not None else b""
        return told + self._encoder.close()

    def hold(self) -> bool:
        """Hold a finish by length back, where that is wanted and the text so far can be gone on from."""
        self.held = self.resumes and self.single and not self._refused and self._room >= 0 and bool(self.text.strip())
        return self.held

    def cut_off(self) -> bytes:
        """What ends an answer that was held, and that nobody goes on with: the finish by length that it has."""
        self.held = False
        return (b"" if self.finished else self.tell(Finish("length"))) + self.finish()

    @property
    def usage(self) -> Usage | None:
        """The tokens of the answer that the client has: what every leg billed stays on the leg.

        The prompt is the first leg's. A leg that said the text so far again makes those before it void: its own figures are those
        of the whole answer.
        """
        legs = self._counted()
        first = legs[0].usage or Usage()
        if len(legs) == 1:
            return legs[0].usage
        output, estimated = self.spent()
        reasoning = [leg.usage.reasoning for leg in legs if leg.usage is not None and leg.usage.reasoning is not None]
        prompt = first.input
        if prompt is None:
            prompt, estimated = self._prompt(legs), True
        return Usage(
            input=prompt,
            output=output,
            cached=first.cached,
            reasoning=sum(reasoning) if reasoning else None,
            cache_written=first.cache_written,
            estimated=estimated,
        )

    def _counted(self) -> list[Leg]:
        again = [at for at, leg in enumerate(self._legs) if leg.onset.mode == "replay"]
        return self._legs[again[-1] :] if again else self._legs

    def spent(self) -> tuple[int, bool]:
        """Output tokens so far, and whether some of them are counted by pieces, where a leg said no figure."""
        output, estimated = 0, False
        for leg in self._counted():
            if leg.usage is not None and leg.usage.output is not None:
                output += leg.usage.output
            else:
                output += leg.pieces if leg.onset.mode == "replay" else leg.given
                estimated = True
        return output, estimated

    def _prompt(self, legs: list[Leg]) -> int | None:
        """Tokens of the prompt by what a later leg said of its own, less the answer so far that was in it."""
        before = 0
        for leg in legs:
            said = leg.usage or Usage()
            if said.input is not None:
                return max(0, said.input - before) if leg.onset.mode == "prefill" else said.input
            before += leg.given if said.output is None else said.output
        return None


def _final(why: str) -> SitsError:
    return SitsError(Code.STREAM_BROKEN, f"the answer broke off and cannot be continued: {why}")
