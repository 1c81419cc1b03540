"""Finding out what a request wants before its target is chosen, as far as its route looks at that; and at its end, whether what
was chosen is to be learned from.

Each part has its own time: the domain is read by the first stage at once, and the second one is waited for only as long as the
route lets it; complexity is arithmetic; tokens are counted where bounds do not say enough. Nothing here fails a request but what
its own headers say wrongly.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sits.dialects.wanted import wanted
from sits.gateway.exchange import Exchange
from sits.gateway.facts import gathered
from sits.gateway.insight import Insight, load_of
from sits.gateway.intent_classifier import UNKNOWN, said_domain
from sits.inner.errors import SitsError
from sits.inner.estimate import BYTES_A_TOKEN
from sits.routing.complexity import complexity, measure, tier
from sits.routing.plan import Choice

if TYPE_CHECKING:
    from sits.routing.intent.verdict import Verdict
    from sits.routing.scheduling.base import Facts
    from sits.state.outcomes import Outcomes

LEARNED = frozenset(("chat", "completions", "responses", "messages"))
"""Operations whose answers somebody reads, and may find good or bad."""
ASKED = frozenset(("", "miss", "bypass"))
"""What the cache may have had to do with an answer that a model gave to this request."""


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
    use, classifier = insight.intent, x.service.classifier
    assert use is not None
    said = said_domain(x.request.headers, insight.domains) if use.header else None
    if said is not None:
        facts.domain, facts.confidence, facts.stage = said, 1.0, "header"
        return
    if classifier is None or not classifier.active:
        return
    verdict = classifier.look(x.request.body, x.operation)
    if verdict is None:
        verdict = await classifier.read(x.request.body, x.operation, use.seconds)
        facts.now = perf_counter()  # Policies look at what has happened meanwhile.
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
    target = choice.targets[0]
    try:
        asked = x.ask()
    except SitsError:
        # Only its own server can read it, which then judges it, too.
        facts.tokens = len(x.request.body) // BYTES_A_TOKEN + 1
        return
    found = tokens.known(target, asked)
    if found is None:
        found = await x.service.loop.create_task(tokens.count(target, asked))
        facts.now = perf_counter()
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
    # Meanwhile another configuration may be in force, and learn by other terms or not at all.
    if not insight.learns or outcomes is None or not outcomes.goes_by(choice.name, spec):
        facts.tier = tier(load, found, spec.alpha, spec.beta, spec.bounds, spec.formula)
        return
    facts.tier = outcomes.tier(choice.name, load, found)
    if len(insight.arms) > 1 and not x.behind and x.operation in LEARNED:
        learn(x, facts, choice, insight, outcomes, load, text)


def learn(x: Exchange, facts: Facts, choice: Choice, insight: Insight, outcomes: Outcomes, load: float, text: str) -> None:
    """Let what came of earlier requests choose, and have what comes of this one known."""
    key = x.key.name if x.key is not None else None
    usual = insight.usual.get(facts.tier)
    decision = outcomes.decide(choice.name, x.id, key, load, facts.complexity, insight.arms, x.service.random(), facts.now, usual)
    x.learned = decision
    if insight.over_targets:
        facts.favoured = decision.choice.arm
    else:
        facts.tier = decision.choice.arm
    if decision.learns:
        outcomes.asked(choice.name, decision, text, facts.now)
        if insight.judge is not None and x.service.judging is not None:
            x.service.judging.draw(x, insight.judge)


def settle(x: Exchange) -> None:
    """The exchange is over, and something was chosen by what was learned: wait for what comes of it, if it is what answered."""
    assert x.choice is not None
    assert x.learned is not None
    service = x.service
    answered = as_chosen(x)
    if x.learned.learns and service.outcomes is not None:
        service.outcomes.ended(x.choice.name, x.learned, answered, x.ended)
    if service.judging is not None and service.judging.any:
        service.judging.follow(x, answered)


def as_chosen(x: Exchange) -> bool:
    """Whether the client has an answer, and all of it from whom was chosen."""
    insight = x.conduct.insight if x.conduct is not None else None
    if insight is None or x.learned is None or not x.attempts or x.status != 200:
        return False
    if x.error is not None or x.rung is not None or x.cache not in ASKED:
        return False
    those = insight.stand.get(x.learned.choice.arm, frozenset())
    if x.continued is not None and not those.issuperset(x.continued.targets):
        return False
    last = x.attempts[-1]
    return last.error is None and last.target.name in those
