"""How many tokens a request has, by the tokenizer of the model that is asked: `Tokens.count`.

base      what a count is
kept      counts that are known already
reader    the tokenizer of a file, in this process
gguf      that of a GGUF file
files     counts by such a tokenizer and a declared chat template, message by message
upstream  counts by the model server itself, which knows its template
tokens    all of it: bounded, off the event loop, an estimate where nobody can count
"""

from __future__ import annotations

from sits.state.tokens.base import Count
from sits.state.tokens.tokens import Tokens

__all__ = ["Count", "Tokens"]
