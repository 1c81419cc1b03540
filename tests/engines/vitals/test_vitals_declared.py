"""What may be declared of vital signs, and what stands in a query when a model's own words are put into it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.problem import Fault
from sits.resources.vitals import HealthSpec, VitalsSpec, filled, query_faults, variables, vitals_faults

KNOWN = variables("qwen", "Qwen/Qwen3-32B", "http://10.0.0.7:8000/prefix", "eu-1a", None)


def test_variables_stand_for_what_is_declared() -> None:
    assert KNOWN == {"model": "qwen", "upstream": "Qwen/Qwen3-32B", "instance": "10.0.0.7:8000", "zone": "eu-1a"}
    assert variables("m", None, None, None, "") == {"model": "m", "upstream": "m"}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ('up{job="vllm", instance="$instance"}', 'up{job="vllm", instance="10.0.0.7:8000"}'),
        ("up{model='$model'} == 0", "up{model='qwen'} == 0"),
        ('x{m=~"$upstream|other.*"}', 'x{m=~"Qwen/Qwen3-32B|other.*"}'),
        ('x{m !~ "$instance$"}', 'x{m !~ "10\\\\.0\\\\.0\\\\.7:8000$"}'),
        ('x{m="a$"} # the $model', 'x{m="a$"} # the $model'),
        ("x{m=`a$`} + 1", "x{m=`a$`} + 1"),
        ('x{m="\\"$zone\\""}', 'x{m="\\"eu-1a\\""}'),
        ('x # "\n+ y{z="$zone"}', 'x # "\n+ y{z="eu-1a"}'),
        ("up", "up"),
    ],
)
def test_variables_are_put_into_strings(query: str, text: str) -> None:
    assert filled(query, KNOWN) == text


@pytest.mark.parametrize(
    ("query", "faults"),
    [
        ('up{m="$modle"}', [Fault((), '"$modle" stands for nothing', 'did you mean "model"?')]),
        (
            "rate(up[$__rate_interval])",
            [Fault((), '"$__rate_interval" stands for nothing', "one of $model, $upstream, $instance, $zone, $version")],
        ),
        ("up{m=$model}", [Fault((), "$model stands in no string", 'write "$model"')]),
        ("up{m=`$model`}", [Fault((), "$model stands in a string in backticks, where nothing can be escaped", 'write "$model"')]),
        ('up{v="$version"}', [Fault((), "the model has no version to put for $version", "declare its version")]),
        ('up{m="x}', [Fault((), 'a string that begins with " does not end')]),
        ('up{m="x\\"}', [Fault((), 'a string that begins with " does not end')]),
    ],
    ids=["a slip", "a dashboard's", "no string", "backticks", "not declared", "open", "an escaped end"],
)
def test_a_query_that_cannot_be_filled_is_refused(query: str, faults: list[Fault]) -> None:
    assert list(query_faults(query, (), KNOWN)) == faults
    with pytest.raises(ValueError, match=re.escape(faults[0].message)):
        filled(query, KNOWN)


@settings(max_examples=100, deadline=None)
@given(value=st.text(max_size=20), quote=st.sampled_from("\"'"), pattern=st.booleans())
def test_no_value_leaves_its_string(value: str, quote: str, pattern: bool) -> None:
    operator = "=~" if pattern else "="
    text = filled(f"up{{zone{operator}{quote}$zone{quote}}} == 0", {"zone": value})
    inside = text.removeprefix(f"up{{zone{operator}{quote}").removesuffix(f"{quote}}} == 0")
    # What a string of PromQL, which is one of Go, stands for.
    assert re.fullmatch(rf"(?:[^\\\n{quote}]|\\[\\nr\"'])*", inside, re.DOTALL)
    plain = re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), inside)
    if pattern:
        assert re.fullmatch(plain, value) is not None
    else:
        assert plain == value


@pytest.mark.parametrize(
    ("vitals", "health", "faults"),
    [
        (None, None, []),
        (VitalsSpec(), HealthSpec("up", below=1), []),
        (
            VitalsSpec(memory_query='x{a="$a"}'),
            None,
            [
                Fault(
                    ("spec", "vitals", "memoryQuery"), '"$a" stands for nothing',
                    "one of $model, $upstream, $instance, $zone, $version",
                )
            ],
        ),
        (None, HealthSpec("up"), [Fault(("spec", "health"), "says no threshold", "give `above` or `below`")]),
        (
            None,
            HealthSpec("up", above=1, below=2),
            [
                Fault(
                    ("spec", "health", "below"), "every value is above 1 or below 2",
                    "give a figure that is not greater than `above`",
                )
            ],
        ),
    ],
    ids=["nothing", "sound", "a memory query", "no threshold", "always unwell"],
)  # fmt: skip
def test_declarations_are_checked(vitals: VitalsSpec | None, health: HealthSpec | None, faults: list[Fault]) -> None:
    assert list(vitals_faults(vitals, health, KNOWN)) == faults


@pytest.mark.parametrize(
    "text",
    [
        '{"path": "metrics"}', '{"path": "/a b"}', '{"path": "/a\\n"}', '{"endpoint": "ftp://x"}', '{"everySeconds": 0.1}',
        '{"memoryQuery": ""}', '{"pace": 1}',
    ],
)  # fmt: skip
def test_shapes_are_checked(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=VitalsSpec)
