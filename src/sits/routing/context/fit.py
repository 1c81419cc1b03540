"""Whether a prompt fits the window of a model, with the figures."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from sits.inner.errors import Code, SitsError


class Verdict(enum.StrEnum):
    FITS = "fits"
    NEEDS_COUNT = "needs_count"
    """The bounds do not settle it."""
    TIGHT = "tight"
    """The prompt fits, and the headroom, but not all of the answer that is asked for."""
    DOES_NOT_FIT = "does_not_fit"


class Fit(msgspec.Struct, frozen=True, gc=False):
    """The verdict for one window. All figures are tokens."""

    verdict: Verdict
    window: int = 0
    """Prompt and answer together."""
    headroom: int = 0
    """What must be left for the answer."""
    asked: int = 0
    """The longest answer that the request asks for; 0 where it does not say."""
    lower: int = 0
    upper: int = 0
    """What the prompt has at the least and at the most; equal where it is counted."""
    counted: bool = False
    overhead: int = 0
    """What of the prompt is the protocol's: the chat template, where that is known."""
    guess: int = 0
    """What the prompt is estimated to have, where `lower` is no more than likely."""

    @property
    def lacking(self) -> int:
        """Tokens too many, by what is certain."""
        return max(0, self.lower + max(self.headroom, 1) - self.window)

    def why(self) -> str:
        """The figures in words."""
        if self.counted:
            prompt = f"a prompt of {self.lower} tokens"
        elif self.guess:
            prompt = f"a prompt of about {self.guess} tokens, not counted but hardly fewer than {self.lower},"
        elif self.lower:
            prompt = f"a prompt of {self.lower} to {self.upper} tokens"
        else:
            prompt = f"a prompt of up to {self.upper} tokens"
        framed = f" ({self.overhead} of them for its frame)" if self.overhead else ""
        answer = f"{max(self.headroom, 1)} for the answer"
        asked = f", {self.asked} are asked for" if self.asked > self.headroom else ""
        over = f": {self.lacking} too many" if self.lacking else ""
        return f"{prompt}{framed} and {answer}{asked}, in a window of {self.window}{over}"


FITS = Fit(Verdict.FITS)
"""What `fit` says of nearly all requests: one object for all of them, without figures."""


def fit(window: int, headroom: int, lower: int, upper: int, exact: int | None = None, asked: int = 0, overhead: int = 0) -> Fit:
    """Whether a prompt of `lower` to `upper` tokens, or of `exact` ones, leaves room for its answer in `window`."""
    if exact is not None:
        lower = upper = exact
    least = headroom if headroom > 0 else 1
    wanted = asked if asked > least else least
    if upper + wanted <= window:
        return FITS
    if lower + least > window:
        verdict = Verdict.DOES_NOT_FIT
    elif upper + least <= window and lower + wanted > window:
        verdict = Verdict.TIGHT
    else:
        verdict = Verdict.NEEDS_COUNT
    return Fit(verdict, window, headroom, asked, lower, upper, exact is not None, overhead)


def refusal(name: str, fits: Mapping[str, Fit]) -> SitsError:
    """The error for a prompt that fits none of the models behind `name`, with the figures of each."""
    said = "; ".join(f"{target}: {one.why()}" for target, one in fits.items())
    return SitsError(Code.CONTEXT_TOO_LONG, f"the prompt does not fit any model behind {name!r} ({said})", param="messages")
