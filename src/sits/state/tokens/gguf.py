"""The tokenizer in a GGUF file, for vocabularies of the kind `gpt2` (byte-level BPE: Llama 3, Qwen, SmolLM, GPT-2 and kin).

The file names the way in which text is cut before BPE (`tokenizer.ggml.pre`), not the rule itself; a row for each that is known.
Others are refused rather than guessed: their counts would be nearly right, which is the worst that a count can be. The rules are
those of the models' own `tokenizer.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from sits.engines.local.gguf_header import arrays
from sits.inner.errors import Code, SitsError

TOKENS, MERGES, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"
ADDED = frozenset((3, 4))
"""Types of tokens that are taken whole out of a text: control and user-defined."""
_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pre(msgspec.Struct, frozen=True):
    """How text is cut before BPE. Without `cut` it is GPT-2's own rule; `digits` come one by one; `ignore_merges` takes a word
    that is a token as it is."""

    cut: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False


PRE: dict[str, Pre] = {
    "gpt-2": Pre(),
    "smollm": Pre(digits=True),
    "llama-bpe": Pre(_CUT % "{1,3}", ignore_merges=True),
    "qwen2": Pre(_CUT % "", nfc=True),
}


def tokenizer_of(path: Path) -> tuple[Any, bytes, int]:
    """The tokenizer of a GGUF file, what its vocabulary is known by, and its size: tokens from there on do not count.

    Raises:
        SitsError: `unsupported`, its kind is not read here.
        BadGguf: the file is not what it should be.
        OSError: it cannot be read.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    header, found = arrays(path, frozenset((TOKENS, MERGES, TYPES)))
    kind, named = header.values.get("tokenizer.ggml.model"), str(header.values.get("tokenizer.ggml.pre", "gpt-2"))
    pre = PRE.get(named)
    if kind != "gpt2" or pre is None:
        what = f"{kind} ({named})" if kind == "gpt2" else str(kind)
        said = f"the vocabulary of {path} is of the kind {what}, which is not counted here; use source: upstream"
        raise SitsError(Code.UNSUPPORTED, said)
    tokens = [str(token) for token in found.get(TOKENS, [])]
    merges = [str(merge) for merge in found.get(MERGES, [])]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # A few vocabularies lack some control bytes. llama.cpp leaves these out without joining what is around them, so they get
    # numbers behind all others, which are not counted.
    lacking = [sign for sign in pre_tokenizers.ByteLevel.alphabet() if sign not in vocabulary]
    vocabulary.update({sign: len(tokens) + place for place, sign in enumerate(sorted(lacking))})
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        made.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits else []
    if pre.cut is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.cut), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.cut is None))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    types = found.get(TYPES, [])
    added = [token for token, kind in zip(tokens, types, strict=False) if kind in ADDED]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added])
    key = blake3(msgspec.msgpack.encode((named, tokens, merges, types))).digest()
    return made, key, len(tokens)
