"""No secret gets past the redactor, in text or in encoded JSON, and what passes stays readable."""

from __future__ import annotations

import json
import re
import string
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sits.observe import redact
from sits.observe.redact import LONGEST_MESSAGE, MASK, Redactor

KEY = "sits-" + "Ab3_-" * 8 + "xyz"

SHAPES = {
    "our own key": (f"the key {KEY} is unknown", f"the key {MASK} is unknown"),
    "OpenAI": ("bad sk-proj-abcDEF123456_x!", f"bad {MASK}!"),
    "Anthropic": ("sk-ant-api03-abcdefgh", MASK),
    "Hugging Face": ("(hf_abcdefghijklmnopqrst)", f"({MASK})"),
    "Google": ("AIza" + "x" * 35, MASK),
    "AWS": ("id AKIAABCDEFGHIJKLMNOP", f"id {MASK}"),
    "JWT": ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", MASK),
    "bearer": ("Authorization: Bearer abcdefghijkl", f"Authorization: Bearer {MASK}"),
    "bearer in lower case": ("got bearer ABCDEFGHIJKL.", f"got bearer {MASK}"),
    "basic": ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {MASK}"),
    "x-api-key": ("x-api-key: very.secret/value", f"x-api-key: {MASK}"),
    "a header pair of Python": ("(b'x-api-key', b'abcd1234')", f"(b'x-api-key', b'{MASK}')"),
    "JSON": ('{"api_key": "abcd1234", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
    "URL with a password": ("http://user:pass@host:1/x", f"http://{MASK}@host:1/x"),
    "URL with a token": ("https://tok123@host/x", f"https://{MASK}@host/x"),
    "query": ("GET /v1?key=abc&x=1&api_key=def", f"GET /v1?key={MASK}&x=1&api_key={MASK}"),
}


@pytest.mark.parametrize(("text", "masked"), SHAPES.values(), ids=SHAPES.keys())
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == masked
    assert json.loads(redactor.line(msgspec.json.encode({"msg": text, "n": 1}))) == {"msg": masked, "n": 1}


PLAIN = [
    "task-12345678 runs on disk-management",
    "model smollm2-135m-instruct answered, 模型已回答",
    "no key was given: send `Authorization: Bearer KEY`",
    "see https://host/path?x=1 and mail me@host",
    "0190b2f3a4b57c8d9e0f1a2b3c4d5e6f",
]


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    redactor = Redactor(["another-secret"])
    line = msgspec.json.encode({"msg": text})
    assert (redactor.text(text), redactor.word(text), redactor.line(line)) == (text, text, line)


NASTY = st.text(string.ascii_letters + string.digits + '"\\/\n\t&+= %人é😀-_', min_size=8, max_size=24).filter(
    lambda text: len(text.strip()) >= 8
)


@settings(max_examples=200)
@given(secret=NASTY, before=st.text(max_size=20), after=st.text(max_size=20))
@example(secret="necret1234", before="\n", after="")
@example(secret='"quoted-secret"', before="\\", after="\\")
@example(secret="001becret1234", before="\x1b", after="")
@example(secret="nnnnnnnnn", before="\n", after="n")
def test_a_canary_never_gets_out(secret: str, before: str, after: str) -> None:
    secret = secret.strip()
    redactor = Redactor([secret])
    spellings = (secret, quote(secret, safe=""))
    for spelling in spellings:
        text = f"{before}{spelling}{after}"
        assert spelling not in redactor.text(text)
        for line in (msgspec.json.encode({"msg": text}), json.dumps({"msg": text}).encode()):
            out = json.loads(redactor.line(line))
            assert out.keys() == {"msg"}
            assert spelling not in out["msg"]
            assert spelling not in json.loads(redactor.exact(line))["msg"]


@settings(max_examples=200)
@given(st.text(max_size=60), st.sampled_from([shape for shape, _ in SHAPES.values()]), st.text(max_size=20))
def test_encoded_json_stays_json(before: str, shape: str, after: str) -> None:
    redactor = Redactor(["secret-one", "nother\\one"])
    value = {"msg": before + shape + after, "list": [before, {"k": after}], "n": 1.5}
    out = json.loads(redactor.line(msgspec.json.encode(value)))
    assert (out.keys(), out["n"]) == (value.keys(), 1.5)


def test_the_next_key_of_an_object_is_no_value_of_the_name_before_it() -> None:
    value = {"msg": "needs an access-token", "list": ["authorization", "abcdefgh"], "password": "hunter22"}
    out = json.loads(Redactor().line(msgspec.json.encode(value)))
    assert out == {"msg": "needs an access-token", "list": ["authorization", MASK], "password": MASK}


def test_a_key_after_an_escaped_newline_is_seen() -> None:
    out = Redactor().line(msgspec.json.encode({"msg": f"first\n{KEY}\tsk-abcdefgh1234"}))
    assert json.loads(out) == {"msg": f"first\n{MASK}\t{MASK}"}


def test_short_placeholders_are_no_secrets() -> None:
    assert Redactor(["none", "EMPTY"]).text("none of them is EMPTY") == "none of them is EMPTY"


def test_secrets_learned_later_are_masked_and_earlier_ones_stay_known() -> None:
    redactor = Redactor(["first-secret"])
    assert redactor.word("second-secret") == "second-secret"
    redactor.learn(["second-secret"])
    assert redactor.word("second-secret") == MASK
    assert redactor.text("first-secret, second-secret") == f"{MASK}, {MASK}"


def test_the_longer_of_two_nested_secrets_is_masked_whole() -> None:
    assert Redactor(["secret-aa", "secret-aa-bb"]).text("x secret-aa-bb y") == f"x {MASK} y"


def test_what_it_remembers_is_bounded() -> None:
    redactor = Redactor()
    for number in range(5000):
        redactor.learn([f"secret-number-{number:06d}"]) if number % 50 == 0 else redactor.word(f"model-{number}")
    assert len(redactor._clean) <= 1024
    assert len(redactor._known) <= 4096


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assume("[" not in text)
    once = Redactor(["secret-one"]).text(text)
    assert Redactor(["secret-one"]).text(once) == once


GIVING_BACK = (
    (redact._START + r"sits-[A-Za-z0-9_-]{32,}", MASK),
    (redact._START + r"sk-[A-Za-z0-9_-]{8,}", MASK),
    (redact._START + r"AIza[A-Za-z0-9_-]{30,}", MASK),
    (redact._START + r"(?:hf_|gsk_|xai-|gh[pousr]_|github_pat_|nvapi-)[A-Za-z0-9_-]{16,}", MASK),
    (redact._START + r"A[KS]IA[A-Z0-9]{16}", MASK),
    (redact._START + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", MASK),
    (r"(?i)((?:bearer|basic)\s+)" + redact._VALUE + r"{8,}", r"\1" + MASK),
    (
        r"(?i)(" + redact._NAME + redact._GIVEN.replace("*+", "*") + r"(?:bearer\s+|basic\s+)?+)" + redact._VALUE + "{4,}",
        r"\1" + MASK,
    ),
    (
        r"(?i)([?&](?:api[-_]?key|key|token|access_token|sig|signature|password|secret)=)" + redact._VALUE + r"+",
        r"\1" + MASK,
    ),
    (r"""(://)[^\s/"'\\@?#]+(?=@)""", r"\1" + MASK),
)
"""The same shapes without possessive repeats: what they find is beyond doubt, and they may take for ever."""
PIECES = st.sampled_from((
    "sits-", "sk-", "AIza", "hf_", "AKIA", "ASIA", "eyJ", ".", "-", "_", " ", "  ", "\t", "\n", "\\n", "\\u001b", '"', "'", "\\",
    ",", ":", "=", "?", "&", "/", "//", "://", "@", "#", "bearer", "Bearer ", "basic ", "b'", "x-api-key", "authorization",
    "password", "access_token", "?key=", "[redacted]", "[", "abcdefgh", "abcdefghijklmnopqrstuvwxyz0123456789",
    "ABCDEFGHIJKLMNOP", "人", "aB3",
))  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=16).map("".join))
@example("-eyJaaaaaaaa.eyJbbbbbbbb.cccccccc")
@example("eyJ-eyJabcdefgh.abcdefgh.")
@example("eyJabcdefgh.eyJ.abcdefgh")
@example("bearer   [redacted")
@example('password\',"abcdefgh" :')
def test_what_was_found_by_trying_everything_is_found_in_linear_time(text: str) -> None:
    wanted, line = text, text.encode()
    for pattern, mask in GIVING_BACK:
        wanted = re.sub(pattern, mask, wanted)
        line = re.sub(pattern.encode(), mask.encode(), line)
    assert (Redactor().text(text), Redactor().line(text.encode())) == (wanted, line)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in redact._SHAPES])
def test_no_repeat_without_an_end_gives_back_what_it_has_taken(pattern: str) -> None:
    possessive = r"(?:[*+?]|\{\d+,?\d*\})\+"
    assert re.findall(r"[*+]|\{\d+,\}", re.sub(possessive, "", pattern)) == []


@pytest.mark.parametrize("piece", ["-eyJ", "bearer [redacted", "basic\t ", "password',\" ", "://a:", "-sk-a b"])
def test_what_is_all_beginnings_of_secrets_is_read_once_and_left_alone(piece: str) -> None:
    # Read to its end from each of them, a text of the first kind would take minutes.
    text = piece * ((1_000_000 if piece == "-eyJ" else 100_000) // len(piece))
    assert Redactor().text(text) == text
    assert piece != "-eyJ" or Redactor().line(text.encode()) == text.encode()


def test_a_message_is_cut_and_no_secret_loses_its_beginning_or_end_to_that() -> None:
    redactor = Redactor(["the-known-secret-of-the-house"])
    assert redactor.message("模型已回答") == "模型已回答"
    assert redactor.message("a" * LONGEST_MESSAGE) == "a" * LONGEST_MESSAGE
    assert redactor.message("a" * 100_000) == "a" * (LONGEST_MESSAGE - 1) + "…"
    for secret in ("the-known-secret-of-the-house", "Bearer abcdefghijklmnop", KEY, "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"):
        for length in (LONGEST_MESSAGE, LONGEST_MESSAGE + 2 * redact._BEYOND):
            for before in range(length - len(secret) - 1, length + 1, 3):
                told = redactor.message("x" * (before - 1) + " " + secret + " " + "y" * 20_000)
                assert len(told) <= LONGEST_MESSAGE
                assert set(told) <= set("x y…" + MASK + "Bearer"), (before, told[-60:])


def test_a_known_secret_that_is_longer_than_what_is_searched_behind_the_cut_is_seen_all_the_same() -> None:
    secret = "0123456789" * 2000
    redactor = Redactor([secret])
    told = redactor.message("x" * 1990 + secret + "y" * 20_000)
    assert told == "x" * 1990 + MASK[:9] + "…"


def test_a_message_of_nothing_but_secrets_is_a_message_of_masks() -> None:
    told = Redactor().message("password: abcdefgh " * 10_000)
    assert len(told) == LONGEST_MESSAGE
    assert set(told.replace(f"password: {MASK} ", "")) <= set(f"password: {MASK}…")
