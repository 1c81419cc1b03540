"""The tokenizer of a file, loaded into this process: a `tokenizer.json`, or the vocabulary of a GGUF file.

`tokenizers` comes with `sits[local]`. Of its ways to encode only `encode_batch_fast` gives the interpreter's lock up, so that is
the one that is used, in a thread (7 KB take 0.7 ms).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blake3 import blake3

from sits.engines.local.gguf_header import BadGguf
from sits.inner.errors import Code, SitsError

INSTALL = "counting tokens by a file needs tokenizers: pip install 'sits[local]'"
MAX_FILE = 256 * 1024 * 1024
"""Bytes of a `tokenizer.json` that are read; those of the largest vocabularies have 35 MB."""


class Reader:
    """One tokenizer. `count` may be called from any thread; `key` is the same for the same vocabulary, wherever it lies."""

    __slots__ = ("_size", "_tokenizer", "key")

    def __init__(self, tokenizer: Any, key: bytes, size: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._size = size
        """Tokens from this number on do not count."""
        self.key = key

    def count(self, texts: list[str], *, whole: bool = False) -> list[int]:
        """The tokens of each text; `whole` adds what the tokenizer puts around a prompt (a token for its beginning, say).

        Raises:
            SitsError: `model_unavailable`: the tokenizer could not read one of them.
        """
        try:
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=whole)
        except Exception as error:  # As in `load`.
            raise SitsError(Code.MODEL_UNAVAILABLE, f"the tokenizer cannot read a text: {error}") from error
        size = self._size
        if size is None:
            return [len(one.ids) for one in encoded]
        return [sum(token < size for token in one.ids) for one in encoded]

    def parts_at(self, text: str) -> bool:
        """Whether `text` begins with a token that stands outside the vocabulary: a mark of the chat template."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return any(token.content and text.startswith(token.content) for token in added)

    def adds_up(self, parts: list[str]) -> bool:
        """Whether the tokens of these parts are together those of the whole."""
        return sum(self.count(parts)) == self.count(["".join(parts)])[0]


def load(path: Path) -> Reader:
    """The tokenizer in a file. Blocks: 30 ms for 32,000 tokens.

    Raises:
        SitsError: `unsupported`: the package is missing, or the vocabulary is of a kind that is not read here;
            `model_unavailable`: the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SitsError(Code.UNSUPPORTED, INSTALL) from error
    size: int | None = None
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"GGUF":
            from sits.state.tokens.gguf import tokenizer_of

            made, key, size = tokenizer_of(path)
        else:
            if path.stat().st_size > MAX_FILE:
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{path} has more than {MAX_FILE} bytes: no tokenizer.json")
            raw = path.read_bytes()
            made, key = Tokenizer.from_buffer(raw), blake3(raw).digest()
    except (OSError, BadGguf) as error:
        raise SitsError(Code.MODEL_UNAVAILABLE, f"the tokenizer {path} cannot be read: {error}") from error
    except SitsError:
        raise
    except Exception as error:  # The package has no exceptions of its own: it raises `Exception` itself.
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{path} is no tokenizer: {error}") from error
    made.no_padding()
    made.no_truncation()
    return Reader(made, key, size)
