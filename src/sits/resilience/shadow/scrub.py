"""Taking personal data out of what leaves: placeholders in their place, the same one for the same thing.

What is taken out: URLs with credentials, e-mail addresses, IBANs, identity numbers of China (GB 11643), payment cards,
telephone numbers, IP addresses. What has a check digit is held against it, so that order numbers and hashes stay. Letters and
digits of full width (U+FF01 to U+FF5E), common in Chinese text, count as the plain ones. Names of people and postal addresses are
not found: that takes a model, not a pattern.

Strategy: one pattern after the other over a text, the most certain first; a placeholder (`<PHONE_2>`) is nothing that a later
pattern, or a second pass, would find. In JSON only values are rewritten, and JSON inside a string (arguments of tools, results)
is taken apart and put together again, so that what was JSON stays JSON. Every pattern is bounded, so that no text takes more
than a time in proportion to its length.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Generator
from datetime import date
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that pauses between its steps; what comes of it is what it returns."""
MOST_FOUND = 10_000
"""Things that one document is searched for; a document with more is refused rather than half scrubbed."""
DEEPEST = 100
ROUNDS = 8
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
"""Full width to plain, one character for one, so that places stay where they are."""

_URL = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,30}://[!#-&(-;=?-~]+", re.IGNORECASE | re.ASCII)
_CREDENTIALS = re.compile(
    r"://[^\s/?#@]{1,256}@|[?&#](?:access_token|api[_-]?key|key|token|secret|sig|signature|password|pwd)=.", re.IGNORECASE
)
_EMAIL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}")
# Addresses in other scripts (RFC 6531). Chinese has no spaces, so a word or two before one may go with it: rather too much.
_EMAIL_WIDE = re.compile(r"[\w.%+-]{1,64}@(?:[\w-]{1,63}\.)+\w{2,24}")
_IBAN = re.compile(r"(?<![A-Z0-9])([A-Z]{2})(\d{2})((?:[ -]?[A-Z0-9]){11,30})", re.ASCII | re.IGNORECASE)
_IDENTITY = re.compile(r"(?<![0-9A-Za-z])\d{6}(?:18|19|20)\d{9}[\dXx](?![0-9A-Za-z])", re.ASCII)
_CARD = re.compile(r"(?<![\d.])[2-6]\d{3}(?:[ -]?\d){9,15}(?!\d|\.\d)", re.ASCII)
_PHONE = re.compile(
    r"(?<![\w.+-])(?:\+|00)[1-9](?:[ .()-]{0,2}\d){6,13}(?![\d])"  # E.164 with its prefix
    r"|(?<![0-9.])(?:86[ -]?)?1[3-9]\d(?:[ -]?\d{4}){2}(?![0-9])"  # mobiles of China
    r"|(?<![0-9A-Za-z.])(?:\(0\d{2,3}\)[ -]?|0\d{2,3}[ -])[2-9]\d{6,7}(?![0-9])"  # landlines of China, area code set off
    r"|(?<![0-9A-Za-z.])0(?:10|2\d|[3-9]\d{2})[2-9]\d{6,7}(?![0-9])"  # or not
    r"|(?<![\w.-])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[ .-])[2-9]\d{2}[ .-]\d{4}(?![0-9])",  # North America
    re.ASCII,
)
_IPV4 = re.compile(r"(?<![\d.vV])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?!\d|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f:]{4,}(?:\d+\.\d+\.\d+\.\d+)?(?:%\w+)?(?![0-9A-Za-z:])", re.ASCII)
_DIGITS = re.compile(r"\D")

IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28,
    "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
    "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24,
    "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26,
    "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
"""Characters of an IBAN by country (ISO 13616, the registry of SWIFT)."""

STRUCTURAL = frozenset({
    "model", "role", "type", "id", "tool_call_id", "call_id", "tool_use_id", "item_id", "object", "detail", "media_type",
    "format", "finish_reason", "stop_reason", "status", "b64_json", "file_data", "encrypted_content", "signature", "effort",
    "service_tier", "encoding_format", "previous_response_id",
})  # fmt: skip
"""Fields of a request that are words of the protocol, or bytes in base64: left as they are."""
OF_THE_USER = ("user", "safety_identifier", "metadata", "prompt_cache_key")
"""Fields of a request that say who uses it, and nothing to a model: taken out."""


class Unscrubbable(Exception):
    """It cannot be said that nothing personal is left, so it must not leave."""


class Scrubber:
    """What was found in one document, and in all that belongs to it: the same thing has the same placeholder in each."""

    __slots__ = ("_found", "_numbers")

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}

    @property
    def found(self) -> dict[str, int]:
        """How many different things of each kind there were."""
        return dict(self._numbers)

    def text(self, text: str) -> str:
        """The text with what is personal replaced.

        Raises:
            Unscrubbable: there is too much of it.
        """
        return _whole(self._text(text))

    def json(self, body: bytes) -> bytes:
        """A request with its values scrubbed; what is no value, and what is a word of the protocol, stays.

        Raises:
            Unscrubbable: it cannot be read, or is too deep or too full.
        """
        return _whole(self.json_by_steps(body))

    def json_by_steps(self, body: bytes) -> Steps[bytes]:
        """As `json`, with a pause wherever something else may have its turn: 100 KiB take some 20 ms in all."""
        try:
            value = json.loads(body, parse_constant=_no_constant)
            if isinstance(value, dict):
                value = {name: held for name, held in value.items() if name not in OF_THE_USER}
            scrubbed = yield from self._value(value, 0, inner=False)
            return json.dumps(scrubbed, ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError) as error:
            raise Unscrubbable(f"the request cannot be read: {error}") from error

    def _text(self, text: str) -> Steps[str]:
        for _ in range(ROUNDS):
            before = text
            text = yield from self._once(text)
            if text == before:
                break
            # What stood beside a find may be one itself now that it stands alone.
        return text

    def _once(self, text: str) -> Steps[str]:
        plain = text if text.isascii() else text.translate(_NARROW)
        if "@" in plain or "://" in plain:
            for pattern, judge in _WRITTEN if plain.isascii() else (*_WRITTEN, (_EMAIL_WIDE, _email)):
                text, plain = self._replace(text, plain, pattern, judge)
                yield
        if _enough_digits(plain):
            for pattern, judge in _NUMERIC:
                text, plain = self._replace(text, plain, pattern, judge)
                yield
        return text

    def _value(self, value: Any, depth: int, *, inner: bool) -> Steps[Any]:
        """`inner`: inside JSON that was a string, where names and numbers are content too."""
        if depth > DEEPEST:
            raise Unscrubbable(f"it is deeper than {DEEPEST} levels")
        if isinstance(value, str):
            return (yield from self._string(value, depth))
        if isinstance(value, list):
            items = []
            for one in value:
                items.append((yield from self._value(one, depth + 1, inner=inner)))
            return items
        if isinstance(value, dict):
            fields = {}
            for name, held in value.items():
                if inner:
                    name = yield from self._text(name)
                elif name in STRUCTURAL and isinstance(held, str):
                    fields[name] = held
                    continue
                fields[name] = yield from self._value(held, depth + 1, inner=inner)
            return fields
        if inner and isinstance(value, int) and not isinstance(value, bool):
            said = str(value)
            scrubbed = yield from self._text(said)
            return value if scrubbed == said else scrubbed
        return value

    def _string(self, value: str, depth: int) -> Steps[str]:
        if value.startswith("data:"):
            return value  # Bytes: an image, a sound, a file.
        if value[:64].lstrip()[:1] in ("{", "["):
            try:
                held = json.loads(value, parse_constant=_no_constant)
            except (ValueError, RecursionError):
                return (yield from self._text(value))
            scrubbed = yield from self._value(held, depth + 1, inner=True)
            return value if scrubbed == held else json.dumps(scrubbed, ensure_ascii=False, separators=(",", ":"))
        return (yield from self._text(value))

    def _replace(self, text: str, plain: str, pattern: re.Pattern[str], judge: _Judge) -> tuple[str, str]:
        """`text` and its plain form with each find replaced that the judge takes; what he leaves may be found further inside."""
        out: list[str] = []
        at = 0
        find = pattern.search(plain)
        if find is None:
            return text, plain
        while find is not None:
            said = judge(find)
            if said is None:
                find = pattern.search(plain, find.start() + 1)
                continue
            kind, canonical, length = said
            end = find.start() + length
            if kind:
                out += [text[at : find.start()], self._placeholder(kind, canonical)]
                at = end
            find = pattern.search(plain, end)
        if not out:
            return text, plain
        text = "".join([*out, text[at:]])
        return text, text if text.isascii() else text.translate(_NARROW)

    def _placeholder(self, kind: str, canonical: str) -> str:
        found = self._found.get((kind, canonical))
        if found is None:
            if len(self._found) >= MOST_FOUND:
                raise Unscrubbable(f"more than {MOST_FOUND} personal data are in it")
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            found = self._found[kind, canonical] = f"<{kind}_{number}>"
        return found


# The judges: kind, canonical form and length of a find; None where there is none, though one may begin inside it, and an empty
# kind for so much that is left as it is.

_Find = tuple[str, str, int]
_Judge = Callable[[re.Match[str]], _Find | None]


def _url(find: re.Match[str]) -> _Find:
    found = find[0].rstrip(".,;:!?)]}、。，；：！？）】》」")
    return "URL" if _CREDENTIALS.search(found) is not None else "", found, len(found)


def _email(find: re.Match[str]) -> _Find:
    return "EMAIL", find[0].lower(), len(find[0])


def _enough_digits(plain: str) -> bool:
    """Whether there are digits enough for a telephone number, or the colons of an address."""
    if plain.count(":") > 1 and _IPV6.search(plain) is not None:
        return True
    count = 0
    for digit in "0123456789":
        count += plain.count(digit)
        if count >= 4:
            return True
    return False


def _iban(find: re.Match[str]) -> _Find | None:
    length = IBAN_LENGTHS.get(find[1].upper())
    if length is None:
        return None
    # The pattern is greedy: a word in capitals after it may hang on.
    end, seen = 0, 0
    for end, character in enumerate(find[0], 1):  # noqa: B007 - where it ends is what is wanted
        seen += character.isalnum()
        if seen == length:
            break
    if seen < length or (end < len(find[0]) and find[0][end].isalnum()):
        return None
    code = "".join(filter(str.isalnum, find[0][:end])).upper()
    if int("".join(str(int(character, 36)) for character in code[4:] + code[:4])) % 97 != 1:  # ISO 7064 MOD 97-10
        return None
    return "IBAN", code, end


def _identity(find: re.Match[str]) -> _Find | None:
    code = find[0].upper()
    try:
        date(int(code[6:10]), int(code[10:12]), int(code[12:14]))
    except ValueError:
        return None
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(code[:17]))  # ISO 7064 MOD 11-2
    return ("ID", code, 18) if code[17] == "10X98765432"[total % 11] else None


def _card(find: re.Match[str]) -> _Find | None:
    found = find[0]
    while found:
        digits = _DIGITS.sub("", found)
        if len(digits) < 13:
            return None
        if _luhn(digits):
            return "CARD", digits, len(found)
        # Digits that follow after a space are not of it, perhaps.
        cut = max(found.rfind(" "), found.rfind("-"))
        found = found[: max(cut, 0)]
    return None


def _luhn(digits: str) -> bool:
    """ISO/IEC 7812-1."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _phone(find: re.Match[str]) -> _Find | None:
    digits = _DIGITS.sub("", find[0])
    if find[0].startswith("00"):
        digits = digits[2:]
    if len(digits) == 13 and digits.startswith("861"):
        digits = digits[2:]
    if not 7 <= len(digits) <= 15:
        return None
    return "PHONE", digits, len(find[0])


def _ip(find: re.Match[str]) -> _Find | None:
    found = find[0].rstrip(":") if not find[0].endswith("::") else find[0]
    if ":" in found and (not any(character.isdigit() for character in found) or len(found.replace(":", "")) < 2):
        return None
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return None
    return "IP", str(address), len(found)


_WRITTEN: tuple[tuple[re.Pattern[str], _Judge], ...] = ((_URL, _url), (_EMAIL, _email))
_NUMERIC: tuple[tuple[re.Pattern[str], _Judge], ...] = (
    (_IBAN, _iban), (_IDENTITY, _identity), (_CARD, _card), (_PHONE, _phone), (_IPV4, _ip), (_IPV6, _ip)
)  # fmt: skip


def _whole(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: T = over.value
            return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
