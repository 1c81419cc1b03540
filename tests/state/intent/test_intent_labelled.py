"""A file of labelled queries: everything that is wrong with it is said at once, where it is and what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.cli.intent import intent
from sits.inner.errors import SitsError
from sits.state.intent.labelled import LINE, MOST_TOLD, Query, load, parse

GOOD = b'{"text": "a", "domain": "b"}'
WRONG = [
    pytest.param(b'{"text": "", "domain": "b"}', "`text` is empty; write what a user asks", id="no text"),
    pytest.param(b'{"domain": "b"}', "`text` is missing; write what a user asks", id="text is missing"),
    pytest.param(b'{"text": 5, "domain": "b"}', "`text` is 5; write what a user asks, in quotes", id="a number"),
    pytest.param(
        b'{"text": "a", "domain": " "}', '`domain` is empty; write the name of a domain, or "unknown" for none', id="no label"
    ),
    pytest.param(b'{"text": "a", "domain": "b", "split": "tets"}', '`split` is "tets"; did you mean "test"?', id="a split"),
    pytest.param(
        b'{"text": "a", "domain": "b", "split": 7}', '`split` is 7; write one of "examples", "tune", "test"', id="no split"
    ),
    pytest.param(b'{"text": "a", "domain": "b", "hard": "yes"}', '`hard` is "yes"; write true or false', id="hard"),
    pytest.param(b'{"text": "a", "domain": "b", "lang": ["zh"]}', '`lang` is ["zh"]; write it in quotes', id="a list"),
    pytest.param(
        b'{"text": "a", "domain": "b", "splti": "tune"}', '"splti" is no key of a query; did you mean "split"?', id="a key"
    ),
    pytest.param(
        b'{"text": "a", "domain": "b"', f"it is no JSON from column 28 on; write {LINE}, one object a line", id="cut off"
    ),
    pytest.param(b'["a", "b"]', f'["a","b"] is no object; write {LINE}', id="no object"),
    pytest.param(
        '{"text": "甲'.encode() + b'\xff", "domain": "b"}',
        "byte 14 of the line (0xff) is no UTF-8; save the file as UTF-8",
        id="bytes",
    ),
    pytest.param(b"[" * 100_000, f"it is nested too deeply; write {LINE}", id="nested"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_what_is_wrong_with_a_line_is_said_with_what_to_write(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "查询.jsonl"
    path.write_bytes(GOOD + b"\n\n" + line + b"\n")
    with pytest.raises(SitsError) as caught:
        load(path)
    assert caught.value.message == f"{path}:3: {said}"


def test_all_that_is_wrong_is_said_and_of_much_how_much_more(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b"\n".join([GOOD, b'{"text": "", "split": "tets"}', *[b"x"] * 30]))
    with pytest.raises(SitsError) as caught:
        load(path)
    told = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in told[:4]] == ["2", "2", "2", "3"]
    assert (len(told), told[-1]) == (MOST_TOLD + 1, f"{path}: and 13 more")


FORMS = [
    pytest.param(b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD, (1, 2), id="a byte order mark, and lines of Windows"),
    pytest.param(b"\n\r\n  \n" + GOOD + b"\n\n" + GOOD + b"\n", (4, 6), id="blank lines"),
    pytest.param(b'{"id": 7, "text": "a", "source": null, "domain": "b"}', (1,), id="keys of others"),
]


@pytest.mark.parametrize(("raw", "lines"), FORMS)
def test_files_are_read_whatever_wrote_them(tmp_path: Path, raw: bytes, lines: tuple[int, ...]) -> None:
    (tmp_path / "q.jsonl").write_bytes(raw)
    found = load(tmp_path / "q.jsonl")
    assert (found.lines, set(found.queries)) == (lines, {Query("a", "b")})


def test_a_file_that_is_not_utf_8_as_a_whole_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(GOOD.decode().encode("utf-16"))
    with pytest.raises(SitsError, match=r"q.jsonl: it is UTF-16; save it as UTF-8$"):
        load(tmp_path / "q.jsonl")


@given(
    line=st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda one: st.dictionaries(st.sampled_from(["text", "domain", "split", "lang", "hard"]) | st.text(), one),
    ).map(lambda one: json.dumps(one).encode())
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_on_a_line_it_is_a_query_or_is_refused_in_words_of_one_line(line: bytes) -> None:
    for one in line.splitlines():
        try:
            told = ["" for _ in parse([one])]
        except SitsError as error:
            told = error.message.split("\n")
        assert (told != [], {each[:7] for each in told} <= {"line:1:"} or told == [""]) == (bool(one.strip()), True)


def queries(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [{"text": text, "domain": name, "split": split} for text, name, split in rows]


FITTED = [(f"{name} {at}", name, "examples") for name in ("legal", "maths", "unknown") for at in range(5)]


def written(folder: Path, *rows: tuple[str, str, str]) -> Path:
    path = folder / "q.jsonl"
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in queries(*FITTED, *rows)), encoding="utf-8")
    return path


MISSPELT = [
    pytest.param(
        ("a", "leagl", "test"),
        '"leagl" is nobody\'s: no query of the split `examples` or `tune` has it; did you mean "legal"?',
        id="test",
    ),
    pytest.param(("a", "Unknown", "test"), 'has it; did you mean "unknown"?', id="unknown has one word"),
    pytest.param(
        ("a", "none", "test"),
        'has it; write one of "legal", "maths", or "unknown" for what is of none',
        id="another word for none",
    ),
    pytest.param(
        ("a", "leagl", "tune"), '"leagl" has 1 query to fit on and tune with; 4 are needed; did you mean "legal"?', id="tune"
    ),
]


@pytest.mark.parametrize(("row", "said"), MISSPELT)
def test_a_misspelt_label_is_refused_with_the_nearest_name(tmp_path: Path, row: tuple[str, str, str], said: str) -> None:
    path = written(tmp_path, ("b", "legal", "test"), row)
    done = CliRunner().invoke(intent, ["eval", str(path)])
    assert (done.exit_code, done.output.count("\n"), done.output.startswith(f"Error: {path}:17: ")) == (1, 1, True), done.output
    assert said in done.output


def test_all_lines_with_something_wrong_are_named_at_once_and_odd_ones_told(tmp_path: Path) -> None:
    path = written(tmp_path, ("legal 9", "leagl", "test"), ("maths 0", "unknown", "tune"))
    lines = [
        b"not json",
        b'{"text": "c", "domain": "legal", "split": "tset"}',
        b'{"text": "", "domain": "None"}',
        b'{"text": "Legal 9", "domain": "legal", "foo": 1}',
        b'{"text": "d", "domain": "legal", "foo": null, "id": 7}',
    ]
    path.write_bytes(path.read_bytes() + b"\n" + b"\n".join(lines))
    for command in ("eval", "tune"):
        done = CliRunner().invoke(intent, [command, str(path)])
        assert (done.exit_code, [line.replace(f"{path}:", "") for line in done.stderr.splitlines()]) == (1, [
            'warning: 17: "maths 0" is "unknown" here and "maths" in line 6',
            'warning: 21: "Legal 9" is "legal" here and "leagl" in line 16',
            'warning: 21: "foo" is no key of a query, and is passed over in 2 lines',
            'warning: 22: "id" is no key of a query, and is passed over',
            'Error: 16: `domain` "leagl" is nobody\'s: no query of the split `examples` or `tune` has it; did you mean "legal"?',
            f"18: it is no JSON from column 1 on; write {LINE}, one object a line",
            '19: `split` is "tset"; did you mean "test"?',
            "20: `text` is empty; write what a user asks",
            '20: `domain` "None" is nobody\'s: no query of the split `examples` or `tune` has it; write one of "legal", "maths", '
            'or "unknown" for what is of none',
        ])  # fmt: skip


DOMAIN = """apiVersion: sits/v1
kind: Domain
metadata: {name: legal}
spec: {description: law, examples: [a tenant, a lease, a court, a contract]}
"""


def test_lines_are_held_against_the_domains_of_a_configuration_with_all_else_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "legal.yaml").write_text(DOMAIN)
    path = tmp_path / "q.jsonl"
    path.write_text('{"text": "a", "domain": "leagl"}\nnot json\n{"text": 5, "domain": "None"}\n')
    done = CliRunner().invoke(intent, ["eval", str(path), "--config", str(tmp_path / "legal.yaml")])
    told = [line.removeprefix("Error: ").removeprefix(f"{path}:") for line in done.stderr.splitlines()]
    assert (done.exit_code, [line.split(":")[0] for line in told]) == (1, ["1", "2", "3", "3"])
    assert told[0].endswith('no Domain of the configuration has it; did you mean "legal"?')


@pytest.mark.parametrize(("split", "count"), [("tset", 3), ("tune", 4)])
def test_a_line_whose_split_is_misspelt_makes_no_label_too_rare(tmp_path: Path, split: str, count: int) -> None:
    rows = [*((f"m {at}", "medical", "tune") for at in range(3)), ("m 3", "medical", split)]
    done = CliRunner().invoke(intent, ["tune", str(written(tmp_path, *rows, ("a", "x", "test")))])
    said = '`split` is "tset"; did you mean "test"?' in done.stderr
    assert (said, "are needed" in done.stderr, done.stderr.count("\n")) == (count == 3, False, 1 + (count == 3))


def test_texts_with_two_labels_and_on_both_sides_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, ("Legal 0 ", "maths", "tune"), ("maths 1", "maths", "test"), ("押金", "legal", "test"))
    assert list(load(path).doubts()) == [
        f'{path}:16: "Legal 0 " is "maths" here and "legal" in line 1',
        f"{path}:17: 1 text of the split `test` is in the others, too: what is known beforehand is no trial",
    ]
