"""Fit and stages: verdicts with their figures, and what a route does with a prompt of a length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resources.context import ContextSpec, FrameSpec, ServiceSpec, StageSpec, TokenizerSpec, context_faults, tokenizer_faults
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.routing.context import FITS, Context, Fit, Verdict, fit, refusal

TOKENS = st.integers(0, 20_000)


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        pytest.param((8192, 3000, 0, 5192), Verdict.FITS, id="to the last token"),
        pytest.param((8192, 3000, 0, 5193), Verdict.NEEDS_COUNT, id="one more may be too many"),
        pytest.param((8192, 3000, 5193, 9000), Verdict.DOES_NOT_FIT, id="one more is too many"),
        pytest.param((8192, 0, 8191, 8191), Verdict.FITS, id="an answer has one token at least"),
        pytest.param((8192, 0, 8192, 8192), Verdict.DOES_NOT_FIT, id="and none is no answer"),
        pytest.param((8192, 0, 0, 99_999, 8000), Verdict.FITS, id="a count settles it"),
        pytest.param((8192, 0, 0, 99_999, 8192), Verdict.DOES_NOT_FIT, id="either way"),
        pytest.param((8192, 1000, 5000, 6000, None, 4096), Verdict.TIGHT, id="the prompt fits, the answer asked for does not"),
        pytest.param((8192, 1000, 4000, 6000, None, 4096), Verdict.NEEDS_COUNT, id="or perhaps it does"),
        pytest.param((8192, 1000, 4000, 6000, 4096, 4096), Verdict.FITS, id="it does"),
    ],
)
def test_the_verdict_for_a_window(arguments: tuple[int, ...], verdict: Verdict) -> None:
    assert fit(*arguments).verdict is verdict


@given(window=TOKENS, headroom=TOKENS, lower=TOKENS, more=TOKENS, exact=TOKENS, asked=TOKENS)
def test_a_verdict_by_bounds_is_the_one_that_a_count_between_them_gives(
    window: int, headroom: int, lower: int, more: int, exact: int, asked: int
) -> None:
    by_bounds = fit(window, headroom, lower, lower + more, asked=asked).verdict
    by_count = fit(window, headroom, 0, 0, lower + min(exact, more), asked).verdict
    assert by_count is not Verdict.NEEDS_COUNT
    assert by_bounds in (by_count, Verdict.NEEDS_COUNT)


def test_a_prompt_that_fits_costs_no_object() -> None:
    assert fit(8192, 3000, 0, 100) is FITS


def test_the_figures_are_said() -> None:
    assert fit(8192, 3000, 0, 0, 6000, 4096, 40).why() == (
        "a prompt of 6000 tokens (40 of them for its frame) and 3000 for the answer, 4096 are asked for, in a window of 8192: "
        "808 too many"
    )
    assert fit(8192, 3000, 5193, 9000).why() == (
        "a prompt of 5193 to 9000 tokens and 3000 for the answer, in a window of 8192: 1 too many"
    )
    assert fit(8192, 0, 0, 9000).why() == "a prompt of up to 9000 tokens and 1 for the answer, in a window of 8192"
    error = refusal("code", {"small": fit(2048, 600, 0, 0, 2000), "big": fit(4096, 6000, 0, 0, 2000)})
    assert error.code is Code.CONTEXT_TOO_LONG
    assert error.message == (
        "the prompt does not fit any model behind 'code' (small: a prompt of 2000 tokens and 600 for the answer, in a window of "
        "2048: 552 too many; big: a prompt of 2000 tokens and 6000 for the answer, in a window of 4096: 3904 too many)"
    )


@pytest.mark.parametrize(
    ("lower", "upper", "kind"),
    [
        (0, 0, "summarise"),
        (0, 2047, "summarise"),
        (0, 2048, None),
        (2048, 2048, "reason"),
        (2048, 6143, "reason"),
        (2048, 6144, None),
        (6144, 6144, "chunked"),
        (8192, 90_000, "chunked"),
    ],
)
def test_a_prompt_is_of_the_stage_of_its_length(lower: int, upper: int, kind: str | None) -> None:
    stage = Context(ContextSpec()).stage(lower, upper)
    assert (stage.kind if stage is not None else None) == kind


def test_a_stage_prefers_models_by_name_or_by_all_its_labels() -> None:
    spec = StageSpec("summarise", models=["small"], labels={"tier": "tiny", "zone": "a"})
    stage = Context(ContextSpec(stages=[spec])).stages[0]

    def model(name: str, **labels: str) -> Model:
        return Model(Metadata(name, labels), ModelSpec("openai"))

    assert stage.picky
    assert [
        stage.prefers(model("small")),
        stage.prefers(model("a", tier="tiny", zone="a")),
        stage.prefers(model("b", tier="tiny")),
    ] == [
        True,
        True,
        False,
    ]
    plain = Context(ContextSpec()).stages[0]
    assert not plain.picky
    assert not plain.prefers(model("small"))


def test_the_service_is_what_the_header_says_else_the_domain_else_the_usual_one() -> None:
    context = Context(ContextSpec(service="summary"))
    assert context.service(b"code") == ServiceSpec(6000, resume=True)
    assert context.service(b"code", "summary") == ServiceSpec(6000, resume=True)
    assert context.service(None, "code") == ServiceSpec(6000, resume=True)
    assert context.service(None, "cooking") == ServiceSpec(3000)
    assert context.service(None) == ServiceSpec(3000)
    assert Context(ContextSpec()).service(None) == ServiceSpec()


STRANGERS = {
    "a near one": (b"Sumary", '"Sumary" is no service of this route; did you mean "summary"? there are summary, code'),
    "one in Chinese": ("写作".encode(), '"写作" is no service of this route; there are summary, code'),
    "a long one": (b"x" * 5000, f'"{"x" * 78}… is no service of this route; there are summary, code'),
    "no text": (b"\xff\x07", '"\ufffd\ufffd" is no service of this route; there are summary, code'),
}


@pytest.mark.parametrize(("name", "said"), STRANGERS.values(), ids=STRANGERS)
def test_a_service_that_is_none_is_named_with_the_nearest(name: bytes, said: str) -> None:
    with pytest.raises(SitsError) as caught:
        Context(ContextSpec()).service(name)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "x-sits-service")
    assert caught.value.message == "x-sits-service: " + said


def test_of_many_services_a_refusal_names_a_few() -> None:
    with pytest.raises(SitsError, match=r"there are s0, .*, s15 and 84 more$"):
        Context(ContextSpec(services={f"s{one}": ServiceSpec() for one in range(100)})).service(b"x")
    with pytest.raises(SitsError, match=r'"x" is no service of this route; the route has none$'):
        Context(ContextSpec(services={})).service(b"x")


@pytest.mark.parametrize(
    ("oversize", "declared", "window"),
    [
        (None, 32_768, 32_768),
        ("larger", 32_768, 32_768),
        ("larger", None, 8192),
        ("larger", 4096, 4096),
        ("split", 32_768, 8192),
        ("refuse", None, 8192),
    ],
)
def test_the_most_bounds_every_window_unless_longer_prompts_go_to_larger_ones(
    oversize: str | None, declared: int | None, window: int
) -> None:
    assert Context(ContextSpec(oversize=oversize)).window(declared) == window  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(ContextSpec(), [], id="the usual one"),
        pytest.param(ContextSpec(stages=[]), ["spec.context.stages is empty"], id="no stage"),
        pytest.param(
            ContextSpec(stages=[StageSpec("reason"), StageSpec("chunked")]),
            ["spec.context.stages.0 takes all the rest, and others follow it"],
            id="the rest in the middle",
        ),
        pytest.param(
            ContextSpec(stages=[StageSpec("summarise", 4000), StageSpec("reason", 2000), StageSpec("chunked")]),
            ["spec.context.stages.1.below is not above 4000, where the stage before it ends"],
            id="falling",
        ),
        pytest.param(
            ContextSpec(stages=[StageSpec("reason", 2000)]),
            ["spec.context.stages.0.below longer prompts are of no stage"],
            id="a gap at the end",
        ),
        pytest.param(
            ContextSpec(
                most=4096,
                stages=[StageSpec("summarise", 2048), StageSpec("reason", 6144), StageSpec("chunked")],
                services={},
            ),
            ["spec.context.stages.1.below is not below 4096, the most"],
            id="a stage above the most",
        ),
        pytest.param(
            ContextSpec(stages=[StageSpec("reason", models=["a", "z"])]),
            ['spec.context.stages.0.models.1 "z" is no model of this route'],
            id="a stranger",
        ),
        pytest.param(
            ContextSpec(services={"code": ServiceSpec(8192)}, notes=16),
            ["spec.context.services.code.headroom leaves no room for a prompt: the most is 8192"],
            id="all of it for the answer",
        ),
        pytest.param(
            ContextSpec(service="poetry"), ['spec.context.service "poetry" is not among the services'], id="no such service"
        ),
        pytest.param(
            ContextSpec(notes=1100),
            ["spec.context.notes fill most of what is left for a prompt (2192 tokens) beside the largest headroom"],
            id="notes without room",
        ),
    ],
)
def test_a_context_that_cannot_work_is_told_where(spec: ContextSpec, said: list[str]) -> None:
    faults = context_faults(spec, frozenset(("a", "b")))
    assert [".".join(map(str, fault.path)) + " " + fault.message for fault in faults] == said


@pytest.mark.parametrize(
    ("spec", "engine", "paths"),
    [
        (TokenizerSpec(), "vllm", []),
        (TokenizerSpec("file:/m/tokenizer.json", FrameSpec()), "openai", []),
        (TokenizerSpec(), "openai", ["source"]),
        (TokenizerSpec(frame=FrameSpec()), "local", ["frame"]),
        (TokenizerSpec("hf:a/b"), "vllm", ["source"]),
        (TokenizerSpec("file: "), "vllm", ["source"]),
        (TokenizerSpec("file:x", FrameSpec("{role}")), "vllm", ["message"]),
    ],
)
def test_a_tokenizer_that_cannot_count_is_told(spec: TokenizerSpec, engine: str, paths: list[str]) -> None:
    assert [fault.path[-1] for fault in tokenizer_faults(spec, engine)] == paths


def test_a_verdict_without_figures_is_of_nobody() -> None:
    assert Fit(Verdict.FITS) == FITS
    assert FITS.lacking == 1
