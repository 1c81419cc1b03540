"""What a request would lose on its way to a server that has no words for it.

An upstream dialect names what it can say; anything else that was asked for is refused, so that another target may be tried,
rather than dropped. Left out of this, on purpose, are wishes that leave the meaning of the answer alone: image detail, cache
and service hints. A server without words for those answers all the same.
"""

from __future__ import annotations

from typing import Any

from sits.dialects.intake import unsupported
from sits.inner.ask import Ask

MEANINGFUL = (
    "logit_bias",
    "audio",
    "web_search_options",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "suffix",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "repeat_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "echo",
    "best_of",
    "container",
    "mcp_servers",
)
"""Fields outside the inner form that change what an answer is."""


def refuse_losses(ask: Ask, server: str, says: frozenset[str] = frozenset()) -> None:
    """Hold `ask` against what `server` can say.

    `says` may hold `n`, `logprobs`, `seed`, `penalties`, `json_object`, `json_schema`, `tools`, `required` (a tool choice),
    `serial` (one tool call at a time) and names of `MEANINGFUL`.

    Raises:
        SitsError: `unsupported`, with the parameter that has no form there.
    """
    sampling, choice = ask.sampling, ask.tool_choice
    wants = (
        ("n", "n", (sampling.n or 1) > 1, "several answers to one request"),
        ("logprobs", "logprobs", sampling.logprobs, "log probabilities"),
        ("seed", "seed", sampling.seed is not None, "the draws of a seed"),
        ("penalties", "frequency_penalty", bool(sampling.frequency_penalty), "a penalty"),
        ("penalties", "presence_penalty", bool(sampling.presence_penalty), "a penalty"),
        ("tools", "tools", bool(ask.tools), "tools"),
        ("required", "tool_choice", choice is not None and choice.mode in ("required", "named"), "a forced tool call"),
        ("serial", "parallel_tool_calls", ask.parallel_tool_calls is False and bool(ask.tools), "one tool call at a time"),
    )
    for word, param, wanted, what in wants:
        if wanted and word not in says:
            raise unsupported(param, f"{server} cannot be asked for {what}.")
    if ask.output is not None and ask.output.kind not in says:
        raise unsupported("response_format", f"{server} cannot be asked for output of the kind '{ask.output.kind}'.")
    for name in MEANINGFUL:
        if name not in says and _is_set(ask.extra.get(name), name):
            raise unsupported(name, f"{server} has no word for '{name}'.")
    modalities = ask.extra.get("modalities")
    if isinstance(modalities, list) and any(each != "text" for each in modalities):
        raise unsupported("modalities", f"{server} cannot be asked for anything but text.")


def _is_set(value: Any, name: str) -> bool:
    return bool(value) and not (name == "best_of" and value == 1)
