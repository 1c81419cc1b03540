"""What each filter leaves out, and the words it says it in."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sits.resources.kinds import Cost, Model, ModelSpec, Promise
from sits.resources.vocabulary import Metadata
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import Candidate, Facts, Made
from sits.routing.scheduling.builtin import FILTERS
from sits.routing.scheduling.seen import LatencySeen


def backend(index: int, name: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Candidate:
    name = name or f"m{index}"
    model = Model(metadata=Metadata(name=name), spec=ModelSpec(engine="vllm", endpoint="http://127.0.0.1:1", **spec))
    one = Candidate(index, name, model, TargetState(), 1.0, labels or {}, None)
    one.capabilities = frozenset(("chat",))
    return one


def facts(**known: Any) -> Facts:
    made = Facts("chat", frozenset(("chat",)), known.pop("headers", {}), b"")
    for name, value in known.items():
        setattr(made, name, value)
    return made


def verdicts(
    name: str, candidates: list[Candidate], asked: Facts, latencies: LatencySeen | None = None, **settings: Any
) -> list[str] | None:
    """Of each candidate; None where the request is none of its business."""
    sieve = FILTERS[name](Made("r", candidates, settings, SimpleNamespace(domains={}), None, latencies))
    return [sieve.keep(asked, one) for one in candidates] if sieve.asks(asked) else None


def two(first: dict[str, Any], second: dict[str, Any]) -> list[Candidate]:
    return [backend(0, **first), backend(1, **second)]


def labelled(**second: str) -> list[Candidate]:
    return two({"labels": {"gpu": "a100", "region": "eu", "zone": "eu-a"}}, {"labels": second})


def seen(ms: float, now: float = 100.0) -> LatencySeen:
    found = LatencySeen()
    for _ in range(40):
        found.note("m0", ms / 1000.0, now)
    return found


def _with_kv(first: float, second: float) -> list[Candidate]:
    candidates = two({}, {"labels": {"kv-used": "0.97"}})
    candidates[0].state.told(1, 0, first)
    candidates[1].state.told(1, 0, second)
    return candidates


def _who_sees() -> list[Candidate]:
    candidates = two({}, {})
    candidates[1].capabilities = frozenset(("chat", "vision", "tools"))
    return candidates


Rows = list[tuple[str, Callable[[], list[str] | None], list[str] | None]]
CAPABLE: Rows = [
    ("nothing asked beyond what all can do", lambda: verdicts("capability", _who_sees(), facts()), None),
    (
        "one can see",
        lambda: verdicts("capability", _who_sees(), facts(needs=frozenset(("chat", "vision", "tools")))),
        ["cannot do tools, vision", ""],
    ),
    (
        "a prompt fits, and not all of the answer that is allowed: it is put behind others, not left out",
        lambda: verdicts("context", two({"context_window": 100}, {}), facts(tokens=61, wanted_output=40)),
        None,
    ),
    (
        "the prompt alone is too long",
        lambda: verdicts("context", two({"context_window": 100}, {"context_window": 200}), facts(tokens=150)),
        ["has room for 100 tokens, not for 150", ""],
    ),
    ("nobody declares a context", lambda: verdicts("context", two({}, {}), facts(tokens=1 << 40)), None),
    ("no adapter asked for", lambda: verdicts("adapter", two({"adapters": ["law"]}, {}), facts()), None),
    (
        "an adapter that one has",
        lambda: verdicts("adapter", two({"adapters": ["法律"]}, {"adapters": ["tax"]}), facts(adapter="法律")),
        ["", 'has no adapter "法律"'],
    ),
    (
        "an adapter that all have",
        lambda: verdicts("adapter", two({"adapters": ["a"]}, {"adapters": ["a"]}), facts(adapter="a")),
        None,
    ),
]
LABEL: Rows = [
    (
        "required",
        lambda: verdicts("label", labelled(gpu="h100"), facts(), required={"gpu": "h100"}),
        ["has not the labels gpu=h100", ""],
    ),
    (
        "one of several",
        lambda: verdicts("label", labelled(gpu="l4"), facts(), required={"gpu": ["h100", "a100"]}),
        ["", "has not the labels gpu=h100|a100"],
    ),
    (
        "forbidden",
        lambda: verdicts("label", labelled(gpu="l4"), facts(), forbidden={"gpu": ["l4", "t4"]}),
        ["", "has the label gpu=l4"],
    ),
    ("nobody is left out", lambda: verdicts("label", labelled(gpu="a100"), facts(), required={"gpu": "a100"}), None),
    (
        "asked for by the client",
        lambda: verdicts(
            "label",
            labelled(gpu="h100", 机房="北京"),
            facts(headers={b"x-want": "gpu=h100, 机房=北京".encode()}),
            header="X-Want",
        ),
        ['has not the label "gpu=h100" that is asked for', ""],
    ),
    (
        "a header that the route does not look at",
        lambda: verdicts("label", labelled(), facts(headers={b"x-want": b"gpu=b"})),
        None,
    ),
    (
        "nonsense asked for",
        lambda: verdicts("label", labelled(gpu="h100"), facts(headers={b"x-want": b",,=,"}), header="x-want"),
        ["", ""],
    ),
]
ZONE: Rows = [
    ("nobody says where", lambda: verdicts("zone", labelled(region="us"), facts()), None),
    (
        "the client's region",
        lambda: verdicts("zone", labelled(region="us"), facts(region="us")),
        ["is in region eu, not in us", ""],
    ),
    ("a region where nobody is", lambda: verdicts("zone", labelled(region="us"), facts(region="mars")), None),
    (
        "this gateway's region",
        lambda: verdicts("zone", labelled(), facts(region="mars"), region="eu"),
        ["", "is in region (none), not in eu"],
    ),
    (
        "the client's region before this gateway's",
        lambda: verdicts("zone", labelled(region="us"), facts(region="us"), region="eu"),
        ["is in region eu, not in us", ""],
    ),
    (
        "this gateway's region, whatever the client says",
        lambda: verdicts("zone", labelled(region="us"), facts(region="us"), region="eu", client=False),
        ["", "is in region us, not in eu"],
    ),
    (
        "this gateway's zone",
        lambda: verdicts("zone", labelled(region="eu", zone="eu-b"), facts(), region="eu", zone="eu-a", by="zone"),
        ["", "is in zone eu-b, not in eu-a"],
    ),
    (
        "the client's zone",
        lambda: verdicts("zone", labelled(region="eu", zone="eu-b"), facts(headers={b"x-sits-zone": b"eu-b"}), by="zone"),
        ["is in zone eu-a, not in eu-b", ""],
    ),
]
PROMISE: Rows = [
    (
        "a slow promise, and none",
        lambda: verdicts("latency-promise", two({"promise": Promise(latency_p95_ms=351)}, {}), facts()),
        ["promises 351 ms (p95), above 350", "promises no latency"],
    ),
    (
        "none is kept where that is wanted",
        lambda: verdicts("latency-promise", two({"promise": Promise(latency_p95_ms=350)}, {}), facts(), undeclared="keep"),
        ["", ""],
    ),
    (
        "a promise that is broken",
        lambda: verdicts(
            "latency-promise", two({"promise": Promise(latency_p95_ms=300)}, {}), facts(now=101.0), seen(500.0), undeclared="keep"
        ),
        ["took 500 ms (p95), above 350", ""],
    ),
    (
        "a promise that was broken a while ago",
        lambda: verdicts(
            "latency-promise", two({"promise": Promise(latency_p95_ms=300)}, {}), facts(now=131.0), seen(500.0), undeclared="keep"
        ),
        ["", ""],
    ),
    (
        "no promise, and quick all the same",
        lambda: verdicts("latency-promise", two({}, {}), facts(now=101.0), seen(200.0)),
        ["", "promises no latency"],
    ),
    (
        "what is measured does not count where it is not to",
        lambda: verdicts(
            "latency-promise", two({"promise": Promise(latency_p95_ms=300)}, {}), facts(now=101.0), seen(500.0), measured=False
        ),
        ["", "promises no latency"],
    ),
    (
        "accuracy",
        lambda: verdicts(
            "accuracy-promise", two({"promise": Promise(accuracy=0.92)}, {"promise": Promise(accuracy=0.924)}), facts()
        ),
        ["promises an accuracy of 0.92, below 0.924", ""],
    ),
    ("no accuracy promised", lambda: verdicts("accuracy-promise", two({}, {}), facts()), ["promises no accuracy"] * 2),
    ("which is kept where that is wanted", lambda: verdicts("accuracy-promise", two({}, {}), facts(), undeclared="keep"), None),
]
REST: Rows = [
    (
        "memory that is full",
        lambda: verdicts("memory", _with_kv(0.96, -1.0), facts()),
        ["uses 96 % of its KV memory", "uses 97 % of its KV memory"],
    ),
    ("memory that has room", lambda: verdicts("memory", _with_kv(0.95, 0.2), facts()), ["", ""]),
    (
        "dear",
        lambda: verdicts("cost", two({"cost": Cost(input_per_million=1, output_per_million=9)}, {}), facts(), mostPerMillion=2.5),
        ["costs $3 a million tokens, above $2.5", ""],
    ),
    (
        "another mix of tokens",
        lambda: verdicts(
            "cost",
            two({"cost": Cost(input_per_million=1, output_per_million=9)}, {}),
            facts(),
            mostPerMillion=2.5,
            outputShare=0.1,
        ),
        None,
    ),
    (
        "a colour",
        lambda: verdicts("colour", labelled(version="v2"), facts(colour="金丝雀"), colours={"金丝雀": {"version": "v2"}}),
        ['is not for colour "金丝雀"', ""],
    ),
    ("no colour", lambda: verdicts("colour", labelled(version="v2"), facts(), colours={"c": {"version": "v2"}}), None),
    (
        "a backend reserved for a colour",
        lambda: verdicts("colour", labelled(version="v2"), facts(), colours={"c": {"version": "v2"}}, reserved=True),
        ["", "is for other colours"],
    ),
]


@pytest.mark.parametrize(
    ("found", "expected"), [pytest.param(f, e, id=i) for i, f, e in [*CAPABLE, *LABEL, *ZONE, *PROMISE, *REST]]
)
def test_who_is_left_out_and_why(found: Callable[[], list[str] | None], expected: list[str] | None) -> None:
    assert found() == expected


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("label", {"requird": {}}, 'there is no setting "requird"; did you mean "required"?'),
        ("capability", {"x": 1}, 'there is no setting "x"; it has none'),
        ("cost", {}, "mostPerMillion: missing; give a figure of at least 0 and of at most 1000000"),
        ("accuracy-promise", {"least": 92.4}, "least: 92.4 is out of range; give a figure of at least 0 and of at most 1"),
        ("zone", {"by": "planet"}, 'by: "planet" is not one of region, zone'),
        ("memory", {"kvBelow": "most"}, 'kvBelow: must be a number, not text ("most")'),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        FILTERS[name](Made("r", [backend(0)], settings, None))
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("name", "settings", "strict"),
    [
        ("capability", {}, True),
        ("context", {}, True),
        ("adapter", {}, True),
        ("label", {}, True),
        ("label", {"strict": False}, False),
        ("zone", {}, False),
        ("zone", {"strict": True}, True),
        ("latency-promise", {}, False),
        ("accuracy-promise", {}, True),
        ("memory", {}, False),
        ("cost", {"mostPerMillion": 1}, True),
        ("colour", {"colours": {}, "strict": False}, False),
    ],
)
def test_what_is_declared_is_strict_and_what_is_measured_gives_way_unless_it_is_said(
    name: str, settings: dict[str, Any], strict: bool
) -> None:
    assert FILTERS[name](Made("r", [backend(0)], settings, None)).strict is strict
