"""Finding out what a request wants before its target is chosen, as far as its route looks at that.

Each part has its own time: the domain is read by the first stage at once, and the second one is waited for only as long as the
route lets it; complexity is arithmetic; tokens are counted where bounds do not say enough. Nothing here fails a request but what
its own headers say wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sits.dialects.wanted import wanted
from sits.gateway.exchange import Exchange
from sits.gateway.facts import gathered
from sits.gateway.insight import Insight, load_of
from sits.gateway.understanding import UNKNOWN, said_domain
from sits.routing.complexity import complexity, measure, tier
from sits.routing.plan import Choice

if TYPE_CHECKING:
    from sits.routing.intent.verdict import Verdict
    from sits.routing.scheduling.base import Facts


async def think(x: Exchange, choice: Choice) -> None:
    """Gather the facts of a request, and find out what has to be.

    Raises:
        SitsError: `invalid_request`: a header says a domain that is not declared.
    """
    facts = x.facts = gathered(x, choice)
    insight = x.conduct.insight if x.conduct is not None else None
    if insight is None:
        return
    if insight.intent is not None:
        await read_domain(x, facts, insight)
    if insight.tokens:
        await count(x, facts, choice)
    if insight.complexity is not None:
        weigh(x, facts, choice, insight)


async def read_domain(x: Exchange, facts: Facts, insight: Insight) -> None:
    """What the request wants: as its client says, or as it reads."""
    use, understanding = insight.intent, x.service.understanding
    assert use is not None
    said = said_domain(x.request.headers, insight.domains) if use.header else None
    if said is not None:
        facts.domain, facts.confidence, facts.stage = said, 1.0, "header"
        return
    if understanding is None or not understanding.active:
        return
    verdict = understanding.look(x.request.body, x.operation)
    if verdict is None:
        verdict = await understanding.read(x.request.body, x.operation, use.seconds)
    believe(facts, verdict)


def believe(facts: Facts, verdict: Verdict) -> None:
    """Take a verdict for a fact."""
    if verdict.domain is None and verdict.confidence == 0.0:
        return  # There was nothing to read.
    facts.domain = verdict.domain if verdict.domain is not None else UNKNOWN
    facts.confidence, facts.stage = verdict.confidence, verdict.stage


async def count(x: Exchange, facts: Facts, choice: Choice) -> None:
    """How long the prompt is, by the tokenizer of the first backend; an estimate where that cannot be had."""
    tokens = x.service.tokens
    if tokens is None or not choice.targets:
        return
    target, asked = choice.targets[0], x.ask()
    found = tokens.known(target, asked)
    if found is None:
        found = await x.service.loop.create_task(tokens.count(target, asked))
    facts.tokens, facts.exact = found.tokens, found.exact


def weigh(x: Exchange, facts: Facts, choice: Choice, insight: Insight) -> None:
    """How much the request asks, and which tier that makes."""
    spec = insight.complexity
    assert spec is not None
    text = wanted(x.request.body, x.operation)
    if text is None:
        return
    facts.complexity = found = complexity(measure(text))
    load = load_of(choice.pool.states)
    outcomes = x.service.outcomes
    if not insight.learns or len(insight.arms) < 2 or outcomes is None or x.behind:
        facts.tier = tier(load, found, spec.alpha, spec.beta, spec.bounds, spec.formula)
        return
    key = x.key.name if x.key is not None else None
    decision = outcomes.decide(choice.name, x.id, key, load, found, insight.arms, x.service.random(), facts.now)
    outcomes.asked(choice.name, key, x.id, text, facts.now)
    x.learned = decision
    if spec.learning is not None and spec.learning.over == "target":
        facts.favoured = decision.choice.arm
        facts.tier = tier(load, found, spec.alpha, spec.beta, spec.bounds, spec.formula)
    else:
        facts.tier = decision.choice.arm
