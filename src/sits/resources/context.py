"""How much fits: how a model's tokens are counted, and what a route does with a prompt by its length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from sits.resources.problem import Fault, did_you_mean, instead, quoted
from sits.resources.unread import UNREAD, Unread, judged
from sits.resources.vocabulary import Count, Name, Positive, Spec

Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Normalises = Literal["none", "nfc", "nfkc"]

UPSTREAM = "upstream"
FILE = "file:"
ASKED: frozenset[str] = frozenset(("local", "llamacpp", "vllm", "sglang", "tgi", "anthropic"))
"""Engines whose servers count tokens when they are asked."""


class FrameSpec(Spec, frozen=True):
    """What the chat template of a model puts around a conversation. `{role}` and `{content}` stand for those of a message."""

    message: str = "<|im_start|>{role}\n{content}<|im_end|>\n"
    """Around each message."""
    answer: str = "<|im_start|>assistant\n"
    """What the answer begins with."""
    begin: str = ""
    """In front of everything."""
    system: str = ""
    """What the template says where the first message is not the system's: a whole message in its frame."""
    trim: bool = False
    """Whether the template takes blanks off both ends of a message."""


class TokenizerSpec(Spec, frozen=True):
    """How the tokens of a prompt are counted."""

    source: str = UPSTREAM
    """`upstream` asks the model server (`local`, `llamacpp`, `vllm`, `sglang`, `tgi` and `anthropic` have a way to say it);
    `file:PATH` is a `tokenizer.json` of Hugging Face, or a GGUF file whose vocabulary is of the kind `gpt2`."""
    frame: FrameSpec | None = None
    """The chat template, for `file:`. Without it only the text is counted exactly, and four tokens are taken for the frame of a
    message."""
    normalises: Normalises = "nfc"
    """What the tokenizer does with text first. `none` (Llama, GPT, Gemma, SmolLM) and `nfc` (Qwen) are of byte-level BPE, or of
    SentencePiece that falls back to bytes; `nfkc` is of Unigram (XLM-R, e5, T5). The certain bounds follow from it."""
    fixed: Tokens = 128
    """The most tokens that the chat template adds to a prompt besides the frames of its messages. Templates that bring a long
    system prompt of their own need more."""
    longest: Count | None = None
    """Bytes of the longest token of the vocabulary: with it, a prompt that is far too long is known to be without counting."""
    wait_ms: Positive = msgspec.field(default=500.0, name="waitMs")
    """How long a request waits for a count; after that the estimate is taken, and marked as one."""


class StageSpec(Spec, frozen=True):
    """What is done with prompts of a length."""

    kind: Literal["summarise", "reason", "chunked"]
    """What it is called; `chunked` prompts are read in pieces, with notes carried from one to the next."""
    below: Count | None = None
    """Prompt tokens below which it is this stage; the last stage has none, and takes the rest."""
    models: list[Name] = msgspec.field(default_factory=list)
    """Models of the route that are asked first, by name."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Models of the route that are asked first: those that have all these labels."""


class ServiceSpec(Spec, frozen=True):
    """A kind of work, and the room that its answers need."""

    headroom: Tokens = 0
    """Tokens of the window that must be left for the answer."""
    resume: bool = False
    """Whether an answer that was cut by its length is gone on with."""


USUAL_MOST = 8192
USUAL_NOTES = 512
FEWEST_NOTES = 16


class _Usual:
    """Marks what nobody wrote, so that it can be made to fit what was written."""


class _UsualStages(list[StageSpec], _Usual):
    pass


class _UsualServices(dict[str, ServiceSpec], _Usual):
    pass


class _UsualNotes(int, _Usual):
    pass


def _usual_stages() -> list[StageSpec]:
    return _UsualStages((StageSpec("summarise", 2048), StageSpec("reason", 6144), StageSpec("chunked")))


def _usual_services() -> dict[str, ServiceSpec]:
    return _UsualServices({"summary": ServiceSpec(3000), "code": ServiceSpec(6000, resume=True)})


def _usual_notes() -> int:
    return _UsualNotes(USUAL_NOTES)


class ContextSpec(Spec, frozen=True):
    """What a route does with a prompt by its length in tokens. With a smaller `most` than the usual one, what is not given is
    smaller in proportion."""

    most: Count = USUAL_MOST
    """Tokens of prompt and answer that one ask of a model may have; unless `oversize` is `split` or `refuse`, models that declare
    a larger window may use all of it. Longer prompts are `oversize`."""
    stages: list[StageSpec] = msgspec.field(default_factory=_usual_stages)
    """By rising `below`, for prompts that fit. With `oversize: larger` or `refuse` the usual ones end with `reason`: nothing is
    read in pieces."""
    services: dict[Name, ServiceSpec] = msgspec.field(default_factory=_usual_services)
    """By name: what the request says (`x-sits-service`), or the name of its domain."""
    service: Name | None = None
    """The service of requests that say none and are of no domain that is one; no headroom when not given."""
    oversize: Literal["larger", "split", "refuse"] | None = None
    """A prompt that does not fit: only models that declare a larger window are asked, and without one it is refused (`larger`);
    it is read in pieces (`split`); or it is refused (`refuse`). When not given larger windows are used, and what fits none is
    read in pieces where it is of a stage `chunked`, else refused."""
    pieces: Annotated[int, msgspec.Meta(ge=2, le=256)] = 16
    """The most pieces that one prompt is read in; a longer one is refused."""
    notes: Annotated[int, msgspec.Meta(ge=FEWEST_NOTES, le=10**15)] = msgspec.field(default_factory=_usual_notes)
    """Tokens of the notes that are carried from piece to piece."""

    def __post_init__(self) -> None:
        try:
            fitted = _fitted(self)
        except Unread:
            # Whether they fit is not known either.
            fitted = {name: UNREAD for name in _FITTED if isinstance(getattr(self, name), _Usual)}
        for name, value in fitted.items():
            msgspec.structs.force_setattr(self, name, value)


_FITTED = ("stages", "services", "notes")


def _fitted(spec: ContextSpec) -> dict[str, Any]:
    """What nobody wrote, in proportion to a smaller `most`, and to the room that is left for a prompt."""
    fitted: dict[str, Any] = {}
    services, notes = spec.services, spec.notes
    if isinstance(services, _Usual):
        services = fitted["services"] = {
            name: msgspec.structs.replace(one, headroom=_part(one.headroom, spec.most)) for name, one in services.items()
        }
    room = spec.most - max((one.headroom for one in services.values()), default=0)
    if isinstance(notes, _Usual):
        notes = fitted["notes"] = max(FEWEST_NOTES, min(_part(USUAL_NOTES, spec.most), (room - 1) // 4))
    if isinstance(spec.stages, _Usual):
        # Whoever writes notes wants to have texts read in pieces; but not whoever says what else is to become of them.
        chunked = spec.oversize in (None, "split") and (not isinstance(spec.notes, _Usual) or 2 * notes < room)
        fitted["stages"] = _fitting_stages(list(spec.stages), spec.most, chunked=chunked)
    return fitted


def _part(usual: int, most: int) -> int:
    """A figure that belongs to the usual `most`, for a smaller one."""
    return usual * min(most, USUAL_MOST) // USUAL_MOST


def _fitting_stages(usual: list[StageSpec], most: int, *, chunked: bool) -> list[StageSpec]:
    """The usual stages; without the last one where there is no room to read in pieces, and without those that would be empty."""
    parts = [(stage, _part(stage.below, most)) for stage in usual if stage.below is not None]
    stages = [msgspec.structs.replace(stage, below=part) for stage, part in parts if part >= 1]
    if chunked:
        return [*stages, usual[-1]]
    return [*stages[:-1], msgspec.structs.replace(usual[-2], below=None)]


def tokenizer_faults(spec: TokenizerSpec, engine: str) -> Iterator[Fault]:
    """A source that can be used, for a model of this engine; a frame with a place for what it is around."""
    at = ("spec", "tokenizer")
    if spec.source == UPSTREAM:
        if engine not in ASKED:
            said = f"servers of the engine {quoted(engine)} have no way to count tokens"
            yield Fault((*at, "source"), said, "name a file:PATH, or leave the tokenizer out and have it estimated")
        if spec.frame is not None:
            yield Fault((*at, "frame"), "the server knows its own chat template", "remove it", at_key=True)
    elif not spec.source.startswith(FILE) or not spec.source.removeprefix(FILE).strip():
        yield Fault((*at, "source"), f"{quoted(spec.source)} is no source of a tokenizer", "write upstream or file:PATH")
    if spec.frame is not None and "{content}" not in spec.frame.message:
        yield Fault((*at, "frame", "message"), "has no {content}: every message would be empty")


def context_faults(spec: ContextSpec, models: frozenset[str] | None = None) -> Iterator[Fault]:
    """Stages that rise and leave no gap, services that leave room for a prompt; with `models`, names that are of the route."""
    for part in (_stage_faults(spec, models), _headrooms(spec), _service(spec), _notes(spec)):
        yield from judged(part)


def _headrooms(spec: ContextSpec) -> Iterator[Fault]:
    for name, service in spec.services.items():
        if service.headroom >= spec.most:
            said = f"leaves no room for a prompt: the most is {spec.most}"
            yield Fault(("spec", "context", "services", name, "headroom"), said, "lower it, or raise most")


def _service(spec: ContextSpec) -> Iterator[Fault]:
    if spec.service is not None and spec.service not in spec.services:
        hint = did_you_mean(spec.service, spec.services)
        yield Fault(("spec", "context", "service"), f"{quoted(spec.service)} is not among the services", hint)


def _notes(spec: ContextSpec) -> Iterator[Fault]:
    if spec.oversize == "split" or any(stage.kind == "chunked" for stage in spec.stages):
        room = spec.most - max((service.headroom for service in spec.services.values()), default=0)
        if 2 * spec.notes >= room > 0:
            if spec.notes <= FEWEST_NOTES:
                said = f"leaves {room} tokens for a prompt beside the largest headroom: too few to read in pieces"
                yield Fault(("spec", "context", "most"), said, "raise it, or do not split")
                return
            said = f"fill most of what is left for a prompt ({room} tokens) beside the largest headroom"
            yield Fault(("spec", "context", "notes"), said, "lower them")


def _stage_faults(spec: ContextSpec, models: frozenset[str] | None) -> Iterator[Fault]:
    at = ("spec", "context", "stages")
    if not spec.stages:
        yield Fault(at, "is empty", "leave it out for the usual three")
        return
    before = 0
    for index, stage in enumerate(spec.stages):
        last = index == len(spec.stages) - 1
        if stage.below is None and not last:
            yield Fault((*at, index), "takes all the rest, and others follow it", "give it a below, or put it last")
        elif last and stage.below is not None:
            yield Fault((*at, index, "below"), "longer prompts are of no stage", "leave it out of the last stage")
        elif stage.below is not None:
            if stage.below <= before:
                yield Fault((*at, index, "below"), f"is not above {before}, where the stage before it ends")
            elif stage.below >= spec.most:
                yield Fault((*at, index, "below"), f"is not below {spec.most}, the most", "raise most, or lower it")
            before = max(before, stage.below)
        for place, name in enumerate(stage.models):
            if models is not None and name not in models:
                yield Fault(
                    (*at, index, "models", place), f"{quoted(name)} is no model of this route", instead(name, sorted(models))
                )
