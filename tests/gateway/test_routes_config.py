"""What is wrong with a route is said at its place, by `sits validate` and by a running gateway, which keeps what it has."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.cli.sits import main as sits
from sits.engines.scripted import AGAIN, READ, ScriptedServer

MODELS = """\
kind: Model
metadata: {name: a}
spec: {engine: vllm, endpoint: "http://127.0.0.1:1"}
---
kind: Model
metadata: {name: b}
spec: {engine: tgi, endpoint: "http://127.0.0.1:1", region: eu}
---
kind: Domain
metadata: {name: legal}
spec: {examples: [合同怎么解除, 起诉要多久, draft a contract, what is a tort]}
---
kind: Route
metadata: {name: r}
spec:
  backends: [{model: a, weight: 70}, {model: b, weight: 30}]
"""
RULE = "  rules:\n    - name: one\n      backends: [{model: b}]\n      match: "
WRONG: dict[str, tuple[str, list[str]]] = {
    "an unknown domain": (
        RULE + "{domain: [legl, unknown]}\n",
        ['20:24 spec.rules[0].match.domain[0]: no Domain "legl"; did you mean "legal"?'],
    ),
    "one in a list of matches": (
        RULE + "[{region: [eu]}, {domain: [code]}]\n",
        ['20:41 spec.rules[0].match[1].domain[0]: no Domain "code"; there is legal'],
    ),
    "matches everything": (
        RULE + "{}\n",
        ["20:14 spec.rules[0].match: matches every request; say which, or put these backends into the route"],
    ),
    "matches everything, by a band": (
        RULE + "{qps: {}}\n",
        ["20:20 spec.rules[0].match.qps: everything lies in this band; give `from`, `below` or both"],
    ),
    "matches nothing, by a band": (
        RULE + "{promptTokens: {from: 9, below: 9}}\n",
        ["20:29 spec.rules[0].match.promptTokens: nothing lies in this band; let `from` be less than `below`"],
    ),
    "a key of a match": (RULE + "{reigon: [eu]}\n", ['20:15 spec.rules[0].match.reigon: unknown key; did you mean "region"?']),
    "a class that there is not": (
        RULE + "{priority: [P7]}\n",
        ['20:26 spec.rules[0].match.priority[0]: "P7" is not one of P0, P1, P2'],
    ),
    "the name of a rule twice": (
        RULE + "{region: [eu]}\n    - {name: one, match: {region: [us]}, backends: [{model: a}]}\n",
        ['21:14 spec.rules[1].name: there is a rule "one" already; rename one of them'],
    ),
    "scores that weigh nothing": (
        "  scores: [{name: load, weight: 0}, {name: queue, weight: 0}]\n",
        ["17:11 spec.scores: every weight is 0, so nothing counts; give one score a weight above 0"],
    ),
    "a policy that does not look at scores": (
        "  policy: weighted\n  scores: [{name: load}]\n",
        ['17:3 spec.policy: "weighted" does not look at `scores`; remove `policy`, or the scores'],
    ),
    "scores that are none": ("  policy: scores\n", ["17:3 spec.policy: 'scores' needs `scores`; name some"]),
    "a rule by scores that are none": (
        RULE + "{region: [eu]}\n      policy: scores\n",
        ["21:7 spec.rules[0].policy: 'scores' needs `scores` of the route; name some there"],
    ),
    "a score that there is not": (
        "  scores:\n    - {name: load}\n    - {name: quue}\n",
        ['19:14 spec.scores[1].name: there is no score "quue"; did you mean "queue"?'],
    ),
    "a filter that there is not": (
        "  filters:\n    - {name: zoen}\n",
        ['18:14 spec.filters[0].name: there is no filter "zoen"; did you mean "zone"?'],
    ),
    "a score twice": (
        "  scores: [{name: load}, {name: load}]\n",
        ['17:33 spec.scores[1].name: "load" is there already; remove one of them'],
    ),
    "a hash without its header": (
        "  policy: hash\n  hash: {by: header}\n",
        ["18:3 spec.hash: `header` is the name of the header where `by` is header"],
    ),
    "a negative weight": (
        RULE + "{region: [eu]}\n    - {name: two, match: {region: [us]}, backends: [{model: a, weight: -1}]}\n",
        ["21:72 spec.rules[1].backends[0].weight: -1 is out of range; give a figure of at least 0 and of at most 1000000"],
    ),
    "neither name nor labels": (
        RULE + "{region: [eu]}\n    - {name: two, match: {region: [us]}, backends: [{weight: 1}]}\n",
        ["21:53 spec.rules[1].backends[0]: a backend is a `model` or a `select`; give one of them"],
    ),
}


def written(folder: pathlib.Path, more: str) -> pathlib.Path:
    path = folder / "r.yaml"
    path.write_text(MODELS + more, encoding="utf-8")
    return path


@pytest.mark.parametrize(("more", "expected"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_at_its_place(tmp_path: pathlib.Path, more: str, expected: list[str]) -> None:
    path = written(tmp_path, more)
    shown = CliRunner().invoke(sits, ["validate", str(path)])
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [f"{path}:{line}" for line in expected]


@pytest.mark.parametrize(
    ("use", "place", "said"),
    [
        ("  scores:\n    - {name: latency, settings: {nonsense: 1}}\n", ":18:34 spec.scores[0].settings.nonsense: ", "nonsense"),
        ("  scores:\n    - {name: zone, settings: {zones: 5}}\n", ":18:31 spec.scores[0].settings.zones: ", "zones"),
        (
            "  filters:\n    - {name: cost, settings: {mostPerMillion: -1}}\n",
            ":18:47 spec.filters[0].settings.mostPerMillion: ",
            "range",
        ),
    ],
    ids=["unknown", "wrong type", "out of range"],
)
def test_settings_that_a_plugin_cannot_use_are_said_at_their_place(
    tmp_path: pathlib.Path, use: str, place: str, said: str
) -> None:
    path = written(tmp_path, use)
    shown = CliRunner().invoke(sits, ["validate", str(path)])
    assert shown.exit_code == 1
    (line,) = shown.stdout.splitlines()
    assert line.startswith(f"{path}{place}")
    assert said in line


@inside_loop
async def test_a_running_gateway_refuses_each_of_them_and_goes_on_as_it_was(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("a", server.url), route("mine", "a")) as gateway,
    ):
        reloader = gateway.node.reloader
        draft = tmp_path / "draft"
        for number, (more, expected) in enumerate(WRONG.values(), 1):
            draft.write_text(MODELS.replace("name: a}", "name: a2}").replace("model: a", "model: a2") + more, encoding="utf-8")
            draft.replace(tmp_path / "config" / "r.yaml")
            await eventually(lambda number=number: reloader.status.rejected >= number, f"{expected} is refused")  # type: ignore[misc]
            assert reloader.status.last_error != ()
            asking = await gateway.ask(PATHS["chat"], request("chat", "mine"))
            assert (asking.status, asking.headers["x-sits-target"]) == (200, "a")
        assert (reloader.status.version, reloader.status.rejected) == (1, len(WRONG))
        (tmp_path / "config" / "r.yaml").unlink()
        await eventually(lambda: reloader.status.last_error == (), "all is well again")
