"""What is named in a card: languages in their order, programming languages by their whole names."""

from __future__ import annotations

import pytest

from sits.resilience.substitutes.card import claims, described
from sits.resilience.substitutes.named import directions, programs

DIRECTIONS = {
    "Translates Chinese into English": {("zh", "en")},
    "English to Simplified Chinese, for manuals": {("en", "zh")},
    "Chinese-to-English translator": {("zh", "en")},
    "Translates from Korean to Russian": {("ko", "ru")},
    "Translates between German and English": {("de", "en"), ("en", "de")},
    "把中文合同翻译成英文": {("zh", "en")},
    "英译中，面向商务文档": {("en", "zh")},
    "中英互译": {("zh", "en"), ("en", "zh")},
    "德语和英语互译": {("de", "en"), ("en", "de")},
    "西班牙语译成葡萄牙语": {("es", "pt")},
    "Answers questions in Chinese": set(),
    "Practises spoken English with learners": set(),
    "Turns questions into SQL": set(),
    "Translates poems": set(),
}


@pytest.mark.parametrize(("text", "found"), DIRECTIONS.items(), ids=DIRECTIONS.keys())
def test_translations_have_a_direction(text: str, found: set[tuple[str, str]]) -> None:
    assert directions(text) == found


PROGRAMS = {
    "Writes Java and SQL": {"java", "sql"},
    "JavaScript for browsers": {"javascript"},
    "用 JavaScript 和 TypeScript 编写网页": {"javascript", "typescript"},
    "C++ and C# developers": {"c++", "c#"},
    "Bash, also called shell": {"bash"},
    "Sails around Java island": {"java"},
    "PostgreSQL experts": set(),
}


@pytest.mark.parametrize(("text", "found"), PROGRAMS.items(), ids=PROGRAMS.keys())
def test_programming_languages_are_whole_words(text: str, found: set[str]) -> None:
    assert programs(text) == found


COVERS = [
    ("Translates Chinese into English", "Chinese-to-English translator", True),
    ("Translates Chinese into English", "Translates English into Chinese", False),
    ("Translates Chinese into English", "中英互译", True),
    ("中英互译", "Translates Chinese into English", False),
    ("Translates Chinese into English", "Translates legal documents", False),
    ("Writes letters", "Translates Chinese into English", False),
    ("Writes Java", "Writes Java and SQL", True),
    ("Writes Java and SQL", "Writes Java", False),
    ("Writes Java", "Writes JavaScript", False),
    ("Writes Java", "Writes programs in any language", True),
]


@pytest.mark.parametrize(("primary", "other", "covered"), COVERS, ids=[f"{a} | {b}" for a, b, _ in COVERS])
def test_names_forbid_what_they_contradict(primary: str, other: str, covered: bool) -> None:
    a, b = described("a", primary, []), described("b", other, [])
    assert a is not None
    assert b is not None
    assert a.covered_by(b) is covered


def test_those_who_are_asked_at_other_endpoints_never_stand_in() -> None:
    chat = described("a", "Explains embeddings", [], frozenset(("chat",)))
    vectors = described("b", "Embeddings", [], frozenset(("embeddings",)))
    assert chat is not None
    assert vectors is not None
    assert not chat.covered_by(vectors)


CLAIMS = {
    "Writes poems.": (),
    "Writes poems. Draws pictures.": ("Writes poems", "Draws pictures"),
    "Explains policies and settles claims.": ("Explains policies", "settles claims"),
    "Writes tests and documentation for code.": ("Writes tests", "Writes documentation for code"),
    "Estimates prices, and plans trips; sells tickets": ("Estimates prices", "plans trips", "sells tickets"),
    "审查合同，起草诉讼文书。": ("审查合同", "起草诉讼文书"),
    "创作古典诗词和流行歌词": ("创作古典诗词", "流行歌词"),
    "Version 2.5 of a poet": (),
}


@pytest.mark.parametrize(("text", "parts"), CLAIMS.items(), ids=CLAIMS.keys())
def test_a_description_is_taken_apart_into_what_it_claims(text: str, parts: tuple[str, ...]) -> None:
    assert claims(text) == parts
