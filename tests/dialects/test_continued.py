"""An answer whose targets break off: the client reads one whole answer, with no character lost and none doubled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.dialects.base import Identity
from sits.dialects.continued import LONGEST, Continued
from sits.inner.ask import Ask, Message, Operation, OutputFormat, Sampling, TextPart, Thinking, Tool
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Finish, Refusal, Started, Text, Usage

from .continued_kit import CLIENTS, PAIRS, PREFILLED, SERVERS, Exchange, Story, ask, event_ends, limited, read, served
from .wires import chunk, sse

NUMBERED = Story(tuple(f"{'' if n == 1 else ' '}w{n}" for n in range(1, 13)))
MIXED = Story(("数到", "三：", "一\n\n", "二", " \n", " e\u0301", "te\u0301 ", "  ", "👩‍🚀", "三", "。\u3000", "done "))
TOOL = Tool("look", "Look it up", {"type": "object", "properties": {"q": {"type": "string"}}})
STORIES = [pytest.param(NUMBERED, id="numbered"), pytest.param(MIXED, id="several scripts and spaces")]


def whole(story: Story, asked: Ask, server: str) -> bytes:
    return served(server, dialects.upstream(server).write(asked, "their-model"), story)


@pytest.mark.parametrize(("client", "server"), PAIRS)
@pytest.mark.parametrize("story", STORIES)
def test_an_answer_that_breaks_after_any_event_is_read_whole(client: Operation, server: str, story: Story) -> None:
    for end in [0, *event_ends(whole(story, ask(client), server))[:-1]]:
        exchange = Exchange(ask(client))
        exchange.run(server, story, until=end)
        had = exchange.so_far()
        assert story.text.startswith(had)
        if not exchange.legs[0].finished:
            exchange.run(server, story)
        answer = exchange.read()
        choice = answer.choices[0]
        assert (choice.text, choice.finish, list(answer.choices)) == (story.text, "stop", [0]), f"broken after {end} bytes"
        assert exchange.out.count(b": sits-continued") == (1 if had and len(exchange.legs) == 2 else 0)


@settings(max_examples=100, deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    others=st.lists(st.sampled_from(SERVERS), min_size=4, max_size=4),
    text=st.lists(
        st.sampled_from(["w", "1", "23", " ", "\n", "词", "\u3000", "e\u0301", "-", "👍🏽", ", "]), min_size=1, max_size=40
    ),
    cuts=st.lists(st.integers(0, 1500), max_size=4),
    step=st.integers(1, 400),
    echo=st.booleans(),
)
def test_however_often_and_wherever_it_breaks_no_character_is_lost_or_doubled(
    pair: tuple[Operation, str], others: list[str], text: list[str], cuts: list[int], step: int, echo: bool
) -> None:
    client, server = pair
    # The numbers make every beginning of the text unlike what follows it.
    story = Story(tuple(f"{piece}{n}" if n % 3 == 0 else piece for n, piece in enumerate(text)), ("hm",), echo=echo)
    exchange = Exchange(ask(client))
    plan = [(server, cut) for cut in cuts]
    for at, (each, until) in enumerate(plan):
        another = others[at] if client != "completions" else each
        exchange.run(another, story, until=until, step=step)
        assert story.text.startswith(exchange.so_far())
        if exchange.legs[-1].finished:
            break
    else:
        exchange.run(server, story, step=step)
    answer = exchange.read()
    assert (answer.choices[0].text, answer.choices[0].finish) == (story.text, "stop")
    assert [leg.fault for leg in exchange.legs] == [None] * len(exchange.legs)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_identity_of_the_answer_is_that_of_the_first_leg_with_content(client: Operation) -> None:
    exchange = Exchange(ask(client))
    exchange.run("tgi" if client == "completions" else "ollama", NUMBERED, until=0)
    first = whole(NUMBERED, ask(client), "vllm")
    exchange.run("vllm", NUMBERED, until=event_ends(first)[4])
    exchange.run("llamacpp", NUMBERED)
    rows = [json.loads(row[6:]) for row in exchange.out.split(b"\n") if row.startswith(b"data: {")]
    models = {row.get("model") or row.get("message", row.get("response", {})).get("model") for row in rows} - {None}
    assert models == {"served-by-vllm"}
    if client in ("chat", "completions"):
        assert len({(row["id"], row["created"]) for row in rows}) == 1
    assert exchange.continued.targets == ("vllm-2", "llamacpp-3")


@pytest.mark.parametrize("client", CLIENTS)
def test_the_seam_is_marked_by_a_comment_and_in_the_last_event_that_says_how_it_ended(client: Operation) -> None:
    exchange = Exchange(ask(client))
    exchange.run("vllm", NUMBERED, until=event_ends(whole(NUMBERED, ask(client), "vllm"))[5])
    seam = len(exchange.out)
    exchange.run("sglang", NUMBERED)
    assert exchange.out[seam:].startswith(b": sits-continued sglang-2\n\n")
    rows = [json.loads(row[6:]) for row in exchange.out.split(b"\n") if row.startswith(b"data: {")]
    marked = [row for row in rows if "sits_continued" in row.get("response", row)]
    assert [row.get("response", row)["sits_continued"] for row in marked] == [["sglang-2"]]
    [last] = marked
    ending: dict[Operation, Any] = {
        "chat": lambda row: row["choices"][0]["finish_reason"] == "stop",
        "completions": lambda row: row["choices"][0]["finish_reason"] == "stop",
        "responses": lambda row: row["type"] == "response.completed",
        "messages": lambda row: row["type"] == "message_delta",
    }
    assert ending[client](last)


def test_an_answer_that_did_not_break_has_no_mark() -> None:
    exchange = Exchange(ask())
    exchange.run("vllm", NUMBERED)
    assert b"sits" not in exchange.out


# Tool calls.


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
@pytest.mark.parametrize("text", [("Let me ", "see."), ()], ids=["after text", "alone"])
def test_a_tool_call_is_of_one_model_however_the_other_broke(client: Operation, server: str, text: tuple[str, ...]) -> None:
    story = Story(text, calls=2)
    asked = ask(client)  # TGI goes on with tools in the request from the beginning only
    for end in event_ends(whole(story, asked, server))[:-1]:
        exchange = Exchange(asked)
        exchange.run(server, story, until=end)
        if not exchange.legs[0].finished:
            assert b"look" not in exchange.out, "a call of a leg that may break is not given"
            exchange.run(server, story)
        choice = exchange.read().choices[0]
        calls = [(call.name, json.loads(call.arguments)) for call in choice.calls.values()]
        assert (choice.text, calls, choice.finish) == (story.text, [("look", {"q": "天气"})] * 2, "tool_calls")


def test_calls_are_thrown_away_with_their_leg_and_do_not_count_as_given() -> None:
    exchange = Exchange(ask(tools=(TOOL,)))
    story = Story((), calls=1)
    wire = served("vllm", dialects.upstream("vllm").write(exchange.ask, "m"), story)
    leg = exchange.run("vllm", story, until=event_ends(wire)[2])
    assert (exchange.out, leg.committed, leg.pieces, leg.finished) == (b"", False, 2, False)
    assert (exchange.continued.begun, exchange.continued.onset(True).mode) == (False, "first")


# Reasoning.


@pytest.mark.parametrize("server", [server for server in SERVERS if server != "tgi"])
@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
def test_the_client_reads_one_reasoning_and_one_text(client: Operation, server: str) -> None:
    story = Story(("w1", " w2", " w3"), ("think 想", " more"))
    for end in event_ends(whole(story, ask(client), server))[:-1]:
        exchange = Exchange(ask(client))
        exchange.run(server, story, until=end)
        given = exchange.so_far()
        if not exchange.legs[0].finished:
            exchange.run(server, story)
        choice = exchange.read().choices[0]
        assert choice.text == story.text
        assert "think 想 more".startswith(choice.reasoning)
        if given or not exchange.out.count(b"sits-continued"):
            assert choice.reasoning == "think 想 more"
        assert len(exchange.modes) == 1 or exchange.modes[1] in ("first", "anew", "prefill" if server != "openai" else "replay")


def test_reasoning_alone_is_no_text_to_go_on_from() -> None:
    story = Story(("w1",), ("hm", " hm"))
    exchange = Exchange(limited(ask(thinking=Thinking(effort="high")), 50))
    wire = whole(story, exchange.ask, "vllm")
    exchange.run("vllm", story, until=event_ends(wire)[1])
    assert (exchange.continued.onset(True).mode, exchange.continued.onset(False).mode) == ("anew", "anew")
    assert exchange.continued.next_ask(True) is exchange.ask
    exchange.run("openai", story)
    choice = exchange.read().choices[0]
    assert (choice.reasoning, choice.text) == ("hm", "w1")


def test_a_model_that_reasons_instead_of_going_on_is_no_use() -> None:
    exchange = Exchange(ask())
    exchange.run("vllm", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "vllm"))[3])
    before = exchange.out
    leg = exchange.leg("vllm")
    exchange.out += leg.feed(sse(chunk({"reasoning_content": " w4 w5"}), chunk({}, "stop")))
    assert exchange.out == before
    assert leg.fault is not None
    assert (leg.fault.code, leg.fault.remedy, leg.committed) == (Code.UPSTREAM_BROKEN, Remedy.TRY_ELSEWHERE, False)
    exchange.run("sglang", NUMBERED)
    assert exchange.read().choices[0].text == NUMBERED.text


# Asking anew.


def test_an_answer_asked_for_anew_is_held_against_what_the_client_has() -> None:
    exchange = Exchange(ask())
    exchange.run("openai", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "openai"))[4])
    had = exchange.out
    leg = exchange.run("openai", Story(("w1 w2 w", "5 w6")))
    assert exchange.out == had
    assert leg.fault is not None
    assert (leg.fault.code, leg.fault.remedy, leg.committed, leg.finished) == (
        Code.STREAM_BROKEN,
        Remedy.TRY_ELSEWHERE,
        False,
        False,
    )
    assert "differs after 7 of the 11 characters" in leg.fault.message
    short = exchange.run("openai", Story(("w1 w2",)))
    assert short.fault is not None
    assert "ends after 5 of the 11 characters" in short.fault.message
    exchange.run("openai", Story(("w1 w2 w3", " w4 w", "5")))
    assert exchange.modes == ["first", "replay", "replay", "replay"]
    assert exchange.read().choices[0].text == "w1 w2 w3 w4 w5"
    assert exchange.continued.targets == ("openai-1", "openai-4")


def test_an_answer_that_has_nothing_to_add_ends_the_stream() -> None:
    exchange = Exchange(ask())
    exchange.run("openai", Story(("w1", " w2")), until=event_ends(whole(Story(("w1", " w2")), ask(), "openai"))[2])
    leg = exchange.run("openai", Story(("w1 w2",)))
    assert (leg.fault, leg.finished, leg.committed, exchange.read().choices[0].text) == (None, True, False, "w1 w2")


def test_a_whole_answer_where_a_stream_was_asked_for_goes_on_as_well() -> None:
    exchange = Exchange(ask())
    exchange.run("openai", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "openai"))[4])
    leg = exchange.leg("openai")
    body = {"id": "x", "choices": [{"index": 0, "message": {"content": NUMBERED.text}, "finish_reason": "stop"}]}
    exchange.out += leg.whole(dialects.upstream("openai").whole(exchange.ask, json.dumps(body).encode()))
    assert (leg.fault, leg.finished, exchange.read().choices[0].text) == (None, True, NUMBERED.text)


# What cannot be continued.


def fed(asked: Ask, *events: Any) -> Continued:
    continued = Continued(asked, dialects.client(asked.operation))
    leg = continued.leg(dialects.upstream("vllm").decoder(asked), Identity("a", "m", 1), continued.onset(True))
    out: list[bytes] = []
    leg._take([Started(), *events], out)
    assert out
    return continued


@pytest.mark.parametrize(
    ("continued", "why"),
    [
        pytest.param(fed(ask(sampling=Sampling(n=2)), Text("a")), "more than one choice", id="n"),
        pytest.param(fed(ask("completions", prompts=("a", "b")), Text("a")), "more than one choice", id="several prompts"),
        pytest.param(fed(ask(), Refusal("I can")), "begun to refuse", id="a refusal"),
        pytest.param(fed(ask(), Text("a"), Finish("stop")), "it is complete", id="finished"),
        pytest.param(fed(ask(sampling=Sampling(logprobs=True)), Text("a")), "log probabilities", id="logprobs"),
        pytest.param(fed(ask(), Text("a" * (LONGEST + 1))), f"longer than {LONGEST} characters", id="too long"),
    ],
)
def test_what_cannot_be_continued_says_why(continued: Continued, why: str) -> None:
    for prefill in (True, False):
        with pytest.raises(SitsError, match=why) as caught:
            continued.next_ask(prefill)
        assert (caught.value.code, caught.value.remedy) == (Code.STREAM_BROKEN, Remedy.START_OVER)


def test_several_choices_are_given_as_long_as_nothing_breaks() -> None:
    exchange = Exchange(ask(sampling=Sampling(n=2)))
    leg = exchange.leg("vllm")
    wire = sse(chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({}, "stop"), done=False)
    exchange.out += leg.feed(wire)
    assert not leg.finished, "the other choice goes on"
    exchange.out += leg.feed(sse(chunk({"content": "c"}, index=1), chunk({}, "length", index=1))) + leg.close()
    assert {at: (choice.text, choice.finish) for at, choice in exchange.read().choices.items()} == {
        0: ("a", "stop"),
        1: ("bc", "length"),
    }


def test_of_two_targets_asked_at_once_the_one_with_content_first_has_the_answer() -> None:
    exchange = Exchange(ask())
    slow, fast = exchange.leg("vllm"), exchange.leg("llamacpp")
    wire = whole(NUMBERED, ask(), "vllm")
    assert slow.feed(wire[: event_ends(wire)[0]]) == b""
    exchange.out += fast.feed(wire)
    late = slow.feed(wire[event_ends(wire)[0] :])
    assert (late, slow.committed, slow.finished) == (b"", False, False)
    assert slow.fault is not None
    exchange.out += fast.close()
    assert exchange.read().choices[0].text == NUMBERED.text


def test_one_that_answers_when_another_has_begun_the_answer_is_too_late() -> None:
    exchange = Exchange(ask())
    _, onset = exchange.continued.write(dialects.upstream("vllm"), "m", prefill=True)
    exchange.run("llamacpp", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "llamacpp"))[4])
    identity = Identity("abc", "late", 1)
    late = exchange.continued.leg(dialects.upstream("vllm").decoder(ask()), identity, onset, target="late")
    assert late.feed(whole(NUMBERED, ask(), "vllm")) == b""
    assert (late.committed, late.fault is not None, exchange.continued.targets) == (False, True, ("llamacpp-1",))


# Finished, but the connection breaks.


@pytest.mark.parametrize(
    ("server", "mark"), [("vllm", b'"finish_reason": "stop"'), ("anthropic", b'"end_turn"'), ("ollama", b'"done": true')]
)
def test_a_connection_that_breaks_after_the_finish_does_no_harm(server: str, mark: bytes) -> None:
    exchange = Exchange(ask())
    wire = whole(NUMBERED, ask(), server)
    ends = event_ends(wire)
    leg = exchange.run(server, NUMBERED, until=next(end for end in ends if mark in wire[:end]))
    assert (leg.finished, leg.fault) == (True, None)
    assert exchange.read().choices[0].finish == "stop"


def test_usage_that_follows_the_finish_is_read() -> None:
    exchange = Exchange(ask())
    leg = exchange.run("vllm", NUMBERED, step=40)
    assert (leg.usage, exchange.read().usage) == (Usage(input=9, output=12), Usage(input=9, output=12))


def test_an_error_in_band_after_the_finish_is_nobodys_loss() -> None:
    exchange = Exchange(ask())
    leg = exchange.leg("vllm")
    exchange.out += leg.feed(sse(chunk({"content": "a"}), chunk({}, "stop"), {"error": {"message": "no"}}, done=False))
    exchange.out += leg.close()
    assert (leg.fault, leg.finished, exchange.read().choices[0].text) == (None, True, "a")


def test_an_error_in_band_before_it_breaks_the_leg_but_not_the_answer() -> None:
    exchange = Exchange(ask())
    leg = exchange.leg("vllm")
    exchange.out += leg.feed(sse(chunk({"content": "w1"}), {"error": {"message": "engine died"}}, chunk({"content": " w2"})))
    assert leg.fault is not None
    assert (leg.fault.code, leg.committed, exchange.so_far()) == (Code.UPSTREAM_ERROR, True, "w1")
    assert (leg.feed(sse(chunk({"content": "x"}))), leg.close()) == (b"", b"")
    exchange.run("llamacpp", Story(("w1", " w2")))
    assert exchange.read().choices[0].text == "w1 w2"


# Usage.


def test_the_client_is_told_the_tokens_of_the_answer_and_each_leg_keeps_its_own() -> None:
    exchange = Exchange(ask("messages"))
    exchange.run("anthropic", NUMBERED, until=event_ends(whole(NUMBERED, ask("messages"), "anthropic"))[6])
    exchange.run("vllm", NUMBERED)
    assert [leg.usage for leg in exchange.legs] == [Usage(input=9), Usage(input=9, output=7)]
    last = [json.loads(row[6:]) for row in exchange.out.split(b"\n") if row.startswith(b"data: {")][-2]
    # Five pieces were counted of the leg that broke, seven tokens were said by the other.
    assert last["usage"] == {"input_tokens": 9, "output_tokens": 12, "sits_estimated": True}
    chat = Exchange(ask())
    chat.run("vllm", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "vllm"))[5])
    chat.run("vllm", NUMBERED)
    *_, told = [json.loads(row[6:]) for row in chat.out.split(b"\n") if row.startswith(b"data: {")]
    # The second leg's prompt of 9 tokens held the five that the client had.
    assert told["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16, "sits_estimated": True}


def test_an_answer_asked_for_anew_has_its_own_figures() -> None:
    exchange = Exchange(ask())
    exchange.run("openai", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "openai"))[5])
    exchange.run("openai", NUMBERED)
    assert exchange.read().usage == Usage(input=9, output=12)
    assert b"sits_estimated" not in exchange.out


@pytest.mark.parametrize(("limit", "left"), [(100, 96), (5, 1), (2, 1)])
def test_what_has_been_said_is_taken_from_the_limit(limit: int, left: int) -> None:
    exchange = Exchange(limited(ask(), limit))
    exchange.run("vllm", NUMBERED, until=event_ends(whole(NUMBERED, ask(), "vllm"))[4])
    assert exchange.continued.next_ask(True).sampling.max_tokens == left
    assert exchange.continued.next_ask(False).sampling.max_tokens == limit


def test_space_that_will_be_said_again_is_not_spent() -> None:
    continued = fed(limited(ask(), 10), Text("one."), Text("\n\n"), Text(" "))
    assert continued.next_ask(True).sampling.max_tokens == 9
    assert continued.next_ask(True).prefix == "one."


# The request to the next target.


def begun(asked: Ask, text: str) -> Continued:
    return fed(asked, Text(text))


def body(continued: Continued, server: str) -> dict[str, Any]:
    prepared, _ = continued.write(dialects.upstream(server), "m", prefill=True)
    value: dict[str, Any] = json.loads(prepared.body)
    return value


SO_FAR = {"role": "assistant", "content": "一、二、"}


@pytest.mark.parametrize("server", PREFILLED)
@pytest.mark.parametrize("operation", ["chat", "responses", "messages"])
def test_the_text_so_far_is_the_last_message_without_space_at_its_end(server: str, operation: Operation) -> None:
    found = body(begun(ask(operation), "一、二、 \n"), server)
    assert found["messages"][-1] == SO_FAR
    asked_for = {key: found.get(key) for key in ("continue_final_message", "add_generation_prompt")}
    if server in ("vllm", "sglang", "llamacpp", "local"):
        assert asked_for == {"continue_final_message": True, "add_generation_prompt": False}
        assert found["chat_template_kwargs"] == {"enable_thinking": False}
    else:
        assert asked_for == {"continue_final_message": None, "add_generation_prompt": None}


def test_anthropic_gets_no_space_at_the_end_whoever_wrote_the_request() -> None:
    prepared = dialects.upstream("anthropic").write(ask(prefix="一、二、\u3000\n"), "m")
    assert json.loads(prepared.body)["messages"][-1] == SO_FAR
    blank = dialects.upstream("anthropic").write(ask(prefix=" \n"), "m")
    assert [message["role"] for message in json.loads(blank.body)["messages"]] == ["user"]


def test_a_model_goes_on_without_reasoning_again() -> None:
    asked = ask(thinking=Thinking(budget_tokens=2000))
    assert "thinking" not in body(begun(asked, "a"), "anthropic")
    assert body(begun(asked, "a"), "ollama")["think"] is False
    assert "reasoning_effort" not in body(begun(asked, "a"), "vllm")
    own = ask("messages", thinking=Thinking(budget_tokens=2000), extra={"thinking": {"type": "enabled", "budget_tokens": 2000}})
    assert "thinking" not in body(begun(own, "a"), "anthropic")


@pytest.mark.parametrize("server", ["anthropic", "ollama", "tgi", "llamacpp"])
def test_what_the_client_began_itself_belongs_to_the_text(server: str) -> None:
    messages = (Message("user", (TextPart("q"),)), Message("assistant", (TextPart("Sure: "),)))
    found = body(begun(ask(messages=messages), "一、"), server)
    assert [message["content"] for message in found["messages"]] == ["q", "Sure: 一、"]


def test_to_vllm_it_is_a_turn_of_its_own_unless_the_client_had_it_gone_on_with() -> None:
    messages = (Message("user", (TextPart("q"),)), Message("assistant", (TextPart("Sure: "),)))
    apart = body(begun(ask(messages=messages), "一、"), "vllm")
    assert [message["content"] for message in apart["messages"]] == ["q", "Sure: ", "一、"]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    joined = body(begun(ask(messages=messages, extra=extra), "一、"), "vllm")
    assert [message["content"] for message in joined["messages"]] == ["q", "Sure: 一、"]


@pytest.mark.parametrize("server", ["vllm", "llamacpp", "openai", "ollama", "tgi"])
def test_a_completion_has_it_at_the_end_of_its_prompt(server: str) -> None:
    found = body(begun(ask("completions", prompts=("One,",)), " two, "), server)
    assert found.get("prompt", found.get("inputs")) == "One, two,"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(ask("completions", prompts=((1, 2),)), id="token ids"),
        pytest.param(ask("completions", extra={"echo": True}), id="echo"),
        pytest.param(ask("completions", extra={"guided_json": {"type": "object"}}), id="a grammar"),
    ],
)
def test_a_completion_that_cannot_be_grown_is_asked_for_anew(asked: Ask) -> None:
    continued = begun(asked, "a")
    assert continued.onset(True).mode == "replay"
    assert continued.next_ask(True) is asked


@pytest.mark.parametrize("server", ["vllm", "sglang", "anthropic", "ollama", "tgi", "openai"])
def test_half_a_json_text_is_asked_for_anew_where_a_grammar_would_begin_again(server: str) -> None:
    asked = ask(output=OutputFormat("json_schema", "a", {"type": "object"}))
    prepared, onset = begun(asked, '{"a": ').write(dialects.upstream(server), "m", prefill=True)
    assert (onset.mode, json.loads(prepared.body)["messages"][-1]["role"]) == ("replay", "user")


def test_llamacpp_goes_on_in_the_middle_of_json() -> None:
    asked = ask(output=OutputFormat("json_schema", "a", {"type": "object"}))
    _, onset = begun(asked, '{"a": ').write(dialects.upstream("llamacpp"), "m", prefill=True)
    assert onset.mode == "prefill"


@pytest.mark.parametrize(("server", "prefill", "tools"), [("openai", True, ()), ("vllm", False, ()), ("tgi", True, (TOOL,))])
def test_a_server_that_has_no_word_for_it_is_asked_anew(server: str, prefill: bool, tools: tuple[Tool, ...]) -> None:
    continued = begun(ask(tools=tools), "a")
    prepared, onset = continued.write(dialects.upstream(server), "m", prefill=prefill)
    assert (onset.mode, json.loads(prepared.body)["messages"][-1]["role"]) == ("replay", "user")


def test_a_dialect_without_a_word_for_it_says_so() -> None:
    with pytest.raises(SitsError) as caught:
        dialects.upstream("openai").write(ask(prefix="a"), "m")
    assert caught.value.code is Code.UNSUPPORTED


def test_a_request_that_no_leg_has_answered_is_what_the_client_asked() -> None:
    asked = ask()
    continued = Continued(asked, dialects.client("chat"))
    assert (continued.onset(True).mode, continued.next_ask(True) is asked, continued.text, continued.begun) == (
        "first",
        True,
        "",
        False,
    )


def test_a_stream_read_back_has_a_terminator() -> None:
    with pytest.raises(AssertionError, match="no terminator"):
        read("chat", sse(chunk({"content": "a"}), done=False))
