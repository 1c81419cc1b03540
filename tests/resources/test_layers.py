"""All faults come at once: none hides another, and none makes another."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.cli.validate import validate
from sits.resources.checks import faults_in_part
from sits.resources.conform import faults
from sits.resources.kinds import KINDS
from sits.resources.partly import partly
from sits.resources.problem import ConfigError, Problem
from sits.resources.reading import read_text
from sits.resources.snapshot import compile_reading
from sits.resources.unread import UNREAD, Unread
from sits.routing.scheduling.judging import use_faults

MODEL = "kind: Model\nmetadata: {name: llama-vllm}\nspec: {engine: vllm, endpoint: 'http://h:1'}\n---\n"
ROUTE = "kind: Route\nmetadata: {name: r}\nspec:\n  "
DOMAIN = "kind: Domain\nmetadata: {name: d}\nspec: {examples: [a, b, c, d]}\n---\n"


def found(text: str) -> tuple[Problem, ...]:
    try:
        compile_reading(read_text(text, "m.yaml"), 1, judge=use_faults)
    except ConfigError as error:
        return error.problems
    return ()


TOGETHER: dict[str, tuple[str, list[str]]] = {
    "an unknown key, no such model, no such score": (
        MODEL + ROUTE + "backends: [{model: llama-vlm}]\n  complexity: {tiers: {tiny: {labels: {a: b}}}, lerning: {}}\n"
        "  scores: [{name: lod}]\n",
        [
            'm.yaml:8:22 spec.backends[0].model: no Model "llama-vlm"; did you mean "llama-vllm"?',
            'm.yaml:9:49 spec.complexity.lerning: unknown key; did you mean "learning"?',
            'm.yaml:10:19 spec.scores[0].name: there is no score "lod"; did you mean "load"?',
        ],
    ),
    "a figure that is none, a weight out of range, unknown settings": (
        MODEL + ROUTE + "backends: [{model: llama-vllm, share: -1}]\n  total: .nan\n"
        "  scores: [{name: latency, weight: .inf, settings: {of: frist, what: 1}}, {name: kv, settings: {unknown: .nan}}]\n",
        [
            "m.yaml:8:34 spec.backends[0].share: unknown key; known here: model, weight, select",
            "m.yaml:9:10 spec.total: .nan is not a figure that can be used here; give a finite figure, or put it in quotes",
            "m.yaml:10:36 spec.scores[0].weight: .inf is not a figure that can be used here; "
            "give a finite figure, or put it in quotes",
            'm.yaml:10:57 spec.scores[0].settings.of: "frist" is not one of first, total; did you mean "first"?',
            'm.yaml:10:64 spec.scores[0].settings.what: there is no setting "what"; known here: of',
            "m.yaml:10:106 spec.scores[1].settings.unknown: .nan is not a figure that can be used here; "
            "give a finite figure, or put it in quotes",
        ],
    ),
    "shapes, rules and relations of one Model": (
        DOMAIN + "kind: Model\nmetadata: {name: a}\nspec:\n  engine: vllm\n  endpoint: http://h/v1\n  region: 7\n"
        "  headers: {Host: x}\n  semantics: {intents: [e], grounding: {scopes: ['a,b']}}\n",
        [
            "m.yaml:9:13 spec.endpoint: ends in /v1, which is added for each request; write http://h",
            'm.yaml:10:11 spec.region: must be text, not a number (7); put it in quotes: "7"',
            "m.yaml:11:13 spec.headers.Host: is written by the gateway itself; remove it",
            'm.yaml:12:25 spec.semantics.intents[0]: no Domain "e"; there is d',
            'm.yaml:12:50 spec.semantics.grounding.scopes[0]: "a,b" is nothing that a request can name: '
            "its scopes are separated by commas; write each scope by itself, without blanks around it",
        ],
    ),
    "a document that cannot be read in part, and others": (
        "kind: Route\nkind: Model\nmetadata: {name: x}\n---\nkind: Switch\nmetadata: {name: s}\n"
        "spec: {from: a, to: b, rooutes: [r]}\n",
        [
            'm.yaml:2:1 kind: key "kind" is here twice, first at line 1, column 1; keep one of them',
            'm.yaml:7:14 spec.from: no Model "a"',
            'm.yaml:7:21 spec.to: no Model "b"',
            'm.yaml:7:24 spec.rooutes: unknown key; did you mean "routes"?',
        ],
    ),
    "an item of a list that cannot be read": (
        MODEL + "kind: Domain\nmetadata: {name: d}\nspec:\n  examples: [a, b, '', B, 7, c]\n  prefers: {models: [llama]}\n",
        [
            "m.yaml:8:20 spec.examples[2]: the text is empty; give at least 1 character",
            'm.yaml:8:24 spec.examples[3]: "B" is there twice; remove one',
            'm.yaml:8:27 spec.examples[4]: must be text, not a number (7); put it in quotes: "7"',
            'm.yaml:9:22 spec.prefers.models[0]: no Model "llama"; did you mean "llama-vllm"?',
        ],
    ),
    "an InferenceRoute": (
        MODEL + "kind: InferenceRoute\nmetadata: {name: i}\nspec:\n  backends: [llama]\n"
        "  pathPrefix: /v1\n  aliases: [llama-vllm]\n",
        [
            'm.yaml:8:14 spec.backends[0]: no Model "llama"; did you mean "llama-vllm"?',
            "m.yaml:9:3 spec.pathPrefix: has no meaning in an InferenceRoute that is read here; "
            "a route answers on every endpoint that its models have",
            'm.yaml:10:13 spec.aliases[0]: "llama-vllm" is the name of Model "llama-vllm" (m.yaml:1:1); choose another alias',
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), TOGETHER.values(), ids=TOGETHER)
def test_independent_faults_come_at_once_by_line(text: str, said: list[str]) -> None:
    assert [str(problem) for problem in found(text)] == said


ALONE = {
    "a model whose name could not be read may be the one that is meant": (
        "kind: Model\nmetadata: {name: a b}\nspec: {engine: vllm, endpoint: 'http://h:1'}\n---\n"
        + ROUTE + "backends: [{model: a}]\n",
        ["metadata.name"],
    ),
    "a model of a kind that is misspelt is there": (
        "kind: Modell\nmetadata: {name: a}\nspec: {}\n---\n" + ROUTE + "backends: [{model: a}]\n",
        ["kind"],
    ),
    "a key that is misspelt is not missing": (
        "kind: Model\nmetadata: {name: a}\nspec: {engine: vllm, endpont: 'http://h:1'}\n",
        ["spec.endpont"],
    ),
    "what goes by a field that cannot be read is not judged": (
        MODEL + ROUTE + "backends: [{model: llama-vllm}]\n  policy: scores\n  scores: 7\n",
        ["spec.scores"],
    ),
    "a policy that cannot be read goes with anything": (
        MODEL + ROUTE + "backends: [{model: llama-vllm}]\n  policy: socres\n  scores: [{name: load}]\n",
        ["spec.policy"],
    ),
    "aliases that cannot be read may be what a key names": (
        MODEL + ROUTE + "backends: [{model: llama-vllm}]\n  aliases: x\n---\nkind: Key\nmetadata: {name: k}\n"
        f"spec: {{sha256: {'a' * 64}, models: [y]}}\n",
        ["spec.aliases"],
    ),
    "backends that cannot be read may be of any name": (
        MODEL + ROUTE + "backends: 7\n  complexity: {tiers: {tiny: {models: [llama-vllm]}}}\n",
        ["spec.backends"],
    ),
    "settings that cannot be read may bring plugins": (
        "kind: Settings\nspec: 7\n---\n" + MODEL + ROUTE + "backends: [{model: llama-vllm}]\n  scores: [{name: mine}]\n",
        ["spec"],
    ),
    "a context whose length cannot be read": (
        MODEL + ROUTE + "backends: [{model: llama-vllm}]\n  context: {most: many, service: code}\n",
        ["spec.context.most"],
    ),
    "a file that is no YAML may declare anything": ("kind: [\n", [""]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "paths"), ALONE.values(), ids=ALONE)
def test_no_fault_follows_from_what_could_not_be_read(text: str, paths: list[str]) -> None:
    assert [problem.path for problem in found(text)] == paths


def test_a_file_that_cannot_be_read_does_not_hide_what_another_one_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: [1, 2", encoding="utf-8")
    (tmp_path / "b.yaml").write_text(MODEL + ROUTE + "backends: [{model: elsewhere}]\n  tota: 0\n", encoding="utf-8")
    said = CliRunner().invoke(validate, [str(tmp_path)]).stdout.splitlines()
    assert said == [
        f"{tmp_path}/a.yaml:1:12 a list or mapping in brackets is not closed; check commas and brackets",
        f'{tmp_path}/b.yaml:9:3 spec.tota: unknown key; did you mean "total"?',
    ]


USES = [
    lambda: UNREAD == 1, lambda: UNREAD in {"a"}, lambda: f"{UNREAD}", lambda: f"{UNREAD:g}", lambda: sum([UNREAD]),
    lambda: not UNREAD, lambda: UNREAD.field, lambda: max(1, UNREAD), lambda: UNREAD > 1, lambda: "a" in UNREAD,
    lambda: {**UNREAD}, lambda: [*UNREAD], lambda: len(UNREAD), lambda: UNREAD[0], lambda: {"a": UNREAD} == {"a": 1},
    lambda: "a" + UNREAD, lambda: 0 <= UNREAD <= 1,
]  # fmt: skip


def test_every_use_of_what_could_not_be_read_ends_the_rule_that_made_it() -> None:
    for number, use in enumerate(USES):
        with pytest.raises(Unread):
            pytest.fail(f"use {number} gave {use()!r}")  # type: ignore[no-untyped-call]
    assert UNREAD is not None
    assert repr(UNREAD) == "UNREAD"


BAD = st.sampled_from(["UNREAD", 7, "x", [], {}, None, -1, [7], {"k": 7}, True])
GOOD = {
    "Model": {
        "engine": "vllm", "endpoint": "http://h:1", "headers": {"a": "b"}, "semantics": {"intents": ["d"]},
        "deadlines": {"total": 5, "idle": 1}, "health": {"query": "up", "below": 1}, "tls": {}, "tokenizer": {}, "cost": {},
    },
    "Route": {
        "backends": [{"model": "a", "weight": 1}, {"select": {"a": "b"}}], "fallbacks": ["b"], "aliases": ["c"],
        "rules": [{"name": "r", "match": {"region": ["eu"]}, "backends": [{"model": "a"}], "while": {"p99BelowMs": 5}}],
        "scores": [{"name": "load", "weight": 1, "settings": {}}], "complexity": {"tiers": {"tiny": {"models": ["a"]}}},
        "context": {"most": 100, "services": {"x": {"headroom": 5}}}, "units": {}, "hash": {"by": "key"},
        "ladder": {"template": "t"},
    },
    "Domain": {"examples": {"en": ["a", "b", "c", "d"]}, "unlike": ["e"], "prefers": {"models": ["a"]}},
    "Pressure": {"trigger": {"metric": "kv_cache", "threshold": 0.9}, "action": {"type": "shorten", "config": {"max_tokens": 5}}},
    "Switch": {"from": "a", "to": "b", "pace": {"steps": [0.1, 1.0]}, "routes": ["r"]},
    "Settings": {"trace": {"headers": ["a"]}, "qos": {}, "store": "sqlite", "cluster": {"name": "c"}, "embedder": {"model": "a"}},
    "Key": {"sha256": "a" * 64, "models": ["a"], "expires": "2027-01-31T00:00:00Z"},
}  # fmt: skip


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[str, object]:
    """A resource with something wrong, or unread, at one to three places."""
    kind = draw(st.sampled_from(sorted(GOOD)))

    def copied(value: object) -> object:
        if isinstance(value, dict):
            return {key: copied(part) for key, part in value.items()}
        return [copied(part) for part in value] if isinstance(value, list) else value

    value = {"kind": kind, "metadata": {"name": "n"}, "spec": copied(GOOD[kind])}
    for _ in range(draw(st.integers(1, 3))):
        at: object = value["spec"]
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
            inner = at[key]
            if not isinstance(inner, dict | list) or draw(st.booleans()):
                bad = draw(BAD)
                at[key] = UNREAD if bad == "UNREAD" else copied(bad)
                break
            at = inner
    return kind, value


@settings(max_examples=100, deadline=None)
@given(spoilt())
def test_whatever_is_wrong_the_rules_see_what_is_left_and_never_fail(made: tuple[str, object]) -> None:
    kind, value = made
    shape = faults(value, KINDS[kind])
    part = partly(value, KINDS[kind], shape)
    assert all(fault.message for fault in [*shape, *([] if part is UNREAD else faults_in_part(part))])
