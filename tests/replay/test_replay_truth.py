"""On the configuration that it was recorded on, traffic of any kind is decided as it was; on another one, as a gateway with that
one would have, or it is said that this cannot be told."""

from __future__ import annotations

import random
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_traffic import PLUGINS, Traffic, changed, comparable, lines_of, recorded, resources_of, snapshot_of

from sits.gateway.facts import gathered
from sits.gateway.tracing import Tracing
from sits.inner.errors import SitsError
from sits.observe.redact import Redactor
from sits.observe.trace_row import Asked, Row
from sits.observe.trace_row import snapshot_of as configuration_in
from sits.replay.replayer import Redecision, Replayer
from sits.resources.tracing import TraceSpec
from sits.routing.target import operation_capability

SEEDS = st.integers(0, 2**32 - 1)


def taken_as_it_was(asked: Asked) -> Asked:
    """As older traces had it: headers cut without a word, no dimensions."""
    headers = {name: value.encode()[:1024].decode("utf-8", "replace") for name, value in asked.headers.items()}
    headers.update({name: value + "\ufffd" for name, value in headers.items() if name in asked.cut and len(value) < 1000})
    return msgspec.structs.replace(asked, headers=headers, cut=(), dimensions=-1)


def older(row: Row) -> Row:
    """A row as it was before there was a word of who may be asked after the backends, of refusals, and of plugins."""
    weighing = msgspec.structs.replace(row.weighing, plugins={}, rule="") if row.weighing is not None and row.order else None
    return msgspec.structs.replace(row, asked=taken_as_it_was(row.asked), weighing=weighing, sieve=None)


@settings(max_examples=35, deadline=None)
@given(seed=SEEDS, bodies=st.booleans())
def test_every_row_comes_out_as_it_was(tmp_path_factory: pytest.TempPathFactory, seed: int, bodies: bool) -> None:
    dice, folder = random.Random(seed), tmp_path_factory.mktemp("trace")
    recorded(folder, dice, 50, resources_of(dice), bodies)
    head, rows = lines_of(folder)
    replayer = Replayer(configuration_in(head), share=head.share)
    made = [replayer.again(row) for row in rows]
    assert [(one.order, one.differs, one.undecidable) for one in made] == [(row.order, "", "") for row in rows]
    assert [(one.refused, one.notes) for one in made] == [(row.record.code, ()) for row in rows]
    # To the last bit, in which ties are decided.
    assert [totals(one) for one in made] == [row.record.draw.totals if row.record.draw is not None else () for row in rows]


def totals(made: Redecision) -> tuple[float, ...]:
    """The sums of the scores, of those who took part."""
    picked = made.plan.picked if made.plan is not None else None
    if picked is None or picked.decision is None:
        return ()
    return tuple(picked.decision.totals[index] for index in picked.decision.kept)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_a_row_of_an_older_trace_comes_out_as_it_was_or_it_is_said_that_it_cannot_be_told(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    dice, folder = random.Random(seed), tmp_path_factory.mktemp("trace")
    recorded(folder, dice, 50, resources_of(dice))
    head, rows = lines_of(folder)
    replayer = Replayer(configuration_in(head), share=head.share)
    for row in rows:
        made = replayer.again(older(row))
        assert made.undecidable or (made.order, made.differs) == (row.order, "")


def twins(folder: Path, seed: int, count: int) -> tuple[list[Row], dict[str, tuple[str, tuple[str, ...]]], Replayer]:
    """Traffic that one gateway recorded, and how another one, of another configuration, would have decided at the same moments:
    the code of its refusal, or whom to ask."""
    dice = random.Random(seed)
    resources = comparable(resources_of(dice, 2))
    before = snapshot_of(resources)
    tracing = Tracing(TraceSpec(folder=str(folder)), folder, Redactor())
    here = Traffic(before, dice, tracing)
    there = Traffic(snapshot_of(changed(dice, resources)), dice, plugins=PLUGINS)
    there.standing = here.standing
    there.offer(PLUGINS)
    truth: dict[str, tuple[str, tuple[str, ...]]] = {}

    def also(x: Any, out: frozenset[str]) -> None:
        choice = there.choices[x.requested]
        facts = copy(x.facts)
        if facts is None:
            facts = gathered(x, choice)
        facts.needs = x.peek.needs | {operation_capability(x.operation)}
        facts.reading = None
        try:
            plan = choice.decide(facts, out)
            truth[x.id] = "", tuple(target.name for target in plan.targets)
        except SitsError as error:
            truth[x.id] = error.code.value, ()

    here.run(count, also)
    tracing.stop()
    head, rows = lines_of(folder)
    return rows, truth, Replayer(there.snapshot, configuration_in(head), head.share)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_another_configuration_decides_as_a_gateway_with_it_would_have_unless_something_is_said(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rows, truth, replayer = twins(tmp_path_factory.mktemp("trace"), seed, 40)
    for row in rows:
        made = replayer.again(row)
        # Of a request that was not looked into then, the other gateway knows more.
        if row.asked.known and not made.undecidable and not made.notes:
            assert (made.refused, made.order) == truth[row.record.request_id]
