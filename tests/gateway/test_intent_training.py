"""Intents trained in a node: anew behind each change of the domains, bounded in time, and never why a request fails."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from embedding_kit import BACKGROUND, BOTH, LAW, MATHS, House, chat, domain, ready, shrink, snapshot, story, until

from sits.engines.local.engine import LocalModels, local_engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.connection import AnswerLimits
from sits.engines.remote.engine import RemoteEngine
from sits.gateway.drive import Drive
from sits.gateway.embedding import BuiltIn
from sits.gateway.intent_classifier import NOTHING, said_domain
from sits.gateway.intent_training import AGAIN_SECONDS, IntentTraining
from sits.gateway.substituting import embedding_model
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.ports.vectors import open_vectors
from sits.resources.kinds import PoolSpec
from sits.routing.intent.verdict import Verdict
from sits.state.intent import building

MODELS = Path(os.environ.get("SITS_TEST_MODELS", Path(__file__).parents[2] / ".cache" / "models"))


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_no_domain_costs_nothing_and_says_nothing(house: House) -> None:
    async def play() -> None:
        node = house.node()
        node.apply(snapshot())
        assert node.classifier.look(chat("can I sue"), "chat") is NOTHING
        assert await node.classifier.read(chat("can I sue"), "chat", 1.0) is NOTHING
        assert (node.classifier.active, node.engines(), node.status()["state"], house.server.texts) == (False, [], "none", [])
        await node.aclose()

    story(play)


def test_requests_are_read_by_the_domains_that_are_declared(house: House) -> None:
    async def play() -> None:
        node = house.node()
        node.apply(BOTH)
        assert node.status()["state"] == "building"
        assert node.classifier.look(chat(LAW[0]), "chat") is NOTHING
        await ready(node)
        for text, wanted in ((LAW[0], "law"), (MATHS[2], "maths"), (BACKGROUND[4], None)):
            verdict = await node.classifier.read(chat(text), "chat", 10.0)
            assert (verdict.domain, 0 < verdict.confidence <= 1) == (wanted, True)
            assert node.classifier.look(chat(text), "chat") == verdict
        assert await node.classifier.read(b'{"model": "m"}', "chat", 1.0) is NOTHING
        status = node.status()
        assert (status["state"], status["trouble"], status["domains"]) == ("ready", "", ["law", "maths"])
        assert (status["declared"], status["examples"], status["index"]) == (["law", "maths"], 20, "heads")
        counts = status["verdicts"]
        assert (counts["quick"] + counts["deep"], counts["kept"], counts["shed"]) == (3, 3, 0)
        assert status["tuning"]["safe"] > 0
        assert len(node.engines()) == 1
        await node.aclose()

    story(play)


def test_the_nearest_examples_tell_what_a_verdict_goes_by(house: House) -> None:
    async def play() -> None:
        node = house.node()
        with pytest.raises(SitsError, match="no examples to compare with: none") as caught:
            await node.classifier.nearest("x")
        assert caught.value.code is Code.NOT_FOUND
        node.apply(BOTH)
        await ready(node)
        found = await node.classifier.nearest(LAW[2], 3)
        assert [one.domain for one in found] == ["law"] * 3
        assert (found[0].text, found[0].cosine) == (LAW[2], pytest.approx(1.0, abs=1e-5))
        await node.aclose()

    story(play)


def test_a_change_of_domains_takes_over_when_it_is_ready_and_embeds_only_what_is_new(house: House) -> None:
    async def play() -> None:
        node = house.node()
        node.apply(BOTH)
        await ready(node)
        first = len(house.server.texts)
        node.apply(snapshot(domain("maths", *MATHS), domain("law", *LAW)))
        assert node.status()["state"] == "ready"
        house.server.hold = asyncio.Event()
        node.apply(snapshot(domain("law", *LAW), domain("maths", *MATHS, "how many degrees has a triangle")))
        assert (node.status()["state"], node.classifier.active) == ("building", True)
        assert node.classifier.look(chat(LAW[0]), "chat") is not NOTHING
        house.server.hold.set()
        await ready(node)
        assert house.server.texts[first:] == ["how many degrees has a triangle"]
        assert node.status()["examples"] == 21
        node.apply(snapshot())
        await until(lambda: not node.classifier.active)
        assert node.classifier.look(chat(LAW[0]), "chat") is NOTHING
        await node.aclose()

    story(play)


def test_a_restart_embeds_nothing_anew(house: House) -> None:
    async def play() -> None:
        first = house.node()
        first.apply(BOTH)
        await ready(first)
        await first.aclose()
        asked = len(house.server.texts)
        second = house.node()
        second.apply(BOTH)
        await ready(second)
        assert len(house.server.texts) == asked == 20
        await second.aclose()

    story(play)


ENGLISH = snapshot(
    domain("law", "can I sue my landlord", "is this contract valid", "who pays the damages", "must I go to court"),
    domain("maths", "solve this integral", "factor the polynomial", "what is the square root of 17", "add these fractions"),
)


def test_the_quick_stage_stands_while_the_examples_are_embedded(house: House) -> None:
    async def play() -> None:
        house.server.hold = asyncio.Event()
        node = house.node()
        node.apply(ENGLISH)
        await until(lambda: node.status()["state"] == "quick" and node.status()["embedded"]["of"] > 0)
        found = node.classifier.look(chat("can I sue my landlord"), "chat")
        assert found is not None
        assert (found.domain, found.stage, node.classifier.active) == ("law", "quick", True)
        # No domain has an example in Chinese: nothing is known, which is not the same as of none.
        assert node.classifier.look(chat("我能起诉房东吗"), "chat") == Verdict(None, 0.0, "quick", "law")
        assert node.status()["embedded"] == {"done": 0, "of": 16}
        assert node.status()["domains"] == ["law", "maths"]
        assert node.status()["verdicts"]["deep"] == 0
        house.server.hold.set()
        await ready(node)
        assert node.status()["embedded"] == {"done": 16, "of": 16}
        verdict = await node.classifier.read(chat("can I sue my landlord"), "chat", 10.0)
        assert (verdict.domain, verdict.confidence > 0) == ("law", True)
        await node.aclose()

    story(play)


def test_what_one_worker_fitted_the_others_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Any] = []
    fit = building.fit_apart

    async def counted(task: Any, told: Any) -> bytes:
        fitted.append(task)
        return await fit(task, told)

    monkeypatch.setattr(building, "fit_apart", counted)

    async def play() -> None:
        nodes = [house.node(), house.node()]
        for node in nodes:
            node.apply(BOTH)
        for node in nodes:
            await ready(node)
        late = house.node()
        late.apply(BOTH)
        await ready(late)
        assert len(fitted) == 1
        said = [await node.classifier.read(chat(LAW[0]), "chat", 10.0) for node in (*nodes, late)]
        assert said[0] == said[1] == said[2]
        for node in (*nodes, late):
            await node.aclose()

    story(play)


def test_where_the_model_does_not_answer_in_time_the_quick_verdict_stands_for_an_exchange_too(house: House) -> None:
    async def play() -> None:
        node = house.node()
        node.apply(BOTH)
        await ready(node)
        house.server.hold = asyncio.Event()
        unsure = "zzz qqq"
        assert node.classifier.look(chat(unsure), "chat") is None
        found: list[Verdict] = []

        async def exchange() -> None:
            found.append(await node.classifier.read(chat(unsure), "chat", 0.01))

        drive = Drive(exchange())
        assert not drive.done
        await until(lambda: drive.done)
        assert (found[0].stage, node.status()["verdicts"]["shed"]) == ("quick", 1)
        house.server.hold.set()
        await until(lambda: node.classifier.look(chat(unsure), "chat") is not None)
        kept = node.classifier.look(chat(unsure), "chat")
        assert kept is not None
        assert kept.stage == "deep"
        await node.aclose()

    story(play)


def test_what_goes_wrong_is_said_and_tried_again(house: House) -> None:
    async def play() -> None:
        house.server.fault = SitsError(Code.MODEL_UNAVAILABLE, "no model here")
        node = house.node()

        def mend() -> None:
            assert (node.status()["state"], node.status()["trouble"]) == ("quick", "no model here")
            assert node.classifier.look(chat(LAW[0]), "chat") is not None
            if len(house.slept) == len(AGAIN_SECONDS) + 1:
                house.server.fault = None

        house.again = mend
        node.apply(BOTH)
        await ready(node)
        assert house.slept == [*AGAIN_SECONDS, AGAIN_SECONDS[-1]]
        assert (node.status()["state"], node.status()["trouble"]) == ("ready", "")
        await node.aclose()

    story(play)


def test_an_index_that_is_away_is_no_reason_not_to_read(house: House) -> None:
    async def play() -> None:
        house.vectors.away = True
        node = house.node()
        seen: list[tuple[str, str]] = []

        def mend() -> None:
            seen.append((node.status()["state"], node.status()["trouble"]))
            house.vectors.away = False

        house.again = mend
        node.apply(BOTH)
        await ready(node)
        assert seen == [("ready", "the vectors in memory are away")]
        assert node.status()["trouble"] == ""
        await node.aclose()

    story(play)


def test_the_base_install_goes_on_without_and_says_what_is_missing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SitsError(Code.UNSUPPORTED, "reading what requests want needs wordllama: pip install 'sits[local]'")

    def none() -> None:
        raise missing

    monkeypatch.setattr(building, "load_quick", none)

    async def play() -> None:
        node = house.node()
        node.apply(BOTH)
        await until(lambda: node.status()["state"] == "failed")
        assert (node.status()["trouble"], house.slept) == (missing.message, [])
        assert await node.classifier.read(chat(LAW[0]), "chat", 1.0) is NOTHING
        await node.aclose()

    story(play)


def test_votes_of_the_index_decide_where_it_is_said_and_heads_until_it_is_there(house: House) -> None:
    async def play() -> None:
        node = house.node(index="vectors")
        node.apply(BOTH)
        await ready(node)
        assert node.status()["index"] == "vectors"
        # What the index says counts: it is told that everything is of maths.
        hits = house.vectors.search

        async def search(*given: Any, **more: Any) -> Any:
            return [type(hit)(hit.id, 0.9, {**hit.fields, "domain": "maths"}) for hit in await hits(*given, **more)]

        unsure = "zzz qqq"
        before = await node.classifier.read(chat(unsure), "chat", 10.0)
        house.vectors.search = search  # type: ignore[method-assign]
        after = await node.classifier.read(chat("qqq zzz"), "chat", 10.0)
        assert (before.stage, after.stage, after.nearest) == ("deep", "deep", "maths")
        await node.aclose()

    story(play)


def test_closing_while_it_is_made_ends_it(house: House) -> None:
    async def play() -> None:
        house.server.hold = asyncio.Event()
        node = house.node()
        node.apply(BOTH)
        await asyncio.sleep(0)
        await node.aclose()
        await node.aclose()
        assert not [task for task in asyncio.all_tasks() if task.get_name() in ("intent-training", "intent")]

    story(play)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, None),
        ({b"x-sits-domain": b"law"}, "law"),
        ({b"x-sits-domain": " 法律 ".encode()}, "法律"),
        ({b"x-sits-domain": b"unknown"}, "unknown"),
    ],
    ids=["nothing", "a domain", "Chinese", "unknown"],
)
def test_a_client_says_its_domain_itself(headers: dict[bytes, bytes], said: str | None) -> None:
    assert said_domain(headers, {"law": 1, "法律": 2}) == said


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"laws", 'no domain is called "laws"; did you mean "law"?'),
        (b"\xff\x00", "no domain is called"),
        (b"", 'no domain is called ""'),
    ],
    ids=["near", "bytes", "empty"],
)
def test_a_domain_that_is_not_declared_is_refused_with_the_nearest(value: bytes, message: str) -> None:
    with pytest.raises(SitsError) as caught:
        said_domain({b"x-sits-domain": value}, ["law"])
    assert caught.value.message.startswith(message)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "x-sits-domain")


def test_the_real_model_reads_english_and_chinese(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (data / "models").symlink_to(MODELS)

    async def play() -> None:
        loop, sweep = asyncio.get_running_loop(), Sweep()

        def child(address: str) -> RemoteEngine:
            limits = AnswerLimits(ends_with_stream=True)
            return RemoteEngine(parse_address(address), sweep=sweep, loop=loop, pool=PoolSpec(), limits=limits)

        models = LocalModels(data, child)
        engine = local_engine(embedding_model(), models)
        node = IntentTraining(data, lambda: BuiltIn(lambda: engine), lambda: open_vectors("embedded", data))
        try:
            node.apply(BOTH)
            await until(lambda: node.status()["state"] in ("ready", "failed"))
            assert node.status()["trouble"] == ""
            await ready(node)
            for text, wanted in (("may I take my landlord to court?", "law"), ("计算这个函数的积分", "maths")):
                verdict = await node.classifier.read(chat(text), "chat", 10.0)
                assert verdict.nearest == wanted
            found = await node.classifier.nearest("我可以告房东吗", 1)
            assert (found[0].domain, found[0].text) == ("law", "我能起诉房东吗")
        finally:
            await node.aclose()
            await engine.aclose()
            await models.aclose()

    story(play)


def test_a_change_says_how_far_it_is_and_by_what_requests_are_read_meanwhile(house: House) -> None:
    async def play() -> None:
        house.server.hold = asyncio.Event()
        node = house.node()
        assert (node.making(), node.brief()["state"]) == ("", "none")
        node.apply(ENGLISH)
        await until(lambda: node.status()["state"] == "quick" and node.status()["embedded"]["of"] > 0)
        assert node.making() == "0 of 16 examples embedded; the quick stage reads alone"
        house.server.hold.set()
        await ready(node)
        house.server.hold = asyncio.Event()
        node.apply(BOTH)
        await until(lambda: node.status()["embedded"]["of"] > 0)
        assert "of 20 examples embedded; requests are read by the 2 domains before" in node.making()
        house.server.hold.set()
        await ready(node)
        assert node.brief() == {"state": "ready", "unwell": "", "making": "", "declared": 2, "in_force": 2}
        await node.aclose()

    story(play)


def test_a_text_is_embedded_once_for_its_verdict_and_its_nearest_examples(house: House) -> None:
    async def play() -> None:
        node = house.node()
        node.apply(BOTH)
        await ready(node)
        before = len(house.server.texts)
        # No domain has a Chinese example: the quick stage says nothing.
        text = "房东不退押金怎么办"
        assert (await node.classifier.read(chat(text), "chat", 10.0)).stage == "deep"
        assert len(await node.classifier.nearest(text, 3)) == 3
        assert house.server.texts[before:] == [text]
        await node.aclose()

    story(play)


def test_a_model_that_hangs_from_the_start_is_told_though_another_reason_is_older(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        now = [100.0]
        house.server.fault = SitsError(Code.UPSTREAM_ERROR, "no model here")
        house.server.hold = asyncio.Event()
        house.server.hold.set()

        def hang() -> None:
            house.server.fault, house.server.hold = None, asyncio.Event()

        house.again = hang
        node = house.node(clock=lambda: now[0])
        with caplog.at_level("INFO", logger="sits.intent"):
            node.apply(BOTH)
            await until(lambda: house.slept != [])
            await until(lambda: any(pulse._asked for pulse in node._pulses.values()))
            assert node.unwell() == "no model here"
            now[0] += 2.0
            node.tick()
            assert node.brief()["unwell"] == node.status()["trouble"] == "multilingual-e5-small has not answered for 2.0 s"
            assert house.server.hold is not None
            house.server.hold.set()
            await ready(node)
            node.tick()
        said = "the domains that are declared cannot be put in force yet"
        lines = [record.getMessage() for record in caplog.records if said in record.getMessage()]
        assert (node.unwell(), lines) == ("", [f"{said}: no model here", f"that is mended: {said}"])
        await node.aclose()

    story(play)
