"""What is named in a card and must not differ: embeddings take Java for JavaScript and a translation for its opposite.

Pure: text to sets. English and Chinese are read.
"""

from __future__ import annotations

import re

Direction = tuple[str, str]

_LANGUAGES = {
    "ar": ("arabic", "阿拉伯语", "阿拉伯文"),
    "cs": ("czech", "捷克语"),
    "da": ("danish", "丹麦语"),
    "de": ("german", "德语", "德文"),
    "el": ("greek", "希腊语"),
    "en": ("english", "英语", "英文"),
    "es": ("spanish", "西班牙语", "西班牙文", "西语"),
    "fa": ("persian", "波斯语"),
    "fi": ("finnish", "芬兰语"),
    "fr": ("french", "法语", "法文"),
    "he": ("hebrew", "希伯来语"),
    "hi": ("hindi", "印地语"),
    "hu": ("hungarian", "匈牙利语"),
    "id": ("indonesian", "印尼语"),
    "it": ("italian", "意大利语", "意大利文"),
    "ja": ("japanese", "日语", "日文"),
    "ko": ("korean", "韩语", "韩文", "朝鲜语"),
    "la": ("latin", "拉丁语"),
    "ms": ("malay", "马来语"),
    "nl": ("dutch", "荷兰语"),
    "no": ("norwegian", "挪威语"),
    "pl": ("polish", "波兰语"),
    "pt": ("portuguese", "葡萄牙语", "葡语"),
    "ru": ("russian", "俄语", "俄文"),
    "sv": ("swedish", "瑞典语"),
    "th": ("thai", "泰语", "泰文"),
    "tr": ("turkish", "土耳其语"),
    "uk": ("ukrainian", "乌克兰语"),
    "vi": ("vietnamese", "越南语"),
    "yue": ("cantonese", "粤语", "广东话"),
    "zh": ("chinese", "mandarin", "中文", "汉语", "普通话"),
}
_SHORT = {"英": "en", "德": "de", "法": "fr", "中": "zh", "汉": "zh", "日": "ja", "韩": "ko", "俄": "ru", "西": "es", "葡": "pt"}
"""As in 中译英."""
_CODE = {name: code for code, names in _LANGUAGES.items() for name in names}
_LATIN = "|".join(name for name in _CODE if name.isascii())
_HAN = "|".join(sorted((name for name in _CODE if not name.isascii()), key=len, reverse=True))
_ONE = "".join(_SHORT)

_ONE_WAY = (
    # "Translates German letters into English", "from Korean to Russian"; no other language stands between.
    re.compile(rf"\b({_LATIN})\b(?:(?!\b(?:{_LATIN})\b)[^.;])*?\b(?:to|into)\s+(?:\w+\s+)?({_LATIN})\b"),
    re.compile(rf"\b({_LATIN})-to-({_LATIN})\b"),
    # 把德语文件翻译成英语
    re.compile(rf"({_HAN})[^。；，]*?(?:译|到)[^。；，]*?({_HAN})"),
    re.compile(rf"([{_ONE}])译([{_ONE}])"),
)
_BOTH_WAYS = (
    re.compile(rf"\bbetween ({_LATIN}) and ({_LATIN})\b"),
    re.compile(rf"\b({_LATIN})\s*<->\s*({_LATIN})\b"),
    re.compile(rf"({_HAN})[和与、]({_HAN})[^。；，]*互译"),
    re.compile(rf"([{_ONE}])([{_ONE}])互译"),
)

_PROGRAMS = {
    name: name
    for name in (
        "ada", "bash", "c#", "c++", "cobol", "dart", "elixir", "erlang", "fortran", "golang", "groovy", "haskell", "java",
        "javascript", "julia", "kotlin", "lua", "matlab", "perl", "php", "plc", "powershell", "python", "ruby", "rust", "sas",
        "scala", "solidity", "sql", "swift", "typescript", "verilog", "vhdl",
    )
} | {"shell": "bash"}  # fmt: skip
_WORD = re.compile(r"[A-Za-z][A-Za-z+#]*")


def directions(text: str) -> frozenset[Direction]:
    """From which language into which a text says that is translated, as codes."""
    lower = text.lower()
    found: set[Direction] = set()
    for pattern in _ONE_WAY:
        found.update((_code(a), _code(b)) for a, b in pattern.findall(lower))
    for pattern in _BOTH_WAYS:
        for a, b in pattern.findall(lower):
            found |= {(_code(a), _code(b)), (_code(b), _code(a))}
    return frozenset(pair for pair in found if pair[0] != pair[1])


def programs(text: str) -> frozenset[str]:
    """The programming languages that a text names."""
    return frozenset(_PROGRAMS[word] for word in _WORD.findall(text.lower()) if word in _PROGRAMS)


def _code(name: str) -> str:
    return _CODE.get(name) or _SHORT[name]
