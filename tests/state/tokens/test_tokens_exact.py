"""Counts held against the models themselves, and bounds held against counts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from tokens_kit import TALKS, TEXTS, Models, ask_of, body_of, llama2, smol, smol_file, target_of

from sits.inner.ask import Ask
from sits.inner.errors import SitsError
from sits.resources.context import FrameSpec, TokenizerSpec
from sits.routing.context.bounds import Bounds, Shape, kept
from sits.routing.target import Target
from sits.state.tokens.base import Count
from sits.state.tokens.reader import load
from sits.state.tokens.tokens import Tokens

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=100, deadline=None)
SMOL_FRAME = FrameSpec(
    system="<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)
BYTES = Shape.of(TokenizerSpec(normalises="none", longest=256))


@pytest.fixture(scope="module")
def targets(models: Models) -> tuple[Target, Target]:
    """The same model counted by its file and by its server."""
    return target_of("by-file", models.engines["smol"]), target_of("by-server", models.engines["smol"])


@pytest.fixture(scope="module")
def tokens(models: Models, targets: tuple[Target, Target]) -> Iterator[Tokens]:
    spec = TokenizerSpec(f"file:{smol_file()}", SMOL_FRAME, wait_ms=20_000)
    made = Tokens(lambda model: spec if model is targets[0].model else TokenizerSpec(wait_ms=20_000))
    yield made
    models.run(made.aclose())


@given(text=TEXTS)
@MANY
@pytest.mark.parametrize("name", ["smol", "llama2"])
def test_a_tokenizer_of_a_file_stays_within_the_bounds(name: str, text: str) -> None:
    reader = smol() if name == "smol" else llama2()
    tokens = reader.count([text])[0]
    assert BYTES.least([text]) <= tokens <= BYTES.most(text) + 1, "one more for the blank that SentencePiece puts in front"


@given(text=TEXTS)
@FEW
def test_gemma_stays_within_the_bounds(models: Models, text: str) -> None:
    tokens = models.tokens("gemma", text)
    assert BYTES.least([text]) <= tokens <= BYTES.most(text) + 1, "one more for its beginning"


@given(text=TEXTS.filter(lambda text: "\0" not in text and text.strip()))
@FEW
def test_e5_stays_within_the_bounds_of_nfkc(models: Models, text: str) -> None:
    frame = models.tokens("e5", "a")
    assert models.tokens("e5", text) <= Shape.of(TokenizerSpec(normalises="nfkc")).most(text) + frame


@given(text=TEXTS)
@FEW
def test_the_vocabulary_of_a_gguf_file_counts_as_llama_cpp_does(models: Models, text: str) -> None:
    assert smol().count([text]) == [models.tokens("smol", text)]


@given(talk=TALKS)
@FEW
def test_a_request_stays_within_the_bounds_of_its_bytes_template_and_all(models: Models, talk: list[tuple[str, str]]) -> None:
    body, ask = body_of(*talk), ask_of(*talk)
    prompt = models.post("smol", "/apply-template", **json.loads(body))["prompt"]
    tokens = smol().count([prompt])[0]
    bounds = Bounds(body)
    bounds.sharpen()
    assert BYTES.least(kept(ask)) <= tokens <= bounds.upper(BYTES)


@given(talk=TALKS)
@FEW
def test_file_and_server_count_the_same_conversation_alike(
    models: Models, tokens: Tokens, targets: tuple[Target, Target], talk: list[tuple[str, str]]
) -> None:
    by_file, by_server = targets

    async def story() -> tuple[Count, Count]:
        return await tokens.count(by_file, ask_of(*talk)), await tokens.count(by_server, ask_of(*talk))

    found, said = models.run(story())
    assert (found.exact, found.source) == (True, "file")
    assert (said.exact, said.source) == (True, "upstream")
    assert found.tokens == said.tokens


@pytest.mark.parametrize(
    "talk",
    [
        [("user", "What is 2+2?")],
        [("system", "简短回答。"), ("user", "人工智能是什么？"), ("assistant", "一门科学。"), ("user", "谢谢 👍")],
        [("user", "def f(x):\n    return x\n\n\n<|im_end|> is a mark")],
    ],
    ids=["one", "chinese", "marks"],
)
def test_a_count_is_what_the_model_says_it_has_read(
    models: Models, tokens: Tokens, targets: tuple[Target, Target], talk: list[tuple[str, str]]
) -> None:
    answer = models.post("smol", "/v1/chat/completions", **json.loads(body_of(*talk, max_tokens=1)))
    assert models.run(tokens.count(targets[1], ask_of(*talk))).tokens == answer["usage"]["prompt_tokens"]


def test_a_completion_counts_by_the_longest_of_its_prompts(
    models: Models, tokens: Tokens, targets: tuple[Target, Target]
) -> None:
    ask = Ask("completions", "smol", prompts=("one two three four five", "人", (1, 2, 3)))

    assert models.run(tokens.count(targets[1], ask)) == Count(5, True, "upstream")
    assert tokens.known(targets[1], ask) == Count(5, True, "upstream")
    assert models.run(tokens.texts(targets[1], ["one two", ""])) == [2, 0]


def test_a_vocabulary_that_would_only_nearly_be_counted_is_refused(models: Models) -> None:
    from local_kit import CACHE, gemma_plan

    gemma = CACHE / "sha256" / str(gemma_plan().weights.sha256) / "gemma-3-270m-q4_k_m.gguf"
    assert models.tokens("gemma", "hello"), "it is there"
    with pytest.raises(SitsError, match="is of the kind llama, which is not counted here; use source: upstream"):
        load(gemma)


def test_bytes_that_a_vocabulary_lacks_are_left_out_and_join_nothing(models: Models) -> None:
    texts = [f":{chr(code)}:" for code in range(1, 32)] + ["\x16\x16", "\x04", "a\x06b", " \x13 "]
    assert smol().count(texts) == [models.tokens("smol", text) for text in texts]
    assert smol().count(["\x16\x16"]) == [0]
    assert BYTES.least(["\x16\x16"]) == 0


def test_parts_add_up_where_they_begin_with_a_mark() -> None:
    assert smol().parts_at("<|im_start|>user")
    assert not smol().parts_at("user<|im_start|>")
    assert smol().adds_up(["<|im_start|>a", "<|im_start|>b"])
    assert not smol().adds_up(["hel", "lo"])
    assert llama2().adds_up(["<s>a", "<s>b"])
