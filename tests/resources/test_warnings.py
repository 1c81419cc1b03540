"""What can never work is refused; what can be used and has no effect is warned of."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner

from sits.cli.validate import validate
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.problem import ConfigError
from sits.resources.reading import read_text
from sits.resources.snapshot import compile_reading
from sits.resources.warnings import warnings

MODEL = "kind: Model\nmetadata: {name: m}\nspec:\n  engine: vllm\n  endpoint: http://h:1\n"
HERE = f"kind: Model\nmetadata: {{name: m}}\nspec: {{engine: local, local: {{source: pypi:a==1!b.gguf, sha256: {'a' * 64}}}}}\n"
ROUTE = "---\nkind: Route\nmetadata: {name: r}\nspec:\n  backends: [{model: m}]\n  "
RULED = ROUTE + "rules: [{name: x, backends: [{model: m}], "
SETTINGS = "kind: Settings\nspec: {trace: {headers: "
ASCII = "write ASCII letters, digits and -, like x-team"
SCOPES = (
    "is nothing that a request can name: its scopes are separated by commas; "
    "write each scope by itself, without blanks around it"
)  # fmt: skip


UNPRICED = (
    'does not count what "m" answer: they have no `cost`; give their Models a `cost`, `cost: {}` where they are free'
)  # fmt: skip


PROMETHEUS = "---\nkind: Settings\nspec: {prometheus: 'http://h:9090'}\n"
UNASKED = "is asked of nobody: Settings name no Prometheus server; give Settings `prometheus: http://HOST:9090`"
SELECT = "---\nkind: Route\nmetadata: {name: r}\nspec:\n  backends: [{select: "
MODEL_SG = "---\nkind: Model\nmetadata: {name: n}\nspec: {engine: sglang, endpoint: 'http://h:2', zone: z}\n"


def domain(name: str, examples: str, more: str = "") -> str:
    return f"---\nkind: Domain\nmetadata: {{name: {name}}}\nspec: {{examples: {examples}{more}}}\n"


NEVER = {
    "a header of that name": (MODEL + RULED + "match: {headers: {'x-部门 a': b}}}]\n", [
        f'm.yaml:11:63 spec.rules[0].match.headers["x-部门 a"]: "x-部门 a" is not the name of a header; {ASCII}']),
    "a header with blanks around its value": (MODEL + RULED + "match: {headers: {x-a: ' b'}}}]\n", [
        "m.yaml:11:68 spec.rules[0].match.headers.x-a: no header has this value; "
        "write it on one line, without blanks around it"]),
    "a header to go by": (MODEL + ROUTE + "policy: hash\n  hash: {by: header, header: 用户}\n", [
        f'm.yaml:12:30 spec.hash.header: "用户" is not the name of a header; {ASCII}']),
    "a header to record": (SETTINGS + "['x y']}}\n", [
        f'm.yaml:2:26 spec.trace.headers[0]: "x y" is not the name of a header; {ASCII}']),
    "a header to send": (MODEL + "  headers: {x y: a}\n", [
        f'm.yaml:6:13 spec.headers["x y"]: "x y" is not the name of a header; {ASCII}']),
    "two scopes in one": (MODEL + "  semantics: {grounding: {scopes: ['a,b', 法律]}}\n", [
        f'm.yaml:6:36 spec.semantics.grounding.scopes[0]: "a,b" {SCOPES}']),
    "a version in the name of an embedding model": (MODEL + "  semantics: {embedding: {model: a@b/c}}\n", [
        'm.yaml:6:34 spec.semantics.embedding.model: "a@b/c" cannot be named in MODEL@VERSION/DIMENSION; '
        "leave the version and the dimension to `version` and `dimension`"]),
    "a dimension in it": (MODEL + "  semantics: {embedding: {model: BAAI/bge-m3/1024}}\n", [
        'm.yaml:6:34 spec.semantics.embedding.model: "BAAI/bge-m3/1024" cannot be named in MODEL@VERSION/DIMENSION; '
        "leave the version and the dimension to `version` and `dimension`"]),
    "an open bracket": (MODEL + "  health: {query: 'up{', below: 1}\n", [
        "m.yaml:6:19 spec.health.query: a { is not closed; check the brackets"]),
    "a bracket too many": (MODEL + "  health: {query: 'rate(up[5m]))', below: 1}\n", [
        "m.yaml:6:19 spec.health.query: a ) closes nothing that is open; check the brackets"]),
    "one closed by another": (MODEL + "  health: {query: 'sum(up]', below: 1}\n", [
        "m.yaml:6:19 spec.health.query: a ] closes nothing that is open; check the brackets"]),
    "a query of blanks": (MODEL + "  health: {query: ' # up', below: 1}\n", [
        "m.yaml:6:19 spec.health.query: asks nothing; write a query, like up == 0"]),
    "a metric with an open bracket": (
        "kind: Pressure\nmetadata: {name: p}\nspec:\n  trigger: {metric: 'prometheus:max(x', threshold: 1}\n"
        "  action: {type: evict}\n", [
        "m.yaml:4:21 spec.trigger.metric: a ( is not closed; check the brackets"]),
    "two Domains of the same examples": (domain("a", "[x, y, z, w]") + domain("b", "{en: [W, Z, Y, X]}"), [
        'm.yaml:8:8 spec.examples: the same as those of Domain "a" (m.yaml:2:1): nothing tells the two apart; '
        "give each examples of its own"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), NEVER.values(), ids=NEVER)
def test_what_can_never_work_is_refused(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_reading(read_text(text, "m.yaml"), 1)
    assert [str(problem) for problem in caught.value.problems] == said


GOOD = {
    "brackets in strings and comments": MODEL + "  health: {query: 'up{a=\"}(\"} # (', below: 1}\n" + PROMETHEUS,
    "a selector that finds one by its label": MODEL.replace("{name: m}", "{name: m, labels: {卡: 甲}}") + SELECT + "{卡: 甲}}]\n",
    "scopes in any script": MODEL + "  semantics: {grounding: {scopes: [法律, a b]}}\n",
    "slashes in the name of a model": MODEL + "  semantics: {embedding: {model: BAAI/bge-m3, version: '1'}}\n",
    "values of any script, and their beginning": MODEL + RULED + "match: {headers: {x-a: 法*, accept: '*/*', x-b: '*'}}}]\n",
    "hash of a rule": MODEL + RULED + "match: {region: [eu]}, policy: hash}]\n  hash: {by: key}\n",
    "no domain but by contract": MODEL + "  semantics: {grounding: {scopes: [a]}}\n",
    "languages": domain("a", "{zh-Hant: [x, y], en: [z], gsw: [w]}"),
    "a budget for what is free": MODEL + "  cost: {}\n" + ROUTE + "quota: {dollarsPerDay: 5}\n",
    "a budget for what runs here": HERE + ROUTE + "quota: {dollarsPerDay: 5}\n",
    "notes by default": MODEL + ROUTE + "context: {notes: 300, pieces: 9}\n",
    "notes of a stage": MODEL + ROUTE + "context: {stages: [{kind: chunked}], oversize: refuse, notes: 300}\n",
    "the time of the route": MODEL + ROUTE + "total: 1000\n  cache: {waitSeconds: 700}\n",
}  # fmt: skip


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_what_works_is_neither(text: str) -> None:
    reading = read_text(text, "m.yaml")
    compile_reading(reading, 1)
    assert warnings(reading) == ()


POINTLESS = {
    "a star within": (MODEL + RULED + "match: {headers: {x-a: 'a*b*'}}}]\n", [
        'm.yaml:11:68 spec.rules[0].match.headers.x-a: only a * at the end of "a*b*" stands for anything: '
        "the others are compared as they are"]),
    "hash without its policy": (MODEL + ROUTE + "hash: {by: key}\n", [
        "m.yaml:11:3 spec.hash: nothing goes by it: no policy is hash; write `policy: hash`, or remove it"]),
    "hash that says what it would do anyhow": (MODEL + ROUTE + "hash: {}\n", [
        "m.yaml:11:3 spec.hash: nothing goes by it: no policy is hash; write `policy: hash`, or remove it"]),
    "while nothing": (MODEL + RULED + "match: {region: [eu]}, while: {}}]\n", [
        "m.yaml:11:68 spec.rules[0].while: says nothing, so it always holds; give a condition, or remove it"]),
    "intents that are none": (MODEL + "  semantics: {intents: []}\n", [
        "m.yaml:6:15 spec.semantics.intents: is empty, and so no clause: requests of any domain are let pass; "
        "name Domains, or remove it"]),
    "a window that is larger than the room of a local model": (
        HERE.replace("spec: {", "spec: {contextWindow: 8192, "), [
        "m.yaml:3:23 spec.contextWindow: 8192 tokens are more than there is room for here: the 4096 of local.context count; "
        "write 4096, or give more local.context"]),
    "a preference for nobody": (domain("a", "[x, y, z, w]", ", prefers: {}"), [
        "m.yaml:4:32 spec.prefers: prefers nobody; name models or labels, or remove it"]),
    "a language that is none": (domain("a", "{klingon: [x, y, z, w]}"), [
        'm.yaml:4:19 spec.examples.klingon: "klingon" is no language tag; it is for people, texts are told apart by their '
        "script; write zh or en, or give one list"]),
    "an example of two Domains": (domain("a", "[x, y, z, w]") + domain("b", "[p, X, q, Y]"), [
        'm.yaml:8:22 spec.examples[1]: "X" and 1 more: examples of Domain "a" too; leave each with the one that it is of']),
    "waiting longer than the whole request": (MODEL + ROUTE + "total: 5\n  intent: {seconds: 6}\n", [
        "m.yaml:12:21 spec.intent.seconds: 6 s is longer than the whole request may take, 5 s"]),
    "notes where nothing is read in pieces": (MODEL + ROUTE + "context: {oversize: refuse, notes: 300}\n", [
        "m.yaml:11:31 spec.context.notes: has no effect: no prompt is read in pieces; write `oversize: split`, or remove it"]),
    "pieces where no stage is chunked": (MODEL + ROUTE + "context: {stages: [{kind: reason}], pieces: 16}\n", [
        "m.yaml:11:39 spec.context.pieces: has no effect: no prompt is read in pieces; write `oversize: split`, or remove it"]),
    "waiting longer than an attempt": (MODEL + ROUTE + "cache: {waitSeconds: 700}\n", [
        "m.yaml:11:24 spec.cache.waitSeconds: 700 s is longer than an attempt may take, 600 s"]),
    "a query of health that nobody is asked": (MODEL + "  health: {query: up, below: 1}\n", [
        f"m.yaml:6:19 spec.health.query: {UNASKED}"]),
    "a query of memory that nobody is asked": (MODEL + "  vitals: {memoryQuery: used}\n", [
        f"m.yaml:6:25 spec.vitals.memoryQuery: {UNASKED}"]),
    "a pressure by one": (
        "kind: Pressure\nmetadata: {name: p}\nspec:\n  trigger: {metric: 'prometheus:max(x)', threshold: 1}\n"
        "  action: {type: evict}\n", [
        f"m.yaml:4:21 spec.trigger.metric: {UNASKED}"]),
    "a value that no label has": (MODEL + SELECT + "{engine: vlm}}]\n", [
        'm.yaml:10:23 spec.backends[0].select: finds nobody: no Model here has engine: "vlm"; did you mean "vllm"?']),
    "a value that is like none": (MODEL + SELECT + "{engine: 千问}}]\n", [
        'm.yaml:10:23 spec.backends[0].select: finds nobody: no Model here has engine: "千问"; there is "vllm"']),
    "a label that nobody has": (MODEL + SELECT + "{engin: vllm}}]\n", [
        'm.yaml:10:23 spec.backends[0].select: finds nobody: no Model here has engin: "vllm"; did you mean "engine"?']),
    "labels that nobody has together": (MODEL + MODEL_SG + SELECT + "{engine: vllm, zone: z}}]\n", [
        "m.yaml:14:23 spec.backends[0].select: finds nobody: no Model here has all of these; "
        "remove one of them, or give a Model `labels`"]),
    "a selector of a rule": (MODEL + ROUTE + "rules: [{name: x, match: {region: [eu]}, backends: [{select: {zone: z}}]}]\n", [
        'm.yaml:11:64 spec.rules[0].backends[0].select: finds nobody: no Model here has zone: "z"']),
    "a preference for labels that nobody has": (MODEL + domain("a", "[x, y, z, w]", ", prefers: {labels: {engine: vllm2}}"), [
        'm.yaml:9:50 spec.prefers.labels: finds nobody: no Model here has engine: "vllm2"; did you mean "vllm"?']),
    "a budget for what has no price": (MODEL + ROUTE + "quota: {dollarsPerDay: 5}\n", [
        f"m.yaml:11:26 spec.quota.dollarsPerDay: {UNPRICED}"]),
    "a team's budget for it": (MODEL + "---\nkind: Settings\nspec: {teams: {red: {tokensPerDay: 5, dollarsPerMonth: 5}}}\n", [
        f"m.yaml:8:56 spec.teams.red.dollarsPerMonth: {UNPRICED}"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), POINTLESS.values(), ids=POINTLESS)
def test_what_has_no_effect_can_be_used_and_is_warned_of(text: str, said: list[str]) -> None:
    reading = read_text(text, "m.yaml")
    compile_reading(reading, 1)
    assert [str(one) for one in warnings(reading)] == said


def test_files_that_are_not_there_are_warned_of_once_and_not_as_secrets(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    text = MODEL + "  apiKey: file:secret\n  tokenizer: {source: 'file:nope.json'}\n"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(validate, [str(file), "--no-secrets"])
    assert result.stdout.splitlines()[0] == (
        f"{file}:7:23 warning: spec.tokenizer.source: no file or folder at {tmp_path}/nope.json; "
        "put it there, or name another place"
    )
    assert (result.exit_code, result.stderr) == (0, "1 warning\n")


def test_warnings_are_printed_and_only_strict_fails_for_them(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MODEL + ROUTE + "hash: {}\n", encoding="utf-8")
    said = f"{file}:11:3 warning: spec.hash: nothing goes by it: no policy is hash; write `policy: hash`, or remove it"
    result = CliRunner().invoke(validate, [str(file)])
    assert (result.exit_code, result.stdout.splitlines()[0], result.stderr) == (0, said, "1 warning\n")
    assert result.stdout.splitlines()[1].startswith("valid: 1 Model, 1 Route; hash ")
    assert CliRunner().invoke(validate, [str(file), "--strict"]).exit_code == 1
    report = json.loads(CliRunner().invoke(validate, [str(file), "--json"]).stdout)
    assert (report["valid"], report["problems"], [one["path"] for one in report["warnings"]]) == (True, [], ["spec.hash"])


def test_problems_and_warnings_stand_in_one_order(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MODEL + "  semantics: {intents: []}\n" + ROUTE + "total: 0\n", encoding="utf-8")
    result = CliRunner().invoke(validate, [str(file)])
    assert [line.split(" ")[1] for line in result.stdout.splitlines()] == ["warning:", "spec.total:"]
    assert (result.exit_code, result.stderr) == (1, "1 problem, 1 warning\n")


def test_what_comes_with_the_package_has_no_warnings() -> None:
    assert CliRunner().invoke(validate, [str(DEFAULT_FOLDER), "--strict"]).exit_code == 0
