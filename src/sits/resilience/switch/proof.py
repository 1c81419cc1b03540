"""Tests that stay valid however often one looks at them, and whenever one stops.

Both are e-processes: numbers that begin at 1 and, if the hypothesis is true, are expected never to grow, whatever they are
made of and whenever one looks. So they ever pass 1/a with a probability of at most a (Ville 1939): a look costs nothing, and
stopping at the first convincing one is allowed, which it is not with the usual tests (Johari, Koomen, Pekelis and Walsh 2017,
"Peeking at A/B tests").

The number is the likelihood of what was seen, averaged over a prior (Robbins 1970), against the largest likelihood that it
can have under the hypothesis (Wasserman, Ramdas and Balakrishnan 2020, "Universal inference"): at the true rates the average
over the likelihood is a martingale, and the largest is no smaller. It is made of counts alone, so that sums over gateways, in
whichever order they come in, are as good as one gateway's own.
"""

from __future__ import annotations

from math import inf, lgamma, log

_A, _B = 0.5, 10.0
"""The prior of a rate of failures, Beta(a, b): small ones are likelier, none is excluded. Whatever it is, the test is valid;
a good one finds out sooner."""
_ROUNDS = 40
_TINY = 1e-12


def against_difference(old: tuple[int, int], new: tuple[int, int], margin: float) -> float:
    """The evidence (natural logarithm of the e-value) against "the new rate is at most the old one and `margin`".

    `old` and `new` are (trials, failures). Without trials of either there is none.
    """
    if not old[0] or not new[0]:
        return 0.0
    return _averaged(*old) + _averaged(*new) - _largest(old, new, margin)


def against_rate(trials: int, failures: int, rate: float) -> float:
    """The evidence against "the rate is at most `rate`"."""
    if not trials:
        return 0.0
    return _averaged(trials, failures) - _likelihood(trials, failures, min(rate, failures / trials))


def convincing(evidence: float, confidence: float, looks: int = 1) -> bool:
    """Whether the hypothesis can be given up with this confidence, shared between so many tests."""
    return evidence >= log(looks / (1.0 - confidence))


def _averaged(trials: int, failures: int) -> float:
    """The likelihood, averaged over the prior."""
    return _beta(_A + failures, _B + trials - failures) - _beta(_A, _B)


def _largest(old: tuple[int, int], new: tuple[int, int], margin: float) -> float:
    """The largest likelihood of both where the new rate is at most `margin` above the old one."""
    p_old, p_new = old[1] / old[0], new[1] / new[0]
    if p_new <= p_old + margin:
        return _likelihood(*old, p_old) + _likelihood(*new, p_new)
    if margin >= 1.0:
        return _likelihood(*old, p_old) + _likelihood(*new, p_new)
    # Both logarithms are concave, so the largest lies on the border, where their sum is concave in one number.
    low, high = max(0.0, min(p_old, p_new - margin)), min(1.0 - margin, max(p_old, p_new - margin))
    for _ in range(_ROUNDS):
        third = (high - low) / 3
        left, right = low + third, high - third
        if _both(old, new, left, margin) < _both(old, new, right, margin):
            low = left
        else:
            high = right
    return _both(old, new, (low + high) / 2, margin)


def _both(old: tuple[int, int], new: tuple[int, int], rate: float, margin: float) -> float:
    return _likelihood(*old, rate) + _likelihood(*new, rate + margin)


def _likelihood(trials: int, failures: int, rate: float) -> float:
    rate = min(max(rate, 0.0), 1.0)
    failed = failures * log(rate) if rate > _TINY else (-inf if failures else 0.0)
    good = trials - failures
    went_well = good * log(1.0 - rate) if rate < 1.0 - _TINY else (-inf if good else 0.0)
    return failed + went_well


def _beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
