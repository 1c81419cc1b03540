"""What a model is told that reads a long text in pieces, in the language of the text."""

from __future__ import annotations

import re

import msgspec

_WIDE = re.compile("[\u4e00-\u9fff]")
LOOKED_AT = 4000
"""Characters by which the language is told."""
WIDE_SHARE = 0.2


class Words(msgspec.Struct, frozen=True):
    """The texts of one language, with places for what is filled in."""

    system: str
    step: str
    last: str
    nothing: str


ENGLISH = Words(
    system="You read a long text in parts and keep notes. Whoever answers the request sees only your notes and the last part.",
    step="The request, which is answered at the end:\n{request}\n\nNotes so far:\n{notes}\n\n"
    "Part {number} of {pieces}:\n{piece}\n\nWrite the notes anew: everything in the old notes and in this "
    "part that the request needs. At most {words} words. Do not answer the request.",
    last="{request}\n\n(The text was too long for one prompt and was read in {number} parts. Notes on parts 1 to {before}:)\n"
    "{notes}\n\n(The last part, as it stands:)\n{piece}",
    nothing="(none yet)",
)
CHINESE = Words(
    system="你在分段阅读一篇长文并做笔记。笔记将代替已读的部分：之后回答请求的人只能看到笔记和最后一部分。",
    step="最后要回答的请求：\n{request}\n\n到目前为止的笔记：\n{notes}\n\n"
    "第 {number} 部分（共 {pieces} 部分）：\n{piece}\n\n"
    "请重写笔记，保留旧笔记和本部分中回答请求所需要的一切：名称、数字、结论、代码。最多 {words} 个词。现在不要回答请求。",
    last="{request}\n\n（原文过长，分 {number} 部分阅读。第 1 至 {before} 部分的笔记：）\n{notes}\n\n"
    "（最后一部分原文：）\n{piece}",
    nothing="（暂无）",
)


def words_for(text: str) -> Words:
    """The words for a text, by what its beginning is written in."""
    seen = text[:LOOKED_AT]
    return CHINESE if len(_WIDE.findall(seen)) > WIDE_SHARE * len(seen) else ENGLISH
