"""Numbers, units and dates in running text, English and Chinese, in a form in which equal quantities are equal strings.

`5 km`, `5000 meters`, `five thousand metres` and `五千米` are all `5000m`; `周四`, `Thursday` are `@thu`. Units are kept apart by
what they measure; currencies are never converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec


def _by_place(text: str, first: int = 1) -> dict[str, int]:
    """Words and their places, counted from `first`."""
    return {word: place for place, word in enumerate(text.split(), first)}


_WORDS = _by_place(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen""",
    0,
) | {word: 10 * tens for word, tens in _by_place("twenty thirty forty fifty sixty seventy eighty ninety", 2).items()}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_ORDINALS = _by_place(
    """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
    sixteenth seventeenth eighteenth nineteenth twentieth"""
) | {"thirtieth": 30}
_HAN_DIGITS = {**{char: value for value, char in enumerate("零一二三四五六七八九")}, "〇": 0, "两": 2, "壹": 1, "贰": 2, "叁": 3}
_HAN_SCALES = {"十": 10, "百": 100, "千": 1000}
_HAN_LARGE = {"万": 10**4, "亿": 10**8}
HAN = frozenset([*_HAN_DIGITS, *_HAN_SCALES, *_HAN_LARGE])

_UNITS = """
m 1 = m | meter | meters | metre | metres | 米 | 公尺
m 1000 = km | kilometer | kilometers | kilometre | kilometres | 公里 | 千米
m 0.01 = cm | centimeter | centimeters | centimetre | centimetres | 厘米
m 0.001 = mm | millimeter | millimeters | millimetre | millimetres | 毫米
m 1609.344 = mile | miles | mi | 英里
m 0.3048 = foot | feet | ft | 英尺
m 0.0254 = inch | inches | 英寸
m 500 = 里路
g 1 = g | gram | grams | 克
g 1000 = kg | kgs | kilo | kilos | kilogram | kilograms | 公斤 | 千克
g 0.001 = mg | milligram | milligrams | 毫克
g 0.000001 = mcg | ug | microgram | micrograms | 微克
g 500 = 斤
g 1000000 = ton | tons | tonne | tonnes | 吨
g 453.59237 = lb | lbs | pound weight | 磅
g 28.349523 = oz | ounce | ounces | 盎司
l 1 = l | liter | liters | litre | litres | 升
l 0.001 = ml | milliliter | milliliters | millilitre | millilitres | 毫升
l 3.785412 = gallon | gallons | 加仑
s 1 = s | sec | secs | second | seconds | 秒 | 秒钟
s 60 = min | mins | minute | minutes | 分钟
s 3600 = h | hr | hrs | hour | hours | 小时 | 个小时 | 钟头
day 1 = day | days | 天
day 7 = week | weeks | 周 | 星期 | 个星期 | 礼拜
month 1 = month | months | 个月
month 12 = year | years | yr | yrs | 年
month 120 = decade | decades
age 1 = 岁 | years old | year old
% 1 = % | percent | per cent
celsius 1 = °c | ℃ | celsius | degrees celsius | degree celsius | degrees c | 摄氏度
fahrenheit 1 = °f | ℉ | fahrenheit | degrees fahrenheit | degree fahrenheit | degrees f | 华氏度
degree 1 = ° | degree | degrees | 度
USD 1 = usd | dollar | dollars | us dollars | 美元 | 美金 | bucks
EUR 1 = eur | euro | euros | 欧元
GBP 1 = gbp | pound | pounds | 英镑
CNY 1 = cny | rmb | yuan | 元 | 块 | 块钱 | 人民币
JPY 1 = jpy | yen | 日元
INR 1 = inr | rupee | rupees | 卢比
byte 1000000000000 = tb | terabyte | terabytes
byte 1000000000 = gb | gigabyte | gigabytes | gigs
byte 1000000 = mb | megabyte | megabytes
byte 1000 = kb | kilobyte | kilobytes
am 1 = am | a.m. | 点
pm 1 = pm | p.m.
floor 1 = 楼 | 层
mph 1 = mph
kmh 1 = km/h | kph
calorie 1 = calorie | calories | kcal | 卡路里 | 大卡
"""
_LOOKUP: dict[str, tuple[str, Decimal]] = {}
for _line in _UNITS.strip().splitlines():
    _head, _, _names = _line.partition(" = ")
    _kind, _factor = _head.split()
    for _name in _names.split(" | "):
        _LOOKUP[_name.replace(" ", "")] = (_kind, Decimal(_factor))
_LONGEST_UNIT = 3
"""Tokens; of Chinese units, characters."""
_CURRENCY = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "CNY"}
_COUNTED = frozenset("个只件条张本家台位名份首篇款种次部辆座间句段章项道袋瓶杯碗字号日月支")
"""Chinese words between a number and what is counted."""
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_NAMES = {
    name: f"@{_DAYS[place - 1]}" for name, place in _by_place("monday tuesday wednesday thursday friday saturday sunday").items()
}
_HAN_DAYS = dict(zip("一二三四五六日天", [*_DAYS, "sun"], strict=True))
_MONTHS = _by_place("january february march april may june july august september october november december")
_MONTHS |= {"jan": 1, "feb": 2, "apr": 4, "aug": 8, "sept": 9, "oct": 10, "nov": 11, "dec": 12}
_BEFORE_MONTH = frozenset(_by_place("in on of by until since last next this every early mid late from to and"))


class Found(msgspec.Struct, frozen=True, gc=False):
    """A quantity and how many tokens it took."""

    text: str
    length: int


def quantity(tokens: Sequence[str], raw: Sequence[str], at: int) -> Found | None:
    """The number, with its unit, or the date that begins at token `at`.

    `tokens` are lower-case words, digits, symbols and single Chinese characters, `raw` the same as they were written.
    """
    word = tokens[at]
    if word in _CURRENCY and at + 1 < len(tokens) and tokens[at + 1][0].isdigit():
        value, end, _ = _plain(tokens, at + 1)
        return Found(f"{_text(value)}{_CURRENCY[word]}", end - at)
    if word == "第" and at + 1 < len(tokens) and (tokens[at + 1] in HAN or tokens[at + 1][0].isdigit()):
        value, end, _ = _han(tokens, at + 1) if tokens[at + 1] in HAN else _plain(tokens, at + 1)
        return Found(f"{_text(value)}th", _counted(tokens, end) - at)
    date = _date(tokens, raw, at)
    if date is not None:
        return date
    if word[0].isdigit():
        return _with_unit(tokens, at, *_plain(tokens, at))
    if word in _WORDS or word in _ORDINALS or word in ("half", "dozen"):
        return _english(tokens, at)
    if word in HAN or word == "半":
        return _chinese(tokens, at)
    return None


def _date(tokens: Sequence[str], raw: Sequence[str], at: int) -> Found | None:
    word = tokens[at]
    day = _DAY_NAMES.get(word) or _DAY_NAMES.get(word.removesuffix("s"))
    if day is not None:
        return Found(day, 1)
    if word in _MONTHS and (word not in ("may", "march") or _is_month(tokens, raw, at)):
        return Found(f"@m{_MONTHS[word]}", 1)
    for lead in (("周",), ("星", "期"), ("礼", "拜")):
        end = at + len(lead)
        if tuple(tokens[at:end]) == lead and end < len(tokens) and tokens[end] in _HAN_DAYS:
            return Found(f"@{_HAN_DAYS[tokens[end]]}", end + 1 - at)
    return None


def _is_month(tokens: Sequence[str], raw: Sequence[str], at: int) -> bool:
    """Whether `may` or `march` is the month here."""
    after = tokens[at + 1] if at + 1 < len(tokens) else ""
    before = tokens[at - 1] if at else ""
    return after[:1].isdigit() or before[:1].isdigit() or before in _BEFORE_MONTH or (at > 0 and raw[at][0].isupper())


def _plain(tokens: Sequence[str], at: int) -> tuple[Decimal | str, int, bool]:
    """Digits, and the words that multiply them: the value, where it ends, whether it is an ordinal."""
    text = tokens[at].replace(",", "")
    ordinal = text[-2:] in ("st", "nd", "rd", "th")
    if ordinal:
        text = text[:-2]
    end = at + 1
    value: Decimal | str = text
    if text.count(".") < 2:
        while end < len(tokens) and (
            scale := _SCALES.get(tokens[end]) or _HAN_LARGE.get(tokens[end]) or _HAN_SCALES.get(tokens[end])
        ):
            value = Decimal(value) * scale
            end += 1
    return value, end, ordinal


def _english(tokens: Sequence[str], at: int) -> Found | None:
    total, current, end, ordinal = Decimal(0), Decimal(0), at, False
    while end < len(tokens):
        word = tokens[end]
        if word in _WORDS:
            current += _WORDS[word]
        elif word in _SCALES and (end > at or word == "dozen"):
            current = max(current, Decimal(1)) * _SCALES[word]
            if _SCALES[word] > 100:
                total, current = total + current, Decimal(0)
        elif word in _ORDINALS:
            current, ordinal = current + _ORDINALS[word], True
        elif word == "half" and end == at:
            current = Decimal("0.5")
        elif not (
            word == "and" and end > at and end + 1 < len(tokens) and tokens[end - 1] in _SCALES and tokens[end + 1] in _WORDS
        ):
            break
        end += 1
        if ordinal:
            break
    found = _with_unit(tokens, at, total + current, end, ordinal)
    # "one" alone is a pronoun: "a new one", "which one".
    return None if end == at + 1 and tokens[at] == "one" and found.text == "1" else found


def _chinese(tokens: Sequence[str], at: int) -> Found | None:
    if tokens[at] == "半":
        kind, end = _unit(tokens, at + 1)
        return None if kind is None else Found(_measure(Decimal("0.5"), kind), end - at)
    if "".join(tokens[at : at + 3]) == "百分之" and at + 3 < len(tokens) and tokens[at + 3] in HAN:
        value, end, _ = _han(tokens, at + 3)
        return Found(f"{_text(value)}%", end - at)
    value, end, _ = _han(tokens, at)
    found = _with_unit(tokens, at, value, end, False)
    # A single character is a number only where something is counted or measured: 二甲双胍 and 四川 hold none.
    return None if end == at + 1 and found.length == 1 else found


def _han(tokens: Sequence[str], at: int) -> tuple[Decimal, int, bool]:
    """A numeral of Chinese characters: by place (二〇二四) or by scale (三百五十, 一百五十万)."""
    end = at
    while end < len(tokens) and tokens[end] in HAN:
        end += 1
    chars = tokens[at:end]
    if all(char in _HAN_DIGITS for char in chars):
        return Decimal("".join(str(_HAN_DIGITS[char]) for char in chars)), end, False
    total, section, digit = 0, 0, 0
    for char in chars:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
        elif char in _HAN_SCALES:
            section, digit = section + (digit or 1) * _HAN_SCALES[char], 0
        else:
            total, section, digit = total + ((section + digit) or 1) * _HAN_LARGE[char], 0, 0
    if digit and len(chars) > 1 and chars[-2] in "百千":  # 三百五 is 350.
        digit *= _HAN_SCALES[chars[-2]] // 10
    return Decimal(total + section + digit), end, False


def _with_unit(tokens: Sequence[str], at: int, value: Decimal | str, end: int, ordinal: bool) -> Found:
    month = end > at and end < len(tokens) and tokens[end] == "月"
    if month:
        end += 2 if tokens[end + 1 : end + 2] == ["份"] else 1
        return Found(f"@m{_text(value)}", end - at)
    if end < len(tokens) and tokens[end] in ("号", "日") and not ordinal:
        return Found(f"@{_text(value)}", end + 1 - at)
    if end < len(tokens) and tokens[end] == "年" and len(_text(value)) == 4:
        return Found(_text(value), end + 1 - at)
    if ordinal:
        return Found(f"{_text(value)}th", end - at)
    kind, after = _unit(tokens, end)
    if kind is not None and isinstance(value, str) and value.count(".") > 1:
        kind = None
    if kind is None:
        return Found(_text(value), _counted(tokens, end) - at)
    return Found(_measure(Decimal(value), kind), after - at)


def _unit(tokens: Sequence[str], at: int) -> tuple[tuple[str, Decimal] | None, int]:
    for length in range(_LONGEST_UNIT, 0, -1):
        found = _LOOKUP.get("".join(tokens[at : at + length])) if at + length <= len(tokens) else None
        if found is not None:
            return found, at + length
    return None, at


def _counted(tokens: Sequence[str], at: int) -> int:
    return at + 1 if at < len(tokens) and tokens[at] in _COUNTED else at


def _measure(value: Decimal, unit: tuple[str, Decimal]) -> str:
    kind, factor = unit
    return f"{_text(value * factor)}{kind}"


def _text(value: Decimal | str) -> str:
    """One way to write it. What was written in digits keeps its zeros, since `3.1` and `3.10` are two versions of Python."""
    if isinstance(value, str):
        return value
    try:
        return f"{value.normalize():f}"
    except InvalidOperation:
        return str(value)
