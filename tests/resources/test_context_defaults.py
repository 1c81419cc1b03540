"""A context with a small window: what nobody wrote fits, and only what was written can be at fault."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.context import ContextSpec, ServiceSpec, StageSpec, context_faults

USUAL = [StageSpec("summarise", 2048), StageSpec("reason", 6144), StageSpec("chunked")]


def spec(**fields: object) -> ContextSpec:
    return msgspec.convert(fields, ContextSpec)


FITTED = {
    "nothing given": (spec(), USUAL, {"summary": ServiceSpec(3000), "code": ServiceSpec(6000, resume=True)}, 512),
    "a larger window": (
        spec(most=32768), USUAL, {"summary": ServiceSpec(3000), "code": ServiceSpec(6000, resume=True)}, 512),
    "half of it": (
        spec(most=4096), [StageSpec("summarise", 1024), StageSpec("reason", 3072), StageSpec("chunked")],
        {"summary": ServiceSpec(1500), "code": ServiceSpec(3000, resume=True)}, 256),
    "too small to read in pieces": (
        spec(most=100), [StageSpec("summarise", 25), StageSpec("reason")],
        {"summary": ServiceSpec(36), "code": ServiceSpec(73, resume=True)}, 16),
    "hardly any": (spec(most=1), [StageSpec("reason")], {"summary": ServiceSpec(), "code": ServiceSpec(0, resume=True)}, 16),
    "services written": (
        spec(most=1000, services={"x": {"headroom": 900}}), [StageSpec("summarise", 250), StageSpec("reason", 750),
        StageSpec("chunked")], {"x": ServiceSpec(900)}, 24),
    "what is too long is refused": (
        spec(oversize="refuse"), [StageSpec("summarise", 2048), StageSpec("reason")],
        {"summary": ServiceSpec(3000), "code": ServiceSpec(6000, resume=True)}, 512),
    "what is too long goes to larger windows": (
        spec(most=4096, oversize="larger"), [StageSpec("summarise", 1024), StageSpec("reason")],
        {"summary": ServiceSpec(1500), "code": ServiceSpec(3000, resume=True)}, 256),
    "what is too long is split": (
        spec(oversize="split"), USUAL, {"summary": ServiceSpec(3000), "code": ServiceSpec(6000, resume=True)}, 512),
    "notes written, and refused": (
        spec(most=1000, oversize="refuse", notes=400), [StageSpec("summarise", 250), StageSpec("reason")],
        {"summary": ServiceSpec(366), "code": ServiceSpec(732, resume=True)}, 400),
    "stages written": (
        spec(most=100, stages=[{"kind": "reason"}]), [StageSpec("reason")],
        {"summary": ServiceSpec(36), "code": ServiceSpec(73, resume=True)}, 16),
}  # fmt: skip


@pytest.mark.parametrize(("made", "stages", "services", "notes"), FITTED.values(), ids=FITTED)
def test_what_is_not_given_is_in_proportion(
    made: ContextSpec, stages: list[StageSpec], services: dict[str, ServiceSpec], notes: int
) -> None:
    assert (made.stages, made.services, made.notes, type(made.notes)) == (stages, services, notes, int)
    assert list(context_faults(made)) == []


@settings(max_examples=100, deadline=None)
@given(most=st.integers(1, 100_000), oversize=st.sampled_from(["larger", "refuse", None]))
def test_no_window_is_too_small_for_what_nobody_wrote(most: int, oversize: str | None) -> None:
    assert list(context_faults(spec(most=most, oversize=oversize))) == []


WRITTEN = {
    "a headroom": ({"most": 100, "services": {"code": {"headroom": 6000}}}, [
        "services.code.headroom: leaves no room for a prompt: the most is 100"]),
    "a stage": ({"most": 100, "stages": [{"kind": "reason", "below": 200}, {"kind": "summarise"}]}, [
        "stages.0.below: is not below 100, the most"]),
    "notes": ({"most": 1000, "notes": 200}, [
        "notes: fill most of what is left for a prompt (268 tokens) beside the largest headroom"]),
    "splitting what is too small": ({"most": 100, "oversize": "split"}, [
        "most: leaves 27 tokens for a prompt beside the largest headroom: too few to read in pieces"]),
    "a service": ({"service": "cod"}, ['service: "cod" is not among the services']),
    "no stages": ({"stages": []}, ["stages: is empty"]),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "said"), WRITTEN.values(), ids=WRITTEN)
def test_only_what_was_written_is_at_fault(fields: dict[str, object], said: list[str]) -> None:
    found = list(context_faults(spec(**fields)))
    assert [f"{'.'.join(map(str, fault.path[2:]))}: {fault.message}" for fault in found] == said
