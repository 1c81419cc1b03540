"""From Domain resources to an intent: what it is made of, what is embedded and what is on the shelf; and what is shipped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sits.bench.intent import queries
from sits.bench.intent_domains import files
from sits.cli.domains import domains as command
from sits.inner.errors import Code, SitsError
from sits.resources.domains import DOMAINS_FOLDER, Domain
from sits.resources.reading import read, read_value
from sits.resources.snapshot import compile_reading
from sits.routing.intent.tune import Tuning
from sits.state.intent import building, material, shelf
from sits.state.intent.building import build, embedded, load_quick, load_tuning
from sits.state.intent.labelled import UNKNOWN
from sits.state.intent.material import Example, Material, Unasked, background, sample, without_near
from sits.state.intent.material import material as made_of
from sits.state.intent.shelf import Shelf

WORDS = {"law": ("court", "法院"), "maths": ("integral", "积分"), "cooking": ("soup", "汤")}


class Seen:
    """Embeds a text by which of `WORDS` is in it, and otherwise by its length; counts what it is asked for."""

    name, version, dimension = "seen", "1", 4

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        found = np.array(
            [[*(float(any(word in text for word in listed)) for listed in WORDS.values()), 0.01 * len(text)] for text in texts]
        )
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)

    async def aside(self, texts: Sequence[str]) -> np.ndarray:
        return self.embed(texts)


def domain(name: str, *examples: str, **spec: object) -> Domain:
    value = {"kind": "Domain", "apiVersion": "sits/v1", "metadata": {"name": name}, "spec": {"examples": list(examples), **spec}}
    return msgspec.convert(value, Domain)


def declared(*names: str, **spec: object) -> dict[str, Domain]:
    return {name: domain(name, *(f"{word} {at}" for word in WORDS[name] for at in range(6)), **spec) for name in names}


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(Unasked(f"{word} {at}", "en") for word in ("hello", "weather today", "你好吗") for at in range(4))
    monkeypatch.setattr(material, "background", lambda: rows)
    monkeypatch.setattr(material, "kinds", lambda: ())


def test_material_is_the_same_whatever_the_order_of_domains_and_examples_win_over_what_is_none() -> None:
    law, maths = (
        domain("law", "a court", "Is it legal?", unlike=["a tennis court"]),
        domain("maths", "an integral", unlike=["IS  it legal?"]),
    )
    found = made_of({"maths": maths, "law": law})
    assert found == made_of({"law": law, "maths": maths})
    assert found.domains == ("law", "maths")
    assert found.digest == made_of({"law": law, "maths": maths}).digest != made_of({"law": law}).digest
    assert found.examples[:4] == (
        Example("a court", "law"),
        Example("Is it legal?", "law"),
        Example("an integral", "maths"),
        Example("a tennis court", None),
    )
    assert {(one.domain, one.declared) for one in found.examples[4:]} == {(None, False)}
    assert found.labels().tolist() == [0, 0, 1, 2] + [2] * 12


def test_background_that_is_near_an_example_is_left_out() -> None:
    given = Material(
        ("a",), (None,), (Example("x", "a"), Example("y", None), Example("z", None, False), Example("w", None, False))
    )
    rows = np.array([[1, 0], [1, 0], [0.99, 0.14], [0, 1]], dtype=np.float32)
    assert without_near(given, rows, 0.95).tolist() == [0, 1, 3]


def test_a_sample_has_its_part_of_each_domain() -> None:
    given = Material(
        ("a", "b"),
        (None, None),
        tuple(Example(f"{name}{at}", name) for name, count in (("a", 40), ("b", 10), (None, 50)) for at in range(count)),
    )
    places = sample(given, 20)
    labels = given.labels()[places].tolist()
    assert (labels.count(0), labels.count(1), labels.count(2)) == (8, 2, 10)
    assert places[:3] == [0, 5, 10]
    assert sample(given, 100) == list(range(100))


def test_an_intent_is_made_and_a_second_time_nothing_is_embedded(tmp_path: Path) -> None:
    async def story() -> None:
        given = made_of(declared("law", "maths", threshold=0.3))
        seen = Seen()
        first = await build(given, Seen(), seen.aside, Shelf(tmp_path, "m", 4), Tuning())
        assert len(seen.texts) == len(set(given.texts)) == len(given.texts)
        assert (first.index, first.intent.domains, first.intent.least) == ("heads", ("law", "maths"), (0.3, 0.3))
        again, fewer = Seen(), made_of(declared("law"))
        second = await build(given, Seen(), again.aside, Shelf(tmp_path, "m", 4), Tuning())
        await build(fewer, Seen(), again.aside, Shelf(tmp_path, "m", 4), Tuning())
        assert again.texts == []
        assert second.intent.quick.weights.tobytes() == first.intent.quick.weights.tobytes()
        text = "现在去法院"
        tokens = Seen().embed([text])[0]
        assert first.intent.deeply(text, tokens, tokens).domain == "law"
        assert second.intent.deeply("hello you", *Seen().embed(["hello you"] * 2)).domain is None

    asyncio.run(story())


def test_beyond_what_heads_are_fitted_on_they_are_fitted_on_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_EXAMPLES", 30)
    monkeypatch.setattr(building, "SAMPLED", 20)
    given = made_of(declared("law", "maths"))
    found = asyncio.run(build(given, Seen(), Seen().aside, Shelf(tmp_path, "m", 4), Tuning()))
    assert (found.index, len(found.intent.examples), len(found.embeddings)) == ("vectors", 18, 36)
    said = asyncio.run(build(made_of(declared("law")), Seen(), Seen().aside, Shelf(tmp_path, "m", 4), Tuning(), "vectors"))
    assert (said.index, len(said.intent.examples)) == ("vectors", 20)


def test_what_was_embedded_before_a_failure_is_not_embedded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "KEPT", building.EACH)

    async def story() -> None:
        texts = [f"soup {at}" for at in range(3 * building.EACH)]
        seen = Seen()

        async def failing(some: Sequence[str]) -> np.ndarray:
            if len(seen.texts) == 2 * building.EACH:
                raise SitsError(Code.MODEL_UNAVAILABLE, "gone")
            return seen.embed(some)

        with pytest.raises(SitsError, match="gone"):
            await embedded(texts, failing, Shelf(tmp_path, "m", 4))
        again = Seen()
        rows = await embedded(texts, again.aside, Shelf(tmp_path, "m", 4))
        assert again.texts == texts[2 * building.EACH :]
        assert np.allclose(rows, Seen().embed(texts), atol=1e-6)

    asyncio.run(story())


def test_of_two_processes_one_embeds_and_the_other_finds_it(tmp_path: Path) -> None:
    async def story() -> None:
        texts = [f"soup {at}" for at in range(10)]
        begun, go, seen, waits = asyncio.Event(), asyncio.Event(), Seen(), Seen()
        looked = 0

        async def slow(some: Sequence[str]) -> np.ndarray:
            begun.set()
            await go.wait()
            return seen.embed(some)

        async def waiting(seconds: float) -> None:
            nonlocal looked
            looked += 1
            go.set()
            await first

        first = asyncio.create_task(embedded(texts, slow, Shelf(tmp_path, "m", 4)))
        await begun.wait()
        await embedded(texts, waits.aside, Shelf(tmp_path, "m", 4), waiting)
        assert (looked, waits.texts, seen.texts) == (1, [], texts)

    asyncio.run(story())


def test_the_shelf_keeps_what_is_asked_for_up_to_its_most(tmp_path: Path) -> None:
    one = Shelf(tmp_path / "deep", "multi/e5", 1, most=3)
    one.keep({"a": b"1111", "b": b"2222", "丙": b"3333"})
    one.keep({"d": b"4444"})
    found = Shelf(tmp_path / "deep", "multi/e5", 1).take(["a", "b", "丙", "d"])
    assert len(found) == 3
    assert found["d"] == b"4444"
    assert Shelf(tmp_path / "deep", "multi/e5", 2).take(["a", "d"]) == {}
    assert Shelf(tmp_path / "deep", "another", 1).take(["d"]) == {}
    assert one.path.name == "examples-multi-e5.bin"
    assert sorted(path.name for path in one.path.parent.iterdir()) == ["examples-multi-e5.bin"]


@pytest.mark.parametrize("content", [b"", b"no file of ours", b"\x92\xa1m\xc0"], ids=["empty", "foreign", "wrong"])
def test_a_shelf_that_cannot_be_read_is_made_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    one = Shelf(tmp_path, "m", 1)
    one.path.write_bytes(content)
    assert one.take(["a"]) == {}
    assert "is made anew" in caplog.text
    one.keep({"a": b"1111"})
    assert one.take(["a"]) == {"a": b"1111"}


def test_a_shelf_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Shelf(tmp_path / "file" / "folder", "m", 1)
    for call in (lambda: one.keep({"a": b"1111"}), lambda: one.alone().__enter__()):
        with pytest.raises(SitsError, match=r"file/folder.*") as caught:
            call()
        assert caught.value.code is Code.INTERNAL


def test_without_wordllama_the_error_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SitsError, match=r"reading what requests want needs wordllama: pip install 'sits\[local\]'") as caught:
        load_quick()
    assert caught.value.code is Code.UNSUPPORTED


def test_tuning_is_that_of_the_data_folder_or_what_is_shipped(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    shipped = load_tuning(path)
    assert shipped != Tuning()
    assert 0.3 <= shipped.safe <= 1.01
    path.write_bytes(msgspec.json.encode(Tuning(safe=0.7)))
    assert load_tuning(path) == Tuning(safe=0.7)
    path.write_text("{")
    with pytest.raises(SitsError, match=r"tuning\.json: it is no tuning: it is no JSON; `sits intent tune"):
        load_tuning(path)


def test_what_is_shipped_agrees_with_the_labelled_set() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `python -m sits.bench.intent_domains`"
    assert len(list(DOMAINS_FOLDER.iterdir())) == len(files()) - 2 == 12


def test_the_background_is_of_no_domain_and_nothing_of_the_test_split_is_shipped() -> None:
    shipped = {one.text for one in background()}
    split = {query.text: query for query in queries()}
    assert {split[text].domain for text in shipped} == {UNKNOWN}
    assert {split[text].split for text in shipped} == {"examples"}


def test_shipped_domains_are_exported_and_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "domains"
    done = CliRunner().invoke(command, ["export", str(folder)], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"12 domains in {folder}\n")
    snapshot = compile_reading(read(folder), 1)
    assert sorted(snapshot.domains) == sorted({query.domain for query in queries()} - {UNKNOWN})
    (folder / "legal.yaml").write_text("mine")
    refused = CliRunner().invoke(command, ["export", str(folder)])
    assert (refused.exit_code, (folder / "legal.yaml").read_text()) == (1, "mine")
    assert "--force" in refused.output
    assert CliRunner().invoke(command, ["export", str(folder), "--force"]).exit_code == 0
    assert (folder / "legal.yaml").read_bytes() == (DOMAINS_FOLDER / "legal.yaml").read_bytes()


def test_some_domains_are_exported_alone_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["export", str(tmp_path), "--only", "legal", "--only", "code"], catch_exceptions=False)
    assert done.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code.yaml", "legal.yaml"]
    refused = CliRunner().invoke(command, ["export", str(tmp_path), "--only", "law"])
    assert refused.exit_code == 2
    assert "'law'" in refused.output


def test_a_text_that_utf8_cannot_carry_has_its_place_on_the_shelf(tmp_path: Path) -> None:
    one = shelf.Shelf(tmp_path, "m", 1)
    one.keep({"\ud800": b"1111"})
    assert one.take(["\ud800"]) == {"\ud800": b"1111"}


def test_a_domain_of_the_configuration_reads_as_it_is_declared() -> None:
    value = msgspec.to_builtins(domain("law", "a", "b", "c", "d"))
    snapshot_domain = read_value(value).resource
    assert isinstance(snapshot_domain, Domain)
    assert made_of({"law": snapshot_domain}).domains == ("law",)


def test_a_domain_that_is_misspelt_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    for name, hint in (("leagl", '; did you mean "legal"? there are: '), ("zzz", "; there are: ")):
        done = CliRunner().invoke(command, ["export", str(tmp_path / "d"), "--only", name])
        assert (done.exit_code, f"there is no {name!r}{hint}code, compliance" in done.stderr) == (2, True)
