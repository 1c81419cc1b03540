"""Who has room for a request: by its size where that says it, by a count where it does not, and never refused on a guess."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from sits import dialects
from sits.dialects.openai_chat import CHAT
from sits.engines.base import Deadlines
from sits.gateway.counting import UNCOUNTED, Fitness, Judged, is_plain
from sits.inner.ask import Ask
from sits.inner.estimate import fewest_tokens, text_tokens
from sits.resources.context import ContextSpec, ServiceSpec, StageSpec, TokenizerSpec
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.resources.local import LocalSpec
from sits.routing.context import Verdict
from sits.routing.target import Target
from sits.state.tokens import Count


def target(name: str, window: int | None = None, **labels: str) -> Target:
    spec = ModelSpec("vllm", endpoint="http://m", context_window=window, tokenizer=TokenizerSpec(normalises="none", longest=16))
    model = Model(Metadata(name, labels), spec)
    return Target(name, name, "vllm", dialects.upstream("vllm"), None, frozenset(), Deadlines(), b"", b"", model)  # type: ignore[arg-type]


class Counted:
    """Counts as it is told, and remembers for whom."""

    def __init__(self, tokens: int = 0, exact: bool = True, known: bool = False) -> None:
        self._count = Count(tokens, exact, "told")
        self._known = known
        self.asked: list[str] = []

    def known(self, target: Target, ask: Ask) -> Count | None:
        return self._count if self._known else None

    async def count(self, target: Target, ask: Ask) -> Count:
        self.asked.append(target.name)
        return self._count


def body_of(size: int, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * size}], **fields}).encode()


def judged(fitness: Fitness, tokens: Counted, body: bytes, *targets: Target, headroom: int = 0) -> Judged:
    return asyncio.run(fitness.judge(tokens, CHAT.read(body), body, targets, ServiceSpec(headroom)))


def verdicts(found: Judged) -> dict[str, str]:
    return {name: one.verdict.value for name, one in found.fits.items()}


def test_a_local_model_has_the_room_that_it_is_given_here_whatever_its_weights_could() -> None:
    local = LocalSpec(source="file:/m.gguf", context=512)
    windows = [ModelSpec("local", local=local, context_window=window).window for window in (None, 400, 512, 8192)]
    assert windows == [None, 400, 512, 512]
    one = target("m", 8192)
    one = replace(one, model=Model(one.model.metadata, ModelSpec("local", local=local, context_window=8192)))
    assert Fitness([one]).rows["m"].window == 512


@pytest.mark.parametrize(
    ("size", "plain", "headroom", "quick"),
    [
        pytest.param(100, True, 0, True, id="small"),
        pytest.param(100, False, 0, True, id="small, with tools"),
        pytest.param(1000, False, 0, False, id="too long to say, with tools"),
        pytest.param(3700, True, 0, True, id="just"),
        pytest.param(3700, True, 600, False, id="not with that headroom"),
        pytest.param(4090, True, 0, False, id="too long to say"),
    ],
)
def test_most_requests_are_known_to_fit_by_their_size(size: int, plain: bool, headroom: int, quick: bool) -> None:
    fitness = Fitness([target("small", 4096), target("big", 32_768), target("any")])
    assert fitness.any
    assert fitness.quick(body_of(size), plain, headroom) is quick


def test_text_that_may_grow_counts_as_grown() -> None:
    spec = TokenizerSpec(normalises="nfc")
    one = target("m", 4096)
    fitness = Fitness([one], tokenizer=lambda _: spec)
    assert fitness.quick(b"a" * 3000, True)
    assert fitness.quick("人".encode() * 400, True)
    assert not fitness.quick("人".encode() * 1000, True)


def test_nothing_is_judged_where_nobody_declares_a_window() -> None:
    assert not Fitness([target("a"), target("b")]).any
    assert Fitness([target("a")], ContextSpec()).any, "a route with a context has one of its own"


def test_each_target_is_judged_by_its_own_window_and_only_the_doubtful_are_counted() -> None:
    small, middle, big = target("small", 100), target("middle", 2000), target("big", 8000)
    tokens = Counted(1500)
    found = judged(Fitness([small, middle, big]), tokens, body_of(3200), small, middle, big)
    assert verdicts(found) == {"small": "does_not_fit", "middle": "fits", "big": "fits"}
    assert tokens.asked == ["middle"]
    assert [one.name for one in found.order([small, middle, big])] == ["middle", "big"]
    assert found.refusal("r").message == (
        "the prompt does not fit any model behind 'r' (small: a prompt of 200 to 3389 tokens and 1 for the answer, in a window "
        "of 100: 101 too many)"
    )


def test_a_count_that_is_known_is_not_waited_for() -> None:
    one, tokens = target("one", 2000), Counted(1999, known=True)
    assert verdicts(judged(Fitness([one]), tokens, body_of(3200), one)) == {"one": "fits"}
    assert tokens.asked == []


def test_what_is_only_estimated_to_be_too_long_is_asked_for_after_the_others_largest_window_first() -> None:
    small, big, sure = target("small", 2000), target("big", 3000), target("sure", 9000)
    found = judged(Fitness([small, big, sure]), Counted(5000, exact=False), body_of(3200), small, big, sure)
    assert verdicts(found) == {"small": "needs_count", "big": "needs_count", "sure": "fits"}
    assert [one.name for one in found.order([small, big, sure])] == ["sure", "big", "small"]
    assert not found.split
    guessed = judged(Fitness([small]), Counted(500, exact=False), body_of(3200), small)
    assert verdicts(guessed) == {"small": "fits"}


def test_a_request_with_tools_has_more_room_to_grow_before_it_is_counted() -> None:
    one, tokens = target("one", 4000), Counted(3999)
    tool = {"type": "function", "function": {"name": "f"}}
    assert verdicts(judged(Fitness([one]), tokens, body_of(700, tools=[tool]), one)) == {"one": "fits"}
    assert tokens.asked == []
    assert verdicts(judged(Fitness([one]), tokens, body_of(1000, tools=[tool]), one)) == {"one": "fits"}
    assert tokens.asked == ["one"]


def test_images_are_estimated_and_never_counted_or_refused_for() -> None:
    small, big, tokens = target("small", 900), target("big", 4000), Counted(1)
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [image]}]}).encode()
    assert not is_plain(CHAT.read(body))
    found = judged(Fitness([small, big]), tokens, body, small, big)
    assert verdicts(found) == {"small": "needs_count", "big": "fits"}
    assert found.count == Count(1004, False, "estimate: images")
    assert tokens.asked == []
    assert [one.name for one in found.order([small, big])] == ["big", "small"]


def test_replicas_of_a_model_are_counted_once() -> None:
    replicas = [replace(target(f"m-{number}", 2000), upstream_model="m") for number in range(3)]
    tokens = Counted(1500)
    found = judged(Fitness(replicas), tokens, body_of(3200), *replicas)
    assert verdicts(found) == {"m-0": "fits", "m-1": "fits", "m-2": "fits"}
    assert tokens.asked == ["m-0"]


def test_an_answer_that_is_asked_for_and_has_no_room_comes_last_but_is_not_refused() -> None:
    small, big = target("small", 4000), target("big", 9000)
    found = judged(Fitness([small, big]), Counted(1000), body_of(1200, max_tokens=6000), small, big)
    assert verdicts(found) == {"small": "tight", "big": "fits"}
    assert [one.name for one in found.order([small, big])] == ["big", "small"]


@pytest.mark.parametrize(
    ("size", "count", "kind", "counted"),
    [
        pytest.param(1000, 0, "summarise", False, id="short: by its size"),
        pytest.param(3000, 1000, "summarise", True, id="counted"),
        pytest.param(30_000, 5000, "reason", True, id="longer"),
        pytest.param(30_000, 7000, "chunked", True, id="longest"),
    ],
)
def test_the_stage_is_by_size_where_that_says_it_else_by_a_count(size: int, count: int, kind: str, counted: bool) -> None:
    one, tokens = target("one", 200_000), Counted(count)
    found = judged(Fitness([one], ContextSpec()), tokens, body_of(size), one)
    assert found.stage is not None
    assert found.stage.kind == kind
    assert (found.count != UNCOUNTED) is counted
    assert found.split is (kind == "chunked")


def test_whom_a_stage_prefers_is_asked_first_of_those_with_room() -> None:
    context = ContextSpec(stages=[StageSpec("summarise", 2048, labels={"tier": "tiny"}), StageSpec("reason", models=["big"])])
    full, big, tiny = target("full", 60), target("big", 32_000), target("tiny", 32_000, tier="tiny")
    fitness = Fitness([full, big, tiny], context)
    short = judged(fitness, Counted(), body_of(1000), full, big, tiny)
    assert [one.name for one in short.order([full, big, tiny])] == ["tiny", "big"]
    long = judged(fitness, Counted(3000), body_of(9000), full, tiny, big)
    assert [one.name for one in long.order([full, tiny, big])] == ["big", "tiny"]


@pytest.mark.parametrize(("oversize", "split"), [("larger", False), ("split", True), ("refuse", False)])
def test_a_prompt_that_fits_nobody_is_split_where_the_route_says_so(oversize: Any, split: bool) -> None:
    one = target("one", 4096)
    context = ContextSpec(most=4096, stages=[StageSpec("reason")], services={}, oversize=oversize)
    found = judged(Fitness([one], context), Counted(5000), body_of(9000), one)
    assert found.fits["one"].verdict is Verdict.DOES_NOT_FIT
    assert found.split is split
    assert found.order([one]) == []


@pytest.mark.parametrize(
    ("oversize", "count", "split"),
    [(None, 5000, True), (None, 3500, True), ("larger", 5000, False), ("larger", 3500, True), ("split", 5000, True),
     ("split", 3500, True), ("refuse", 5000, False), ("refuse", 3500, True)],
)  # fmt: skip
def test_a_stage_speaks_for_prompts_that_fit_unless_nobody_says_what_becomes_of_others(
    oversize: Any, count: int, split: bool
) -> None:
    one = target("one", 4096)
    context = ContextSpec(most=4096, stages=[StageSpec("reason", 3072), StageSpec("chunked")], services={}, oversize=oversize)
    assert judged(Fitness([one], context), Counted(count), body_of(9000), one).split is split


GUESSED: dict[str, tuple[Any, int | None, int, bool]] = {
    "no context but a window": (None, 4096, 0, True),
    "refused beyond the most": ("refuse", 32_000, 4096, False),
    "refused beyond a window, too": ("refuse", 3000, 4096, False),
    "not so certain": ("refuse", 32_000, 7000, True),
    "split beyond the most": ("split", 32_000, 4096, False),
    "larger ones have the last word": ("larger", 5000, 4096, True),
    "one that declares none has the most": ("larger", None, 4096, False),
    "nobody says": (None, None, 4096, True),
}


@pytest.mark.parametrize(("oversize", "window", "most", "asked"), GUESSED.values(), ids=GUESSED)
def test_beyond_the_most_of_a_route_an_estimate_counts_and_a_sparing_one(
    oversize: Any, window: int | None, most: int, asked: bool
) -> None:
    one = target("one", window) if window is not None else target("one")
    context = ContextSpec(most=most, stages=[StageSpec("reason")], services={}, notes=16, oversize=oversize) if most else None
    found = judged(Fitness([one], context), Counted(10_000, exact=False), body_of(40_000), one)
    assert bool(found.order([one])) is asked
    if not asked:
        why = found.fits["one"].why()
        assert why.startswith("a prompt of about 10000 tokens, not counted but hardly fewer than 6666, and 1 for the answer")
    assert found.split is (oversize == "split")


@pytest.mark.parametrize(("text", "fewest"), [("word " * 60, 50), ("人工智能" * 25, 40), ("人" * 100 + "a" * 60, 50), ("", 0)])
def test_hardly_any_text_has_fewer_tokens_than_this(text: str, fewest: int) -> None:
    assert fewest_tokens(text) == fewest
    assert fewest <= text_tokens(text)


def test_the_most_of_a_route_bounds_a_larger_window_unless_larger_ones_are_for_longer_prompts() -> None:
    one = target("one", 32_000)
    for oversize, verdict in (("refuse", "does_not_fit"), ("larger", "fits")):
        context = ContextSpec(most=4096, stages=[StageSpec("reason")], services={}, oversize=oversize)  # type: ignore[arg-type]
        assert verdicts(judged(Fitness([one], context), Counted(5000), body_of(40_000), one)) == {"one": verdict}


def test_the_headroom_of_a_service_is_kept_free() -> None:
    one = target("one", 8192)
    for headroom, verdict in ((3000, "fits"), (6000, "does_not_fit")):
        assert verdicts(judged(Fitness([one]), Counted(2500), body_of(9000), one, headroom=headroom)) == {"one": verdict}
