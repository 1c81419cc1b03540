"""The one point that everything passes on its way out as a log line, an error message or a record.

It masks the exact secrets that the configuration resolved, and what looks like a secret of a known shape. Looking for shapes
is two steps: a search for fixed needles (8 us for a line of 500 bytes), and only where one is found the regular expressions
(about 100 us). An access line is spared both: all of it is searched for exact secrets, but only the two words in it that a
client chose (`word`, 0.2 us) can have a shape; the rest are our own numbers and the names of the configuration.

Clients choose much of what passes here, so the time is linear in the length of a text whatever it says: no repeat gives back what
it has taken (they are possessive), and what one attempt has scanned in vain no later attempt scans again. Messages are cut, too
(`message`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

import msgspec

MASK = "[redacted]"
SHORTEST = 8
"""Characters. Placeholders such as `none` or `EMPTY` are no secrets, and masking them would shred every log."""

LONGEST_MESSAGE = 2000
"""Characters of what an error says, on its way to a client, a log or a record."""
LONGEST_PARAM = 200
"""The same of the parameter at fault, and of a provider's own code."""
_BEYOND = 8192
"""Characters behind the cut of a message that are searched, too: secrets are shorter, but for known ones of any length."""

_CAPACITY = 4096
"""Forms of secrets kept; the oldest go first. A configuration has a few dozen, rotation adds one at a time."""

# In encoded JSON a word may begin right after an escape: the `n` of `\n` is no part of it.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
_VALUE = r"""(?!\[redacted)[^\s"'`\\,;&)}\]<>]"""
_NAME = r"(?:x-api-key|api[-_]?key|(?:proxy-)?authorization|access[-_]token|client[-_]secret|password)"
_GIVEN = r"""(?:[\\"']{0,3}\s?[:=]\s?|[\\"']{1,3},\s?(?!\\?"[^"\\]*+\\?"\s?:))(?:b(?=[\\"']))?[\\"']{0,3}"""
"""Between name and value: `: `, `=`, `": "`, and the `', b'` of a pair in Python's spelling; quotes may be escaped. What follows
a comma and is itself followed by a colon is the next key of an object, and no value."""

_SHAPES: tuple[tuple[str, str], ...] = (
    # Keys with a prefix of their own: SITS, OpenAI / Anthropic / OpenRouter, Google, Hugging Face, Groq, xAI, GitHub, AWS.
    (_START + r"sits-[A-Za-z0-9_-]{32,}+", MASK),
    (_START + r"sk-[A-Za-z0-9_-]{8,}+", MASK),
    (_START + r"AIza[A-Za-z0-9_-]{30,}+", MASK),
    (_START + r"(?:hf_|gsk_|xai-|gh[pousr]_|github_pat_|nvapi-)[A-Za-z0-9_-]{16,}+", MASK),
    (_START + r"A[KS]IA[A-Z0-9]{16}", MASK),
    # JWT: what begins like one and goes on like none is taken too, whole, and stays as it is. A word with many such beginnings
    # would else be read to its end from each of them.
    (_START + r"(eyJ[A-Za-z0-9_-]{8,}+)(\.[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?)?+", ""),
    # Credentials by where they stand; what says so is kept.
    (r"(?i)((?:bearer|basic)\s++)" + _VALUE + r"{8,}+", r"\1" + MASK),
    (r"(?i)(" + _NAME + _GIVEN + r"(?:bearer\s++|basic\s++)?+)" + _VALUE + "{4,}+", r"\1" + MASK),
    (r"(?i)([?&](?:api[-_]?key|key|token|access_token|sig|signature|password|secret)=)" + _VALUE + r"++", r"\1" + MASK),
    (r"""(://)[^\s/"'\\@?#]++(?=@)""", r"\1" + MASK),
)  # fmt: skip
"""Patterns and what is put in their place; an empty mask stands for the first group, where there is no second one."""

_NEEDLES = (
    "sits-", "sk-", "aiza", "hf_", "gsk_", "xai-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "nvapi-", "akia",
    "asia", "eyj", "bearer", "basic", "api-key", "api_key", "apikey", "authorization", "access-token", "access_token",
    "client-secret", "client_secret", "password", "key=", "token=", "sig=", "signature=", "secret=", "://",
)  # fmt: skip
"""In lower case: no shape matches where none of these is."""


class Redactor:
    """Masks secrets; made once, told of each configuration's secrets when it is compiled."""

    __slots__ = ("_beyond", "_clean", "_encoded", "_exact", "_known")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: dict[str, None] = {}
        self._beyond = _BEYOND
        self._clean: set[str] = set()
        self._exact: re.Pattern[str] | None = None
        # One value, swapped whole: the log's thread may be reading while a new configuration is learnt.
        self._encoded: tuple[tuple[bytes, ...], re.Pattern[bytes]] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these too from now on, as they are and percent-encoded; ones shorter than `SHORTEST` are not taken.

        Earlier ones stay known: requests that still use them may fail and say so.
        """
        for secret in secrets:
            for form in {secret.strip(), quote(secret.strip(), safe=""), quote_plus(secret.strip())}:
                if len(form) >= SHORTEST:
                    self._known.pop(form, None)
                    self._known[form] = None
        while len(self._known) > _CAPACITY:
            del self._known[next(iter(self._known))]
        if not self._known:
            return
        forms = sorted(self._known, key=len, reverse=True)
        encoded = {msgspec.json.encode(form)[1:-1] for form in forms} | {_ascii_json(form) for form in forms}
        needles = tuple(sorted(encoded, key=len, reverse=True))
        # Escapes are read as the units they are, so that a secret is only seen where it stands in the decoded text.
        units = rb"|(\\(?:u[0-9a-fA-F]{4}|.))"
        self._beyond = max(_BEYOND, len(forms[0]))
        self._exact = re.compile("|".join(re.escape(form) for form in forms))
        self._encoded = (needles, re.compile(b"|".join(re.escape(needle) for needle in needles) + units))
        self._clean.clear()

    def text(self, text: str) -> str:
        """The text with every secret masked."""
        if self._exact is not None:
            text = self._exact.sub(MASK, text)
        lowered = text.lower()
        if any(needle in lowered for needle in _NEEDLES):
            for pattern, mask in _TEXT_SHAPES:
                text = pattern.sub(mask, text)
        return text

    def message(self, text: str, most: int = LONGEST_MESSAGE) -> str:
        """The same of what an error says, which may be as long as what a client or a model has sent: cut to `most` characters.

        It is cut again after it was masked: the half of a secret that the first cut has left would be no secret to anybody here.
        """
        if len(text) <= most:
            return self.text(text)
        beyond = self._beyond
        # Twice, so that as much is left where one of them has become a mask.
        masked = self.text(text[: most + 2 * beyond])
        if len(text) > most + 2 * beyond:
            masked = masked[: max(0, len(masked) - beyond)]
        elif len(masked) <= most:
            return masked
        return masked[: most - 1] + "…"

    def word(self, word: str) -> str:
        """The same for a short text that comes again and again, such as a model's name; ones found clean are remembered."""
        if word in self._clean or _OWN_ID.fullmatch(word):
            return word
        masked = self.text(word)
        if masked == word and len(word) <= 256:
            if len(self._clean) >= _CLEAN_WORDS:
                self._clean.clear()
            self._clean.add(word)
        return masked

    def exact(self, line: bytes) -> bytes:
        """Encoded JSON, one line or many, with only the exact secrets masked; it stays valid JSON."""
        if self._encoded is not None:
            needles, pattern = self._encoded
            for needle in needles:
                if needle in line:
                    return pattern.sub(_mask_encoded, line)
        return line

    def line(self, line: bytes) -> bytes:
        """Encoded JSON with every secret masked, known or only looking like one; it stays valid JSON."""
        line = self.exact(line)
        lowered = line.lower()
        for needle in _NEEDLE_BYTES:
            if needle in lowered:
                for pattern, mask in _LINE_SHAPES:
                    line = pattern.sub(mask, line)
                break
        return line


_OWN_ID = re.compile(r"[0-9a-f]{32}")
"""A request id of ours: no shape fits it (and the exact secrets are searched in the whole line)."""
_CLEAN_WORDS = 1024


def _mask_jwt(found: re.Match[str]) -> str:
    return MASK if found[2] else found[1]


def _mask_jwt_bytes(found: re.Match[bytes]) -> bytes:
    return MASK.encode() if found[2] else found[1]


_TEXT_SHAPES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), mask or _mask_jwt) for pattern, mask in _SHAPES
)
_LINE_SHAPES: tuple[tuple[re.Pattern[bytes], bytes | Callable[[re.Match[bytes]], bytes]], ...] = tuple(
    (re.compile(pattern.encode()), mask.encode() or _mask_jwt_bytes) for pattern, mask in _SHAPES
)
_NEEDLE_BYTES = tuple(needle.encode() for needle in _NEEDLES)


def _mask_encoded(found: re.Match[bytes]) -> bytes:
    return found[1] or MASK.encode()


def _ascii_json(text: str) -> bytes:
    """The text inside a JSON string as encoders write it that escape everything outside ASCII."""
    out = []
    for character in text:
        if character.isascii():
            out.append(msgspec.json.encode(character)[1:-1])
        else:
            units = character.encode("utf-16-be")
            out += [b"\\u%04x" % int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return b"".join(out)
