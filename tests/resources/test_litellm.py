"""A LiteLLM configuration becomes resources that validate; what is left behind is named with its line."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from sits.resources.kinds import Model, Route
from sits.resources.litellm import Imported, files, import_config
from sits.resources.plain import plain
from sits.resources.problem import ConfigError
from sits.resources.reading import read, read_text
from sits.resources.snapshot import compile, compile_reading

WHOLE = """\
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: openai/gpt-4o
      api_key: os.environ/OPENAI_API_KEY
      rpm: 300
    model_info:
      max_input_tokens: 128000
      input_cost_per_token: 0.0000025
      output_cost_per_token: 0.00001
      supports_function_calling: true
      mode: chat
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: https://x.openai.azure.com/
  - model_name: gpt-4o
    litellm_params:
      model: gpt-4o-2024-08-06
      api_key: sk-canary-secret
      rpm: 100
  - model_name: claude
    litellm_params:
      model: anthropic/claude-sonnet-4-5
      timeout: 30
      temperature: 0.2
  - model_name: qwen
    litellm_params:
      model: hosted_vllm/Qwen/Qwen3-8B
      api_base: http://10.0.0.7:8000/v1
      api_key: EMPTY
      extra_headers: {X-Team: search, Authorization: Bearer canary-secret}
  - model_name: mixtral
    litellm_params:
      model: huggingface/mistralai/Mixtral-8x7B
      api_base: http://tgi:8080/
  - model_name: llama3
    litellm_params:
      model: ollama_chat/llama3.1:8b
  - model_name: e5
    litellm_params:
      model: openai/intfloat/e5
      api_base: os.environ/E5_BASE
    model_info: {mode: embedding}
  - model_name: "*"
    litellm_params: {model: "openai/*"}
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 2
  model_group_alias:
    gpt-4: gpt-4o
    secret: {model: claude, hidden: true}
    lost: gpt-4oo
litellm_settings:
  request_timeout: 120
  fallbacks: [{gpt-4o: [claude, qwen]}, {claude: [nobody]}]
  context_window_fallbacks: [{gpt-4o: [claude]}]
  drop_params: true
general_settings:
  master_key: sk-canary-secret
environment_variables:
  REDIS_HOST: canary-secret
"""


def imported(tmp_path: pathlib.Path, text: str, **environ: str) -> Imported:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return import_config(file, environ)


def test_a_whole_configuration_is_carried_over(tmp_path: pathlib.Path) -> None:
    found = [plain(r) for r in imported(tmp_path, WHOLE, E5_BASE="https://e5/v1").resources]
    assert {row["metadata"]["name"]: row["spec"] for row in found if row["kind"] == "Model"} == {
        "gpt-4o-1": {
            "engine": "openai",
            "endpoint": "https://api.openai.com",
            "upstreamModel": "gpt-4o",
            "apiKey": "env:OPENAI_API_KEY",
            "capabilities": ["chat", "tools"],
            "contextWindow": 128000,
            "cost": {"inputPerMillion": 2.5, "outputPerMillion": 10.0},
        },
        "gpt-4o-2": {
            "engine": "openai",
            "endpoint": "https://api.openai.com",
            "upstreamModel": "gpt-4o-2024-08-06",
            "apiKey": "env:GPT_4O_2024_08_06_API_KEY",
        },
        "claude": {
            "engine": "anthropic",
            "endpoint": "https://api.anthropic.com",
            "upstreamModel": "claude-sonnet-4-5",
            "apiKey": "env:ANTHROPIC_API_KEY",
            "deadlines": {"total": 30.0},
        },
        "qwen": {
            "engine": "vllm",
            "endpoint": "http://10.0.0.7:8000",
            "upstreamModel": "Qwen/Qwen3-8B",
            "headers": {"X-Team": "search", "Authorization": "env:HOSTED_VLLM_QWEN_QWEN3_8B_AUTHORIZATION"},
        },
        "mixtral": {"engine": "tgi", "endpoint": "http://tgi:8080", "upstreamModel": "mistralai/Mixtral-8x7B"},
        "llama3": {"engine": "ollama", "endpoint": "http://localhost:11434", "upstreamModel": "llama3.1:8b"},
        "e5": {
            "engine": "openai",
            "endpoint": "https://e5",
            "upstreamModel": "intfloat/e5",
            "capabilities": ["embeddings"],
        },
    }
    assert {row["metadata"]["name"]: row["spec"] for row in found if row["kind"] == "Route"} == {
        "gpt-4o": {
            "backends": [{"model": "gpt-4o-1", "weight": 300.0}, {"model": "gpt-4o-2", "weight": 100.0}],
            "fallbacks": ["claude", "qwen"],
            "aliases": ["gpt-4"],
        },
        "claude": {"backends": [{"model": "claude"}], "aliases": ["secret"]},
    }
    assert [row["spec"] for row in found if row["kind"] == "Settings"] == [{"deadlines": {"total": 120.0}}]


def test_what_is_left_behind_is_named_with_its_line(tmp_path: pathlib.Path) -> None:
    found = imported(tmp_path, WHOLE, E5_BASE="https://e5/v1")
    assert [str(note).removeprefix(f"{tmp_path}/config.yaml:") for note in found.notes] == [
        "6:7 model_list[0].litellm_params.rpm: a limit is not carried over; as a share of the requests it is",
        "15:7 model_list[1].litellm_params.model: not carried over: Azure has paths of its own; where its /openai/v1 API is on, "
        "declare it as engine openai",
        "20:7 model_list[2].litellm_params.api_key: the key itself is not copied; the model reads env:GPT_4O_2024_08_06_API_KEY; "
        "set GPT_4O_2024_08_06_API_KEY for the service",
        "21:7 model_list[2].litellm_params.rpm: a limit is not carried over; as a share of the requests it is",
        "26:7 model_list[3].litellm_params.temperature: not carried over; send it with the request",
        "32:39 model_list[4].litellm_params.extra_headers.Authorization: the secret itself is not copied; "
        "env:HOSTED_VLLM_QWEN_QWEN3_8B_AUTHORIZATION is read; "
        "set HOSTED_VLLM_QWEN_QWEN3_8B_AUTHORIZATION to the whole value",
        "43:7 model_list[7].litellm_params.api_base: the address in E5_BASE is written out; import again when it changes",
        "45:5 model_list[8].model_name: not carried over: wildcards; declare each model that you serve",
        "49:3 router_settings.num_retries: not carried over; "
        "SITS tries every target of a route once and never the same one twice",
        "52:5 router_settings.model_group_alias.secret: `hidden` is not carried over: the alias is listed with the models",
        '53:5 router_settings.model_group_alias.lost: not carried over: "gpt-4oo" is not here; did you mean "gpt-4o"?',
        '56:42 litellm_settings.fallbacks[1].claude: fallback "nobody" is not carried over: it is not here',
        "57:3 litellm_settings.context_window_fallbacks: not carried over; put the larger model among the fallbacks of the route",
        "58:3 litellm_settings.drop_params: not carried over; "
        "SITS drops nothing in silence: it refuses what a model cannot do",
        "60:3 general_settings.master_key: not carried over; "
        "make keys with `sits keys new --name NAME`, with --admin for one that may manage",
        "61:1 environment_variables: not carried over; set them in the environment of the service",
    ]  # fmt: skip


def test_no_secret_of_the_configuration_is_written_or_shown(tmp_path: pathlib.Path) -> None:
    found = imported(tmp_path, WHOLE)
    assert "canary" not in "".join(files(found).values()) + "".join(map(str, found.notes))


def test_the_written_files_read_back_as_the_same_resources(tmp_path: pathlib.Path) -> None:
    found = imported(tmp_path, WHOLE)
    out = tmp_path / "out"
    out.mkdir()
    for name, text in files(found).items():
        (out / name).write_text(text, encoding="utf-8")
    snapshot = compile_reading(read(out), 1)
    assert sorted(p.name for p in out.iterdir()) == ["models.yaml", "routes.yaml", "settings.yaml"]
    assert snapshot.hash == compile(found.resources, 1).hash
    assert snapshot.names["gpt-4"] == snapshot.names["gpt-4o"]


def entry(name: str, model: str, **params: object) -> dict[str, object]:
    return {"model_name": name, "litellm_params": {"model": model, "api_base": "http://h", **params}}


def routes_of(tmp_path: pathlib.Path, config: dict[str, object]) -> dict[str, object]:
    with (tmp_path / "made.yaml").open("w", encoding="utf-8") as stream:
        YAML().dump(config, stream)
    found = import_config(tmp_path / "made.yaml", {})
    return {r["metadata"]["name"]: r["spec"] for r in map(plain, found.resources) if r["kind"] == "Route"}


ROUTES = {
    "weight before rpm": (
        {"model_list": [entry("a", "ollama/x", weight=2, rpm=9), entry("a", "ollama/y", rpm=1)]},
        {"a": {"backends": [{"model": "a-1", "weight": 2.0}, {"model": "a-2", "weight": 0.0}]}},
    ),
    "lowest order first": (
        {"model_list": [entry("a", "ollama/x", order=2), entry("a", "ollama/y", order=1), entry("a", "ollama/z")]},
        {"a": {"backends": [{"model": "a-2"}], "fallbacks": ["a-1", "a-3"]}},
    ),
    "default fallbacks": (
        {
            "model_list": [entry("a", "ollama/x"), entry("b", "ollama/y"), entry("c", "ollama/z")],
            "litellm_settings": {"default_fallbacks": ["b"]},
            "router_settings": {"fallbacks": [{"a": ["c"]}]},
        },
        {"a": {"backends": [{"model": "a"}], "fallbacks": ["c"]}, "c": {"backends": [{"model": "c"}], "fallbacks": ["b"]}},
    ),
    "fallbacks for all": (
        {
            "model_list": [entry("a", "ollama/x"), entry("b", "ollama/y")],
            "router_settings": {"fallbacks": [{"*": ["b"]}]},
        },
        {"a": {"backends": [{"model": "a"}], "fallbacks": ["b"]}},
    ),
    "alias as fallback": (
        {
            "model_list": [entry("a", "ollama/x"), entry("b", "ollama/y")],
            "router_settings": {"model_group_alias": {"bee": "b"}, "fallbacks": [{"a": ["bee"]}]},
        },
        {"a": {"backends": [{"model": "a"}], "fallbacks": ["b"]}, "b": {"backends": [{"model": "b"}], "aliases": ["bee"]}},
    ),
    "names that must change": (
        {
            "model_list": [entry("my model", "ollama/x"), entry("my-model", "ollama/y"), entry("通义", "ollama/z")],
            "router_settings": {"fallbacks": [{"my model": ["通义"]}]},
        },
        {"my-modelx": {"backends": [{"model": "my-modelx"}], "fallbacks": ["model-2"]}},
    ),
    "numbered names that are taken": (
        {"model_list": [entry("a", "ollama/x"), entry("a", "ollama/y"), entry("a-1", "ollama/z")]},
        {"a": {"backends": [{"model": "a-1x"}, {"model": "a-2"}]}},
    ),
    "tokens a minute beyond what a weight may be": (
        {
            "model_list": [
                entry("a", "ollama/x", tpm=8_000_000),
                entry("a", "ollama/y", tpm=2_000_000),
                entry("a", "ollama/z", tpm=1e-9),
            ]
        },
        {
            "a": {
                "backends": [
                    {"model": "a-1", "weight": 1e6},
                    {"model": "a-2", "weight": 250_000.0},
                    {"model": "a-3", "weight": 1e-6},
                ]
            }
        },
    ),
    "all weights zero": (
        {"model_list": [entry("a", "ollama/x", weight=0), entry("a", "ollama/y", weight=0)]},
        {"a": {"backends": [{"model": "a-1"}, {"model": "a-2"}]}},
    ),
}


@pytest.mark.parametrize(("config", "expected"), [pytest.param(*row, id=name) for name, row in ROUTES.items()])
def test_groups_become_routes(tmp_path: pathlib.Path, config: dict[str, object], expected: dict[str, object]) -> None:
    assert routes_of(tmp_path, config) == expected


LONG = "a" * 195


@pytest.mark.parametrize(
    ("old", "new", "aliases", "said"),
    [
        pytest.param("通义", "model-0", None, 'no alias either, and is not answered: have clients ask for "model-0"',
                     id="a name that no resource may have"),
        pytest.param(LONG, LONG[:190], [LONG], "stays an alias of it", id="one that is only cut"),
    ],
)  # fmt: skip
def test_who_asks_for_a_name_that_is_another_now_is_answered_where_that_can_be_and_else_it_is_told(
    tmp_path: pathlib.Path, old: str, new: str, aliases: list[str] | None, said: str
) -> None:
    config = {"model_list": [entry(old, "ollama/x")]}
    found = imported(tmp_path, json.dumps(config, ensure_ascii=False))
    routes = {one.metadata.name: one.spec.aliases for one in found.resources if isinstance(one, Route)}
    assert [one.metadata.name for one in found.resources if isinstance(one, Model)] == [new]
    assert routes == ({} if aliases is None else {new: aliases})
    (note,) = found.notes
    assert note.hint.endswith(said)


LEFT = {
    "no address": ("model: hosted_vllm/x", (
        "3 model_list[0].litellm_params: not carried over: no `api_base`; say where the server is")),
    "address not set": ("model: openai/x\n      api_base: os.environ/GONE", (
        "5 model_list[0].litellm_params.api_base: not carried over: GONE is not set; set GONE and import again")),
    "unknown provider": ("model: deepgram/nova", (
        "5 model_list[0].litellm_params.model: not carried over: SITS has no engine for deepgram")),
    "no such mode": ("model: openai/whisper-1\n    model_info: {mode: audio_transcription}", (
        '5 model_list[0].model_info.mode: not carried over: SITS does not serve mode "audio_transcription"')),
    "address that is none": ("model: openai/x\n      api_base: ftp://h/v1", (
        '3 model_list[0].litellm_params: not carried over: spec.endpoint: "ftp://h" is not an http or https URL; '
        "write http://HOST:PORT or https://HOST")),
    "credential in the address": ("model: openai/x\n      api_base: http://u:canary@h/v1", (
        "3 model_list[0].litellm_params: not carried over: spec.endpoint: holds a credential; "
        "take it out and give a reference as `apiKey`")),
}  # fmt: skip


@pytest.mark.parametrize(("params", "note"), [pytest.param(*row, id=name) for name, row in LEFT.items()])
def test_an_entry_that_cannot_be_carried_says_why(tmp_path: pathlib.Path, params: str, note: str) -> None:
    found = imported(tmp_path, f"model_list:\n  - model_name: a\n    litellm_params:\n      {params}\n")
    assert found.resources == ()
    assert [str(n).split(" ", 1)[1] for n in found.notes] == [note.split(" ", 1)[1]]


NOT_CONFIGS = {
    "other yaml": ("kind: Model", ":1:1 model_list: missing; a LiteLLM configuration has a list of models"),
    "empty": ("", ":1:1 model_list: missing; a LiteLLM configuration has a list of models"),
    "broken": ("model_list: [", ":1:14 not YAML"),
}


@pytest.mark.parametrize(("text", "message"), [pytest.param(*row, id=name) for name, row in NOT_CONFIGS.items()])
def test_what_is_no_configuration_is_refused(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/config.yaml{message}")


KEYS = ["model", "model_name", "litellm_params", "api_base", "weight", "order", "rpm", "model_info", "mode", "headers", "timeout"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "openai/x", "os.environ/A", "*", "", "通"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
PARAMS = ["api_base", "api_key", "weight", "order", "rpm", "timeout", "stream_timeout", "headers", "input_cost_per_token"]
ENTRY = st.fixed_dictionaries(
    {
        "model_name": st.sampled_from(["a", "b", "a b"]),
        "litellm_params": st.fixed_dictionaries({"model": st.just("ollama/x")}, optional=dict.fromkeys(PARAMS, ANY)),
    },
    optional={"model_info": ANY},
)


@settings(max_examples=150, deadline=None)
@given(
    models=st.lists(ENTRY | ANY, max_size=4),
    router=st.fixed_dictionaries({}, optional={"model_group_alias": ANY, "fallbacks": st.lists(ANY) | ANY, "timeout": ANY}),
    rest=ANY,
)
def test_any_configuration_is_imported_whole_or_explained(
    tmp_path_factory: pytest.TempPathFactory, models: list[object], router: dict[str, object], rest: object
) -> None:
    file = tmp_path_factory.mktemp("any") / "config.yaml"
    with file.open("w", encoding="utf-8") as stream:
        YAML().dump({"model_list": models, "router_settings": router, "litellm_settings": rest}, stream)
    try:
        found = import_config(file, {})
    except ConfigError as refused:
        # YAML can say .inf, which is refused as it is in any other file.
        assert all(problem.line for problem in refused.problems), refused  # noqa: PT017
        return
    again = [declared.resource for text in files(found).values() for declared in read_text(text, "m.yaml").declared]
    assert sorted(map(repr, again)) == sorted(map(repr, found.resources))
    carried = [r for r in found.resources if isinstance(r, Model)]
    assert len(carried) >= len(models) or found.notes
