"""Labelled queries, and tuning and trying on them; the `sits intent` commands; the bench's own set; Domain resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sits.bench.intent import queries
from sits.cli.intent import intent as command
from sits.inner.errors import SitsError
from sits.resources.domains import Domain, domain_faults, examples_of
from sits.state.intent import embedders, trial
from sits.state.intent.labelled import UNKNOWN, Query, domains_of, load, parse

WORDS = {"law": ("court", "法院"), "maths": ("integral", "积分"), UNKNOWN: ("hello", "你好")}


class Seen:
    """Embeds a text by which of `WORDS` is in it."""

    name, version, dimension = "seen", "1", 3

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        found = np.array([[float(any(word in text for word in listed)) for listed in WORDS.values()] for text in texts])
        return (found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)).astype(np.float32)


def some(split: str = "examples") -> list[Query]:
    return [
        msgspec.convert(
            {
                "text": f"{word} {split} {number}",
                "domain": name,
                "split": split,
                "group": f"{name}{number}",
                "lang": "en" if word.isascii() else "zh",
            },
            Query,
        )
        for name, listed in WORDS.items()
        for word in listed
        for number in range(8)
    ]


def test_queries_that_can_be_told_apart_are_told_apart() -> None:
    known, test = some(), some("test")
    vectors = trial.embedded(known, Seen(), Seen())
    made = trial.fitted(known, vectors, trial.tune(known, vectors))
    found = trial.tried(made, test, trial.embedded(test, Seen(), Seen()))
    assert made.domains == ("law", "maths")
    whole = found.marks(found.both, None, 2)
    assert (whole.count, whole.accuracy, whole.macro_f1, whole.unknown_recall) == (48, 1.0, 1.0, 1.0)
    chinese = found.marks(found.both, np.array([query.lang == "zh" for query in test]), 2)
    assert chinese.count == 24


def test_tuning_says_what_it_lacks() -> None:
    known = [query for query in some() if query.domain != "law"] + some()[:3]
    with pytest.raises(SitsError, match="law has 3 queries to tune with; 4 are needed"):
        trial.tune(known, trial.embedded(known, Seen(), Seen()))


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(SitsError, match="line:3: `text` is empty"):
        parse([b'{"text": "a", "domain": "b"}', b"", b'{"text": "", "domain": "b"}'])
    with pytest.raises(SitsError, match="No such file"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(SitsError, match="no query"):
        load(tmp_path / "empty.jsonl")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A labelled file, with the deep stage's model in place of the 91 MB one; the quick stage is real."""
    monkeypatch.setattr(embedders, "open_e5", lambda data: Seen())
    path = tmp_path / "queries.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(query) for query in [*some(), *some("test")]))
    return path


def test_the_commands_tune_and_evaluate(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuning.json"
    tuned = CliRunner().invoke(command, ["tune", str(file), "--out", str(out)], catch_exceptions=False)
    assert tuned.exit_code == 0
    assert msgspec.json.decode(tuned.stdout) == msgspec.json.decode(out.read_bytes())
    done = CliRunner().invoke(command, ["eval", str(file), "--tuning", str(out), "--json"], catch_exceptions=False)
    found = msgspec.json.decode(done.stdout)
    assert (done.exit_code, found["domains"], found["examples"], found["queries"]) == (0, 2, 48, 48)
    assert (found["deep"]["accuracy"], found["by_language"]["zh"]["count"]) == (1.0, 24)
    read = CliRunner().invoke(command, ["eval", str(file), "--tuning", str(out)], catch_exceptions=False)
    assert "both stages  accuracy 1.000" in read.output


@pytest.mark.parametrize(("name", "split", "wanted"), [("eval", "test", "nothing to fit on"), ("eval", "tune", "split `test`")])
def test_a_file_without_a_part_is_refused(tmp_path: Path, name: str, split: str, wanted: str) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(query) for query in some(split)))
    done = CliRunner().invoke(command, [name, str(path)])
    assert done.exit_code == 1
    assert wanted in done.output


def test_the_labelled_set_is_what_it_is_said_to_be() -> None:
    found = queries()
    assert len({query.text.casefold() for query in found}) == len(found) >= 600
    assert len(domains_of(found)) >= 12
    languages = Counter(query.lang for query in found)
    assert languages["en"] == pytest.approx(languages["zh"], rel=0.01)
    test = Counter(query.lang for query in found if query.split == "test")
    assert test["en"] == test["zh"]
    splits: dict[str, set[str]] = {}
    for query in found:
        splits.setdefault(query.group, set()).add(query.split)
    assert all(len(one) == 1 for one in splits.values()), "a translation is in another split"
    held = [query for query in found if query.split == "test"]
    assert {query.domain for query in held} == {*domains_of(found), UNKNOWN}
    assert sum(query.hard for query in held) >= 30


def domain(**spec: object) -> Domain:
    return msgspec.convert({"kind": "Domain", "metadata": {"name": "law"}, "spec": spec, "apiVersion": "sits/v1"}, Domain)


def test_examples_are_listed_by_language_or_not() -> None:
    assert examples_of(domain(examples={"zh": ["甲", "乙"], "en": ["a"]}).spec) == ["甲", "乙", "a"]
    assert examples_of(domain(examples=["a", "b"]).spec) == ["a", "b"]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"examples": ["a", "b", "c", "d"]}, []),
        ({"examples": ["a"]}, [("spec", "examples")]),
        ({"examples": {"zh": ["甲", "乙"], "en": ["a", " A "]}}, [("spec", "examples", "en", 1)]),
        ({"examples": ["a", "b", "c", " "]}, [("spec", "examples", 3)]),
        ({"examples": ["a", "b", "c", "d"], "unlike": ["e", "D"]}, [("spec", "unlike", 1)]),
    ],
    ids=["good", "too few", "twice", "blank", "both like and unlike"],
)
def test_what_is_wrong_with_a_domain_is_said_where_it_is(spec: dict[str, object], wanted: list[tuple[object, ...]]) -> None:
    assert [fault.path for fault in domain_faults(domain(**spec))] == wanted


def test_no_domain_is_called_unknown() -> None:
    unknown = msgspec.structs.replace(
        domain(examples=["a", "b", "c", "d"]), metadata=msgspec.convert({"name": UNKNOWN}, type(domain(examples=["a"]).metadata))
    )
    assert [fault.path for fault in domain_faults(unknown)] == [("metadata", "name")]
