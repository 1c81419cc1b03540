"""On the configuration that it was recorded on, traffic of any kind is decided as it was; on another one, as a gateway with that
one would have, or it is said that this cannot be told."""

from __future__ import annotations

import random
from copy import copy
from pathlib import Path
from typing import Any
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
from sits.observe.trace_row import Asked, Row, Weighing
from sits.observe.trace_row import snapshot_of as configuration_in
from sits.replay.replayer import Replayer
from sits.resources.problem import ConfigError
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


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, bodies=st.booleans())
def test_every_row_comes_out_as_it_was(tmp_path_factory: pytest.TempPathFactory, seed: int, bodies: bool) -> None:
    dice, folder = random.Random(seed), tmp_path_factory.mktemp("trace")
    recorded(folder, dice, 50, resources_of(dice), bodies)
    head, rows = lines_of(folder)
    replayer = Replayer(configuration_in(head), share=head.share)
    made = [replayer.again(row) for row in rows]
    assert [(one.order, one.differs, one.undecidable) for one in made] == [(row.order, "", "") for row in rows]
    assert [one.refused for one in made] == [row.record.code for row in rows]


@settings(max_examples=25, deadline=None)
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


def twins(folder: Path, seed: int, count: int) -> tuple[list[Row], list[tuple[str, tuple[str, ...]]], Replayer]:
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
    truth = []

    def also(x: Any, out: frozenset[str]) -> None:
        choice = there.choices[x.requested]
        facts = copy(x.facts)
        if facts is None:
            facts = gathered(x, choice)
        facts.needs = x.peek.needs | {operation_capability(x.operation)}
        facts.reading = None
        try:
            plan = choice.decide(facts, out)
            truth.append(("", tuple(target.name for target in plan.targets)))
        except SitsError as error:
            truth.append((error.code.value, ()))

    here.run(count, also)
    tracing.stop()
    head, rows = lines_of(folder)
    return rows, truth, Replayer(there.snapshot, configuration_in(head), head.share)


def test_x(tmp_path):
    from collections import Counter

    c = Counter()
    import sys, os

    for seed in range(int(os.environ["A"]), int(os.environ["B"])):
        try:
            rows, truth, replayer = twins(tmp_path / str(seed), seed, 40)
        except ConfigError as e:
            c["config " + str(e)[:80]] += 1
            continue
        for row, (code, order) in zip(rows, truth, strict=True):
            made = replayer.again(row)
            if made.undecidable:
                c["u " + made.undecidable] += 1
            elif made.notes:
                c["n " + " ".join(made.notes)] += 1
            elif (made.refused, made.order) != (code, order):
                c["DIFF"] += 1
                print(
                    seed,
                    row.record.request_id,
                    row.record.requested,
                    row.order,
                    code,
                    order,
                    "made",
                    made.order,
                    made.refused,
                    made.rule,
                    row.weighing,
                    row.asked,
                    row.record.code,
                )
            else:
                c["ok"] += 1
                c["moved"] += bool(made.differs)
    print(c)
    assert 0
