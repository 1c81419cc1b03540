"""`kind: InferenceRoute`, as operators write it: read as it is, and what would be lost refused where it stands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sits.resources.kinds import Route
from sits.resources.plain import plain
from sits.resources.problem import ConfigError
from sits.resources.reading import read_text
from sits.resources.snapshot import compile_reading

HEAD = "apiVersion: gateway.kortex.io/v1alpha1\nkind: InferenceRoute\nmetadata:\n  name: r\n  namespace: prod\nspec:\n"
MODELS = "".join(
    f"---\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{engine: {engine}, endpoint: 'http://h:1'}}\n"
    for name, engine in (("gpt4", "openai"), ("claude", "anthropic"), ("llama", "vllm"), ("mistral", "tgi"))
)


def spec_of(text: str) -> dict[str, Any]:
    """What the Route says that it is read as."""
    snapshot = compile_reading(read_text(HEAD + text + MODELS, "r.yaml"), 1)
    found: dict[str, Any] = plain(snapshot.routes["r"])
    return dict(found["spec"])


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compile_reading(read_text(HEAD + text + MODELS, "r.yaml"), 1)
    return [str(problem) for problem in caught.value.problems]


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a default and a chain": (
        """
  defaultBackend: {name: gpt4, weight: 100}
  fallback:
    backends: [gpt4, claude, llama]
    timeoutSeconds: 30
  rules:
    - match: {headers: {x-prefer-local: "true"}}
      backends: [{name: llama, weight: 100}]
    - name: ab
      match: {headers: {x-test: "*"}}
      backends: [{name: gpt4, weight: 80}, {name: claude, weight: 20}]
  rateLimit: {requestsPerMinute: 100, userHeader: x-user-id}
  costTracking: true
  enableLogging: false
""",
        {
            "backends": [{"model": "gpt4", "weight": 100}],
            "fallbacks": ["claude", "llama"],
            "total": 90,
            "rules": [
                {
                    "name": "rule-1", "match": {"headers": {"x-prefer-local": "true"}},
                    "backends": [{"model": "llama", "weight": 100}],
                },
                {
                    "name": "ab", "match": {"headers": {"x-test": "*"}},
                    "backends": [{"model": "gpt4", "weight": 80}, {"model": "claude", "weight": 20}],
                },
            ],
            "quota": {"requestsPerMinute": 100},
        },
    ),
    "priorities": (
        """
  backends:
    - {name: mistral, priority: 3}
    - {name: gpt4, weight: 80, priority: 1}
    - {name: claude, weight: 20, priority: 2}
""",
        {"backends": [{"model": "gpt4", "weight": 80}, {"model": "claude", "weight": 0}, {"model": "mistral", "weight": 0}]},
    ),
    "who says no weight beside one who does": (
        "  backends: [{name: gpt4, weight: 50}, {name: claude}]\n",
        {"backends": [{"model": "gpt4", "weight": 50}, {"model": "claude", "weight": 100}]},
    ),
    "no weights at all": ("  backends: [gpt4, {name: claude}]\n", {"backends": [{"model": "gpt4"}, {"model": "claude"}]}),
    "by engine": (
        "  backends: [{engine: vllm, weight: 70}, {engine: tgi, weight: 30}]\n",
        {"backends": [{"select": {"engine": "vllm"}, "weight": 70}, {"select": {"engine": "tgi"}, "weight": 30}]},
    ),
    "by labels": ("  selector: {matchLabels: {engine: vllm}}\n", {"backends": [{"select": {"engine": "vllm"}}]}),
    "region and adapter, while it goes well": (
        """
  backendRefs: [{name: gpt4}]
  rules:
    - name: shift
      match: {region: us-west, loraAdapter: [sql, 法律], qos: P0, qps: {min: 1, max: 50}}
      backendRefs: [{name: llama, weight: 85}, {name: mistral, weight: 15}]
      when: {p99LatencyMs: "< 1200", adapterLoadSuccess: "> 99.95%"}
""",
        {
            "backends": [{"model": "gpt4"}],
            "rules": [
                {
                    "name": "shift",
                    "match": {
                        "region": ["us-west"], "adapter": ["sql", "法律"], "priority": ["P0"],
                        "qps": {"from": 1.0, "below": 50.0},
                    },
                    "backends": [{"model": "llama", "weight": 85}, {"model": "mistral", "weight": 15}],
                    "while": {"p99BelowMs": 1200.0, "adapterLoadsAbove": 0.9995},
                }
            ],
        },
    ),
    "the same stays where it was": (
        "  backends: [gpt4, claude]\n  affinity: {by: header, header: x-user}\n  timeoutSeconds: 20\n",
        {
            "backends": [{"model": "gpt4"}, {"model": "claude"}], "policy": "hash",
            "hash": {"by": "header", "header": "x-user"}, "total": 20,
        },
    ),
    "several matches, headers as in the Gateway API": (
        """
  backends: [gpt4]
  models: [gpt-4]
  aliases: [gpt-4o]
  rules:
    - match:
        - headers: [{name: x-tier, value: gold, type: Exact}]
        - {region: eu, regions: [us]}
      backends: [claude, {name: llama, priority: 1}]
""",
        {
            "backends": [{"model": "gpt4"}], "aliases": ["gpt-4o", "gpt-4"],
            "rules": [
                {
                    "name": "rule-1", "match": [{"headers": {"x-tier": "gold"}}, {"region": ["eu", "us"]}],
                    "backends": [{"model": "claude"}, {"model": "llama", "weight": 0}],
                }
            ],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SHAPES.values(), ids=SHAPES)
def test_it_is_read_as_a_route(text: str, expected: dict[str, Any]) -> None:
    wanted = {"kind": "Route", "metadata": {"name": "r"}, "spec": expected}
    assert spec_of(text) == plain(msgspec.convert(wanted, Route))["spec"]


LOST = "has no meaning in an InferenceRoute that is read here"
REFUSED: dict[str, tuple[str, list[str]]] = {
    "an unknown key, with the nearest": (
        "  backnds: [a]\n",
        [
            f'r.yaml:7:3 spec.backnds: {LOST}; did you mean "backends"?',
        ],
    ),
    "one inside a rule": (
        "  backends: [gpt4]\n  rules:\n    - match: {regoin: eu}\n      backends: [claude]\n",
        [f'r.yaml:9:15 spec.rules[0].match.regoin: {LOST}; did you mean "region"?'],
    ),
    "one inside the chain": (
        "  backends: [gpt4]\n  fallback:\n    backend: [claude]\n",
        [f'r.yaml:9:5 spec.fallback.backend: {LOST}; did you mean "backends"?'],
    ),
    "a match by path": (
        "  backends: [gpt4]\n  rules:\n    - match: {pathPrefix: /v1/x}\n      backends: [claude]\n",
        [f"r.yaml:9:15 spec.rules[0].match.pathPrefix: {LOST}; a route answers on every endpoint that its models have"],
    ),
    "an experiment": (
        "  backends: [gpt4]\n  experiments: [{name: x}]\n",
        [f"r.yaml:8:3 spec.experiments: {LOST}; give the treatment its share as a weight among the backends"],
    ),
    "a quota for each user": (
        "  backends: [gpt4]\n  rateLimit: {requestsPerMinute: 5, perUser: true}\n",
        ["r.yaml:8:46 spec.rateLimit.perUser: a route has no quota for each user; give it to the Key resources"],
    ),
    "a condition the wrong way round": (
        "  backends: [gpt4]\n  rules:\n    - match: {region: eu}\n      backends: [claude]\n      while: {p99: '> 1200'}\n",
        ['r.yaml:11:20 spec.rules[0].while.p99: "> 1200" is no such figure; write it like `< 1200`, in milliseconds'],
    ),
    "expressions over labels": (
        "  selector: {matchLabels: {engine: vllm}, matchExpressions: []}\n",
        [f"r.yaml:7:43 spec.selector.matchExpressions: {LOST}; known here: matchLabels"],
    ),
    "a name and labels": (
        "  backends: [{name: gpt4, selector: {a: b}}]\n",
        ["r.yaml:7:14 spec.backends[0]: is named, and found by labels too; keep one of them"],
    ),
    "nobody of that name, where it was written": (
        "  defaultBackend:\n    name: gpt5\n  fallback:\n    backends:\n      - nobody\n",
        [
            'r.yaml:8:11 spec.defaultBackend.name: no Model "gpt5"; did you mean "gpt4"?',
            'r.yaml:11:9 spec.fallback.backends[0]: no Model "nobody"; there are gpt4, claude, llama, mistral',
        ],
    ),
    "a figure out of range, where it was written": (
        "  backends: [gpt4]\n  rules:\n    - match: {region: eu}\n      backends: [claude]\n      when: {p99Ms: -1}\n",
        [
            "r.yaml:11:21 spec.rules[0].when.p99Ms: -1.0 is out of range; "
            "give a figure of at least 1e-06 and of at most 1000000000"
        ],
    ),
    "a model that is no name": (
        "  backends:\n    - name: [gpt4]\n  fallback:\n    backends: [claude]\n",
        [
            "r.yaml:8:13 spec.backends[0].name: must be text, not a list; an ASCII letter or digit, then ASCII letters, digits "
            "and . _ : / @ -, 200 characters at the most"
        ],
    ),
    "an affinity to nothing": (
        "  backends: [gpt4]\n  affinity: [x]\n",
        [
            "r.yaml:8:13 spec.affinity: \"['x']\" is nothing to go by; one of session, key, user, prefix, model, header",
        ],
    ),
    "no map at all": (
        "  - a\n",
        [
            "r.yaml:7:3 spec: is not a map",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_lost_is_refused_where_it_stands(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected
