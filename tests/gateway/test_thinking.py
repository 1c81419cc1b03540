"""What a request wants and how much it asks, found out in a running gateway: who is asked first by it, what the record says, and
that a route which looks at nothing pays for nothing."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import OPENAI_CHAT, PATHS, WIRES

from serving import data_folder
from sits.engines.scripted import AGAIN, READ, Script, ScriptedServer
from sits.gateway.insight import load_of
from sits.observe.explain import explain
from sits.observe.record import Record
from sits.resources.problem import ConfigError
from sits.resources.reading import read_value
from sits.routing.policies.state import TargetState
from sits.state.intent import material
from sits.state.intent.material import Unasked

EASY = {"en": "What is the capital of Australia?", "zh": "澳大利亚的首都是哪里？"}
MIDDLE = {
    "en": "Explain how photosynthesis works and why leaves are green, with two examples.",
    "zh": "解释光合作用的原理，并举两个例子说明为什么叶子是绿色的。",
}
HARD = {
    "en": "Prove step by step that the algorithm below terminates, analyse its complexity, compare it with quicksort in a table, "
    "and if n > 1000 then design an optimised version:\n1. split the list\n2. sort each half\n3. merge\n"
    "```python\ndef f(x):\n    return sorted(x)\n```",
    "zh": "请逐步证明下面的算法会终止，分析其时间复杂度，并用表格与快速排序比较；如果 n > 1000，则设计一个优化版本：\n"
    "1. 拆分列表\n2. 分别排序\n3. 合并\n```python\ndef f(x):\n    return sorted(x)\n```",
}
LAW = (
    "can I sue my landlord",
    "is this contract valid",
    "我能起诉房东吗",
    "这份合同有效吗",
    "who pays the damages",
    "赔偿由谁承担",
)
TIERS = {
    "tiny": {"models": ["small"]},
    "base": {"models": ["middle"]},
    "heavy": {"labels": {"size": "large"}},
}
CHAT = WIRES["chat", "openai"]
READY: Script = [READ, CHAT.answers("好"), AGAIN]


def llama2() -> pathlib.Path:
    """The tokenizer.json (Llama 2) that lies in wordllama."""
    spec = importlib.util.find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return pathlib.Path(spec.origin).parent / "tokenizers" / "l2_supercat_tokenizer_config.json"


def labelled(resource: dict[str, Any], **labels: str) -> dict[str, Any]:
    resource["metadata"]["labels"] = labels
    return resource


def trio(url: str) -> list[dict[str, Any]]:
    return [model("small", url), model("middle", url), labelled(model("large", url), size="large")]


def domain(name: str, *examples: str, **prefers: Any) -> dict[str, Any]:
    spec = {"examples": list(examples), **({"prefers": prefers} if prefers else {})}
    return {"apiVersion": "sits/v1", "kind": "Domain", "metadata": {"name": name}, "spec": spec}


def asked(operation: str, text: str, name: str = "r") -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    said: dict[str, dict[str, Any]] = {
        "chat": {"messages": turns},
        "completions": {"prompt": text},
        "responses": {"input": text},
        "messages": {"messages": turns, "max_tokens": 64},
    }
    return {"model": name, **said[operation]}


async def first(gateway: Gateway, text: str, name: str = "r", headers: Mapping[str, str] | None = None) -> Record:
    """The record of a request that was answered."""
    answer = await gateway.ask(PATHS["chat"], asked("chat", text, name), headers)
    assert answer.status == 200, answer
    return gateway.record(answer)


def wished(record: Record) -> tuple[str, str, float | None]:
    """Domain, tier and confidence, as the record has them."""
    wish = record.wish
    assert wish is not None
    return wish.domain, wish.tier, wish.confidence


ROWS = [
    pytest.param(text[lang], tier, target, id=f"{tier}-{lang}")
    for tier, target, text in (("tiny", "small", EASY), ("base", "middle", MIDDLE), ("heavy", "large", HARD))
    for lang in ("en", "zh")
]


@pytest.mark.parametrize(("text", "tier", "target"), ROWS)
@inside_loop
async def test_how_much_a_request_asks_leads_who_is_asked_and_the_others_stay(
    text: str, tier: str, target: str, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *trio(server.url), route("r", "small", "middle", "large", complexity={"tiers": TIERS})) as gateway,
    ):
        for _ in range(5):
            record = await first(gateway, text)
            assert (record.target, wished(record)) == (target, ("", tier, None))
            assert record.draw is not None
            assert record.draw.leaning == f"complexity {tier}"
            assert len(record.draw.weights) == 3
        assert f"tier {tier}\n" in explain(record)


@pytest.mark.parametrize("operation", ["chat", "completions", "responses", "messages"])
@inside_loop
async def test_the_text_is_found_in_the_words_of_every_endpoint(operation: str, tmp_path: pathlib.Path) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    async with (
        ScriptedServer([READ, WIRES[operation, engine].answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            *[model(name, server.url, engine) for name in ("small", "large")],
            route("r", "small", "large", complexity={"tiers": {"tiny": TIERS["tiny"], "heavy": {"models": ["large"]}}}),
        ) as gateway,
    ):
        found = []
        for text in (EASY["zh"], HARD["zh"]):
            answer = await gateway.ask(PATHS[operation], asked(operation, text))
            assert answer.status == 200, answer
            found.append((answer.headers["x-sits-target"], wished(gateway.record(answer))[1]))
        assert found == [("small", "tiny"), ("large", "heavy")]


@pytest.mark.parametrize(
    ("bounds", "wrong"),
    [
        ([0.2], "the list has 1, not 2; give a list of 2"),
        ([0.2, 7], "[1]: 7 is out of range"),
        ("0.2", "must be a list of 2"),
        ([0.8, 0.2], "the first bound 0.8 is not below the second 0.2"),
    ],
    ids=["one", "out of range", "no list", "in the wrong order"],
)
def test_bounds_that_make_no_sense_are_refused(bounds: Any, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_value(route("r", "small", complexity={"tiers": TIERS, "bounds": bounds}))
    assert f"spec.complexity.bounds{wrong if wrong[0] == '[' else ': ' + wrong}" in str(caught.value)


@inside_loop
async def test_a_tier_that_nobody_stands_for_changes_nothing(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path,
            *trio(server.url),
            route("r", ("middle", 1000.0), ("large", 0.001), complexity={"tiers": {"heavy": TIERS["heavy"]}}),
        ) as gateway,
    ):
        easy, hard = await first(gateway, EASY["en"]), await first(gateway, HARD["en"])
        assert [(one.target, wished(one)[1]) for one in (easy, hard)] == [("middle", "tiny"), ("large", "heavy")]
        assert easy.draw is not None
        assert easy.draw.leaning == ""


LOADS = [
    # formula, share of the room in use, what each of easy, middle and hard is
    pytest.param("relief", 0, ("tiny", "base", "heavy"), id="relief-idle"),
    pytest.param("relief", 4, ("tiny", "tiny", "heavy"), id="relief-full"),
    pytest.param("reference", 0, ("tiny", "tiny", "base"), id="reference-idle"),
    pytest.param("reference", 4, ("base", "base", "heavy"), id="reference-full"),
]


@pytest.mark.parametrize(("formula", "running", "tiers"), LOADS)
@inside_loop
async def test_the_tier_is_made_of_load_and_complexity_by_the_formula(
    formula: str, running: int, tiers: Sequence[str], tmp_path: pathlib.Path
) -> None:
    complexity = {"tiers": TIERS, "formula": formula}
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *trio(server.url), route("r", "small", "middle", "large", complexity=complexity)) as gateway,
    ):
        found = []
        for text in (EASY["en"], MIDDLE["en"], HARD["en"]):
            for target in gateway.node.service.table.targets.values():
                target.state.filled, target.state.room = True, 4.0
                target.state.told(running, 0)  # As a server says of itself.
            found.append(wished(await first(gateway, text))[1])
        assert found == list(tiers)


def state(busy: int, room: float = 0.0, kv: float = -1.0) -> TargetState:
    made = TargetState()
    made.told(busy, 0, kv)
    if room:
        made.filled, made.room = True, room
    return made


@pytest.mark.parametrize(
    ("states", "load"),
    [
        ([], 0.0),
        ([state(50)], 0.0),
        ([state(3, room=4.0), state(0, room=4.0)], 0.375),
        ([state(40, room=4.0), state(0, room=4.0)], 0.5),
        ([state(4, room=4.0), state(9)], 1.0),
        ([state(3, kv=0.5)], 0.5),
        ([state(0, kv=0.5)], 0.5),
        ([state(1, room=4.0, kv=1.0)], 0.25),
    ],
    ids=["nobody", "room not known", "half idle", "a line before one", "one not known", "kv", "kv of others", "room before kv"],
)
def test_load_is_the_share_of_the_room_that_is_known(states: list[TargetState], load: float) -> None:
    assert load_of(states) == load


@inside_loop
async def test_a_route_that_looks_at_nothing_pays_for_nothing(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *trio(server.url), route("r", "small"), domain("law", *LAW, models=["large"])) as gateway,
    ):
        record = await first(gateway, HARD["zh"], headers={"x-sits-domain": "nonsense"})
        conduct = gateway.node.service.table.conducts["r"]
        assert (record.wish, conduct.insight, record.target) == (None, None, "small")


DOMAINS = [
    domain("law", *LAW, labels={"size": "large"}),
    domain("code", "写一个快速排序", "修复这个错误", "fix this bug", "write a parser", models=["middle"]),
    domain("sport", "谁赢了比赛", "比分是多少", "who won the game", "what was the score"),
]


@pytest.mark.parametrize(
    ("said", "target", "leaning"),
    [
        ("law", "large", "domain law"),
        ("code", "middle", "domain code"),
        ("sport", "small", ""),
        ("unknown", "small", ""),
        (None, "small", ""),
    ],
    ids=["by labels", "by model", "preferring nobody", "unknown", "not said"],
)
@inside_loop
async def test_whom_a_domain_prefers_comes_first(said: str | None, target: str, leaning: str, tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *DOMAINS, *trio(server.url), route("r", ("small", 1e6), ("middle", 1e-6), ("large", 1e-6))) as gateway,
    ):
        record = await first(gateway, EASY["zh"], headers={} if said is None else {"x-sits-domain": said})
        assert record.target == target
        assert record.draw is not None
        assert record.draw.leaning == leaning
        # As long as the domains are being made, and where they cannot be, what nobody says is of no domain, not unknown.
        assert wished(record) == (said or "", "", None if said is None else 1.0)


@inside_loop
async def test_domain_and_complexity_lead_together_and_the_domain_alone_where_they_cannot(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path,
            *trio(server.url),
            labelled(model("clerk", server.url), of="law"),
            labelled(model("judge", server.url), of="law", size="large"),
            domain("law", *LAW, labels={"of": "law"}),
            route("r", "small", "middle", "large", "clerk", "judge", complexity={"tiers": TIERS}),
        ) as gateway,
    ):
        law = {"x-sits-domain": "law"}
        hard, easy = await first(gateway, HARD["en"], headers=law), await first(gateway, EASY["en"], headers=law)
        assert hard.draw is not None
        assert easy.draw is not None
        assert (hard.target, hard.draw.leaning) == ("judge", "domain law, complexity heavy")
        assert (easy.target in ("clerk", "judge"), easy.draw.leaning) == (True, "domain law")


@inside_loop
async def test_a_domain_that_is_not_declared_is_refused_with_the_nearest(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path,
            *DOMAINS,
            *trio(server.url),
            route("r", "small", "middle"),
            route("deaf", "middle", intent={"header": False}),
        ) as gateway,
    ):
        body, said = asked("chat", EASY["en"]), {"x-sits-domain": "cod"}
        wrong = await gateway.ask(PATHS["chat"], body, said)
        assert (wrong.status, wrong.code, wrong.json["error"]["param"]) == (400, "invalid_request", "x-sits-domain")
        assert 'did you mean "code"?' in wrong.json["error"]["message"]
        # Where clients are not to say it, what they say is nothing.
        assert wished(await first(gateway, EASY["en"], "deaf", said)) == ("", "", None)


@inside_loop
async def test_rules_go_by_how_hard_a_request_is(tmp_path: pathlib.Path) -> None:
    rules = [{"name": "hard", "match": {"complexity": ["heavy"]}, "backends": [{"model": "large"}]}]
    complexity = {"tiers": {"heavy": {"models": ["large"]}}}
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *trio(server.url), route("r", "small", "middle", rules=rules, complexity=complexity)) as gateway,
    ):
        for lang in ("en", "zh"):
            hard, middle = await first(gateway, HARD[lang]), await first(gateway, MIDDLE[lang])
            assert (hard.target, hard.rule, middle.rule) == ("large", "hard", "")
            assert middle.target in ("small", "middle")


@pytest.mark.parametrize("counted", [True, False], ids=["by its tokenizer", "estimated"])
@inside_loop
async def test_rules_go_by_the_tokens_of_a_prompt_counted_where_they_can_be(counted: bool, tmp_path: pathlib.Path) -> None:
    # 400 bytes are more than 100 tokens by any bound, and 80 by the tokenizer.
    text = "weather " * 50
    rules = [{"name": "long", "match": {"promptTokens": {"from": 100}}, "backends": [{"model": "large"}]}]
    tokenizer = {"tokenizer": {"source": f"file:{llama2()}", "waitMs": 20000, "fixed": 8}} if counted else {}
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path, model("small", server.url, **tokenizer), model("large", server.url), route("r", "small", rules=rules)
        ) as gateway,
    ):
        answer = await gateway.ask(PATHS["chat"], asked("chat", text))
        record = gateway.record(answer)
        assert record.wish is not None
        assert (record.target, record.rule) == (("small", "") if counted else ("large", "long"))
        assert 50 < record.wish.tokens < 100 if counted else record.wish.tokens >= 100


@inside_loop
async def test_requests_in_english_and_chinese_are_read_by_the_real_models(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = ("hello there", "tell me a joke", "what a nice day", "你好", "讲个笑话", "今天天气真好")
    monkeypatch.setattr(material, "background", lambda: tuple(Unasked(text, "en") for text in none))
    monkeypatch.setattr(material, "kinds", lambda: ())
    maths = ("solve this integral", "what is the square root of 17", "求这个积分", "十七的平方根是多少", "factor the polynomial")
    data_folder(tmp_path)
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path,
            *trio(server.url),
            domain("law", *LAW, models=["large"]),
            domain("maths", *maths, models=["middle"]),
            route("r", "small", "middle", "large", intent={"seconds": 10.0}),
        ) as gateway,
    ):
        intent = gateway.node.routing.intent
        await eventually(lambda: intent.status()["state"] == "ready", "both stages stand", 60.0)
        for text, name, target in (
            ("may I take my landlord to court?", "law", "large"),
            ("房东能不能被起诉", "law", "large"),
            ("计算这个函数的积分", "maths", "middle"),
        ):
            record = await first(gateway, text)
            wish = record.wish
            assert wish is not None
            assert (wish.domain, record.target) == (name, target)
            assert wish.confidence is not None
            assert f"domain {name} ({wish.confidence:.2f}, {wish.stage})" in explain(record)
            assert wish.stage in ("quick", "deep")
        await eventually(lambda: bool(intent.status()["indexed"]), "the examples are in the index")
        shown = await gateway.ask("/v1/admin/intent", {"text": "我可以起诉房东吗"})
        assert json.loads(shown.body)["domain"] == "law"


@inside_loop
async def test_a_body_that_only_its_own_server_can_read_is_counted_by_its_size(tmp_path: pathlib.Path) -> None:
    """A field that we have no word for passes through; a rule about its length must not make it an error."""
    long = {"name": "long", "match": {"promptTokens": {"from": 100}}, "backends": [{"model": "large"}]}
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("small", server.url), model("large", server.url), route("r", "small", rules=[long])) as gateway,
    ):
        for times, target in ((1, "small"), (200, "large")):
            strange = {"role": "user", "content": [{"type": "a part of tomorrow", "text": "word " * times}]}
            answer = await gateway.ask(PATHS["chat"], {"model": "r", "messages": [strange]})
            assert (answer.status, answer.headers["x-sits-target"]) == (200, target)
