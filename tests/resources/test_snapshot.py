"""Compiling: what a name stands for, what may not be, secrets, and paths."""

from __future__ import annotations

import pathlib

import pytest

from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.keys import Key, KeySpec
from sits.resources.kinds import (
    Backend,
    DeadlineSpec,
    Metadata,
    Model,
    ModelSpec,
    Resource,
    Route,
    RouteSpec,
    Settings,
    SettingsSpec,
    Tls,
)
from sits.resources.local import LocalSpec
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.secrets import SecretError, resolve
from sits.resources.snapshot import Resolved, compile, compile_reading


def model(name: str, **spec: object) -> Model:
    return Model(Metadata(name), ModelSpec(engine="vllm", endpoint="http://h:1", **spec))  # type: ignore[arg-type]


def route(name: str, *backends: Backend, **spec: object) -> Route:
    return Route(Metadata(name), RouteSpec(list(backends), **spec))  # type: ignore[arg-type]


def test_names_are_resolved_to_models_when_compiled() -> None:
    a, b, c = model("a"), model("b"), model("c")
    fast = route("fast", Backend("a", 3), Backend("b"), fallbacks=["c"], aliases=["quick", "gpt/x"])
    snapshot = compile([fast, a, b, c], 4)
    resolved = Resolved("fast", fast, ((a, 3.0), (b, 1.0)), (c,))
    assert dict(snapshot.names) == {
        "a": Resolved("a", None, ((a, 1.0),), ()),
        "b": Resolved("b", None, ((b, 1.0),), ()),
        "c": Resolved("c", None, ((c, 1.0),), ()),
        "fast": resolved,
        "quick": resolved,
        "gpt/x": resolved,
    }
    assert (snapshot.version, dict(snapshot.models), dict(snapshot.routes)) == (4, {"a": a, "b": b, "c": c}, {"fast": fast})
    assert snapshot.nearest_name("fats") == "fast"


def test_a_route_may_stand_in_front_of_its_own_model() -> None:
    a, b = model("a"), model("b")
    front = route("a", Backend("a"), fallbacks=["b"])
    assert compile([a, b, front], 1).names["a"] == Resolved("a", front, ((a, 1.0),), (b,))


def test_keys_are_found_by_the_hash_of_the_secret_and_settings_have_defaults() -> None:
    key = Key(Metadata("k"), KeySpec("b" * 64))
    snapshot = compile([key], 1)
    assert (dict(snapshot.keys), snapshot.settings) == ({"b" * 64: key}, SettingsSpec())
    assert compile([Settings(SettingsSpec(auth="off"))], 1).settings.auth == "off"


def test_nothing_in_a_snapshot_can_be_changed() -> None:
    snapshot = compile([model("a")], 1)
    with pytest.raises(TypeError):
        snapshot.models["b"] = model("b")  # type: ignore[index]
    with pytest.raises(AttributeError):
        snapshot.version = 2  # type: ignore[misc]


REFUSED: dict[str, tuple[list[Resource], list[Resource], str]] = {
    "redefined": ([model("a")], [model("a", region="x")], (
        '(registered) metadata.name: Model "a" is declared at (declared); a registered one may not redefine it; '
        "register it under another name, or remove one of the two")),
    "registered twice": ([], [model("a"), model("a")], (
        '(registered) metadata.name: Model "a" is declared already, at (registered); rename or remove one of them')),
    "registered over an alias": ([model("a"), route("r", Backend("a"), aliases=["b"])], [model("b")], (
        '(declared) spec.aliases[0]: "b" is the name of Model "b" ((registered)); choose another alias')),
    "bad by itself": ([], [Model(Metadata("a"), ModelSpec(engine="vllm"))], (
        "(registered) spec.endpoint: missing: engine vllm is a remote server; give its base URL, like http://10.0.0.7:8000")),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "registered", "message"), [pytest.param(*row, id=name) for name, row in REFUSED.items()])
def test_registered_models_must_go_with_the_declared(declared: list[Resource], registered: list[Resource], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile(declared, 1, registered=registered)
    assert str(caught.value) == message


def test_a_declared_route_may_use_a_registered_model() -> None:
    late = model("late", deadlines=DeadlineSpec(total=5))
    snapshot = compile([route("r", Backend("late"))], 1, registered=[late])
    assert snapshot.names["r"].backends == ((late, 1.0),)


def test_relative_paths_are_relative_to_the_file_that_names_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "kind: Model\nmetadata: {name: a}\nspec:\n  engine: vllm\n  endpoint: https://h\n  apiKey: file:key\n"
        "  headers: {x-a: 'file:h', x-b: plain}\n  tls: {ca: ca.pem, cert: /abs/c.pem, key: k.pem}\n"
        "---\nkind: Model\nmetadata: {name: b}\nspec: {engine: local, local: {source: ['file:m/1', 'file:/m/2']}}\n",
        encoding="utf-8",
    )
    snapshot = compile_reading(read(tmp_path), 1)
    spec = snapshot.models["a"].spec
    assert spec.api_key == f"file:{tmp_path}/key"
    assert spec.headers == {"x-a": f"file:{tmp_path}/h", "x-b": "plain"}
    assert spec.tls == Tls(ca=f"{tmp_path}/ca.pem", cert="/abs/c.pem", key=f"{tmp_path}/k.pem")
    assert snapshot.models["b"].spec.local == LocalSpec([f"file:{tmp_path}/m/1", "file:/m/2"])


def test_the_hash_is_the_same_wherever_the_folder_is(tmp_path: pathlib.Path) -> None:
    hashes = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        text = "kind: Model\nmetadata: {name: a}\nspec: {engine: local, local: {source: 'file:m'}}"
        (tmp_path / name / "m.yaml").write_text(text, encoding="utf-8")
        hashes.add(compile_reading(read(tmp_path / name), 1).hash)
    assert len(hashes) == 1


def test_missing_secrets_are_problems_when_asked_for(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_TEST_THERE", "canary-value")
    monkeypatch.delenv("SITS_TEST_GONE", raising=False)
    file = tmp_path / "m.yaml"
    file.write_text(
        "kind: Model\nmetadata: {name: a}\nspec:\n  engine: vllm\n  endpoint: http://h\n  apiKey: env:SITS_TEST_GONE\n"
        "  headers: {x-a: 'file:no', x-b: 'env:SITS_TEST_THERE'}\n",
        encoding="utf-8",
    )
    reading = read(file)
    assert compile_reading(reading, 1).version == 1
    with pytest.raises(ConfigError) as caught:
        compile_reading(reading, 1, secrets=True)
    hint = "set it, or skip this check with --no-secrets"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{file}:6:11 spec.apiKey: the environment variable SITS_TEST_GONE is not set; {hint}",
        f"{file}:7:18 spec.headers.x-a: the file {tmp_path}/no cannot be read: no such file or directory; {hint}",
    ]


SECRETS = {
    "env": ("env:A", "s3cret"),
    "newline at the end": ("env:NEWLINE", "s3cret"),
    "Chinese": ("env:CHINESE", "密钥"),
}


@pytest.mark.parametrize(("reference", "value"), [pytest.param(*row, id=name) for name, row in SECRETS.items()])
def test_a_secret_is_read_through_its_reference(reference: str, value: str) -> None:
    assert resolve(reference, {"A": "s3cret", "NEWLINE": "s3cret\r\n", "CHINESE": "密钥"}) == value


def test_a_secret_file_is_read_without_its_last_newline(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k").write_bytes(b"s3cret\n")
    assert resolve(f"file:{tmp_path}/k") == "s3cret"


NO_SECRETS = {
    "not set": ("env:A", b"", "the environment variable A is not set"),
    "empty": ("env:EMPTY", b"", "the environment variable EMPTY is empty"),
    "two lines": ("env:LINES", b"", "the environment variable LINES holds a line break or another control character"),
    "the value itself": ("canary-sk", b"", "a secret is named by env:NAME or file:PATH"),
    "not UTF-8": ("file:{}", b"canary\xff", "the file {} is not UTF-8 text"),
    "too large": ("file:{}", b"canary" * 20_000, "the file {} is larger than 64 KiB"),
    "empty file": ("file:{}", b"\n", "the file {} is empty"),
}


@pytest.mark.parametrize(("reference", "data", "message"), [pytest.param(*row, id=name) for name, row in NO_SECRETS.items()])
def test_a_secret_that_is_not_there_is_explained_and_never_shown(
    tmp_path: pathlib.Path, reference: str, data: bytes, message: str
) -> None:
    file = tmp_path / "k"
    file.write_bytes(data)
    with pytest.raises(SecretError) as caught:
        resolve(reference.format(file), {"EMPTY": "", "LINES": "canary\r\nx: y"})
    assert str(caught.value) == message.format(file)
    assert "canary" not in repr(caught.value) + repr(caught.value.__cause__)


def test_the_built_in_configuration_is_valid_and_pinned() -> None:
    snapshot = compile_reading(read(DEFAULT_FOLDER), 1, secrets=True)
    assert sorted(snapshot.names) == ["default", "embeddings", "gemma-3-270m", "multilingual-e5-small", "smollm2-135m"]
    default = snapshot.names["default"]
    assert [m.metadata.name for m, _ in default.backends] == ["smollm2-135m"]
    assert [m.metadata.name for m in default.fallbacks] == ["gemma-3-270m"]
    assert [m.metadata.name for m, _ in snapshot.names["embeddings"].backends] == ["multilingual-e5-small"]
    assert all(m.spec.local is not None and m.spec.local.sha256 for m in snapshot.models.values())
