"""How many tokens a request has, where nobody can count them: an estimate, and always marked as one.

Tokenizers of today's models make about one token of four bytes of Latin text and about two of three Chinese, Japanese or
Korean characters; each message adds a few for its frame.
"""

from __future__ import annotations

import json
import re

from sits.inner.ask import Ask, ImagePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

BYTES_A_TOKEN = 3
"""For a quick upper estimate by the size of a text alone, in any script."""
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1000
"""What a picture of usual size takes in the models that see."""
_WIDE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def text_tokens(text: str) -> float:
    """The estimate for plain text."""
    wide = len(_WIDE.findall(text))
    rest = len(text.encode("utf-8", "surrogatepass")) - 3 * wide
    return wide * 0.7 + max(0, rest) / 4


def fewest_tokens(text: str) -> int:
    """Hardly any text of people has fewer: one token of six characters, or two of five Chinese, Japanese or Korean ones."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return int(wide * 0.4 + (len(text) - wide) / 6)


def ask_tokens(ask: Ask) -> int:
    """The estimate for a whole conversation: text, tools, images and frames."""
    total = 0.0
    for message in ask.messages:
        total += MESSAGE_TOKENS
        for part in message.parts:
            if isinstance(part, TextPart | ReasoningPart):
                total += text_tokens(part.text)
            elif isinstance(part, ToolUsePart):
                total += text_tokens(part.name) + text_tokens(part.arguments)
            elif isinstance(part, ImagePart):
                total += IMAGE_TOKENS
            elif isinstance(part, ToolResultPart):
                total += sum(text_tokens(p.text) if isinstance(p, TextPart) else IMAGE_TOKENS for p in part.content)
    for tool in ask.tools:
        described = f"{tool.name} {tool.description or ''} {json.dumps(tool.parameters or {}, ensure_ascii=False)}"
        total += text_tokens(described)
    return max(1, round(total))
