"""A folder of plugins: what is taken, what is refused and why, and what happens when files change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from pathlib import Path

import pytest
import uvloop

from sits.routing.plugins.fence import TROUBLES
from sits.routing.scheduling.base import Made
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.state.plugins import plugins as room
from sits.state.plugins.alarm import SignalAlarm
from sits.state.plugins.plugins import Plugins

BUILTIN = {"filter": frozenset(FILTERS), "score": frozenset(SCORES)}
GOOD = """
from sits.routing.scheduling.base import Score
class Mine(Score):
    name = "@NAME@"
    def __init__(self, made):
        self.points = float(made.settings.get("points", @POINTS@))
    def score(self, facts, candidates):
        return [self.points] * len(candidates)
"""


TAGS = """
from sits.routing.scheduling.base import Filter
class Tags(Filter):
    name = "tags"
    def __init__(self, made):
        pass
    def asks(self, facts):
        return [one for one in ("gpu", "cpu") if one]
    def keep(self, facts, candidate):
        return ""
"""


def good(name="mine", points="1.0"):
    return GOOD.replace("@NAME@", name).replace("@POINTS@", points)


class Folder:
    """A folder, and what looks at it."""

    def __init__(self, path: Path, **more) -> None:
        self.path = path
        self.changes = 0
        self.wall = 1_800_000_000.0
        self.now = 100.0
        self.plugins = Plugins(
            path, BUILTIN, changed=self._changed, clock=lambda: self.now, wall=lambda: self.wall + self.now, **more
        )

    def _changed(self) -> None:
        self.changes += 1

    def write(self, file: str, text: str) -> bool:
        (self.path / file).write_text(text, encoding="utf-8")
        return self.plugins.look()

    def states(self):
        return {(row["name"], row["state"]): row["why"] for row in self.plugins.status()}

    def problems(self):
        return [f"{where}: {why}" for _, _, where, why in self.plugins.broken()]

    def says(self, name="mine"):
        candidates = candidates_of(2)
        return list(self.plugins.scores[name](made_for(candidates, {})).score(facts_of(0), candidates))


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path)
    made.plugins.start()
    yield made
    made.plugins.close()


def ours():
    return sorted(name for name in sys.modules if name.startswith("sits_plugin_"))


@pytest.fixture(autouse=True)
def alone():
    """Without what a gateway of another test in this process has left loaded when it ended."""
    for name in ours():
        del sys.modules[name]


def test_a_file_that_is_put_there_is_in_force_at_once(folder):
    assert folder.plugins.scores == {}
    assert folder.write("mine.py", good())
    assert (folder.plugins.generation, folder.changes, folder.says()) == (1, 1, [1.0, 1.0])
    assert not folder.plugins.look()
    assert folder.plugins.status() == [
        {
            "name": "mine",
            "kind": "score",
            "source": str(folder.path / "mine.py"),
            "state": "live",
            "why": "",
            "stale": False,
            "version": hashlib.sha256(good().encode()).hexdigest()[:12],
            "calls": 1,
            "troubles": {},
            "mean_us": 0.0,
            "max_us": 0.0,
            "since": 1_800_000_100.0,
        }
    ]
    assert folder.problems() == []


def test_a_file_that_changes_is_replaced_its_figures_begin_anew_and_its_counters_go_on(folder):
    folder.write("mine.py", good())
    folder.says()
    folder.now += 60.0
    folder.write("mine.py", good(points="22.0"))
    assert folder.says() == [22.0, 22.0]
    assert [(row["calls"], row["since"]) for row in folder.plugins.status()] == [(1, 1_800_000_160.0)]
    assert [value for name, _, value in folder.plugins.metrics() if name == "sits_plugin_calls_total"] == [2.0]
    assert folder.plugins.generation == 2


def test_one_that_was_fenced_off_is_back_when_its_file_is_repaired(folder):
    folder.write("mine.py", good().replace("return", "assert facts.key != 'bad', '不行'; return"))
    candidates, facts = candidates_of(2), facts_of(0)
    facts.key = "bad"
    score = folder.plugins.scores["mine"](made_for(candidates, {}))
    for _ in range(3):
        score.score(facts, candidates)
    assert folder.states() == {("mine", "fenced"): "raised AssertionError: 不行 (mine.py, line 8)"}
    folder.write("mine.py", good(points="5.0"))
    assert folder.states() == {("mine", "live"): ""}
    for _ in range(3):
        score.score(facts, candidates)  # a request that began before goes on with the old one: that is not held against the new
    assert (folder.says(), folder.states()) == ([5.0, 5.0], {("mine", "live"): ""})


BROKEN = [
    pytest.param("def (", "raised SyntaxError: invalid syntax (mine.py, line 1)", id="a syntax error"),
    pytest.param(
        "import not_there", "raised ModuleNotFoundError: No module named 'not_there' (mine.py, line 1)", id="an import error"
    ),
    pytest.param("raise SystemExit(1)", "raised SystemExit: 1 (mine.py, line 1)", id="an exit"),
    pytest.param("x = 1", "declares no class that derives from Filter or Score and has a `name`", id="no plugin"),
    pytest.param("\0", "raised ", id="no text"),  # ValueError in early versions of Python 3.11, SyntaxError in later ones
    pytest.param(good("a b"), "class Mine: `name` cannot be written in a route", id="a name that no route can write"),
    pytest.param(good("latency"), "declares score latency, and there is a built-in one of that name", id="a built-in name"),
    pytest.param(good() + good().replace("class Mine", "class Other"), "declares score mine twice", id="one name twice"),
    pytest.param(good().replace("* len(candidates)", ""), "score mine gave 1 numbers for 8 candidates", id="nonsense"),
    pytest.param(
        good().replace("def __init__", "varies = 'often'\n    def __init__"),
        "score mine cannot be made: raised TypeError: varies is never, tick or request, not 'often'",
        id="varies of its own",
    ),
    pytest.param("#" * 2_000_000, "has more than 1024 KiB", id="too large"),
    pytest.param(
        good().replace("def score", "@property\n    def score(self): return self.table\n    def other"),
        "score mine cannot be made: raised AttributeError: 'Mine' object has no attribute 'table' (mine.py, line 8)",
        id="an attribute that raises",
    ),
    pytest.param(
        good().replace("def score", "varies = property(lambda self: int('x'))\n    def score"),
        "score mine cannot be made: raised ValueError: invalid literal for int() with base 10: 'x' (mine.py, line 7)",
        id="an attribute that is no setting",
    ),
    pytest.param(
        TAGS, "filter tags asks gave a list instead of True or False", id="a filter that is asked whether and says what"
    ),
    pytest.param(good() + "del __name__", "raised ", id="a module without a name"),
]


@pytest.mark.parametrize(("text", "why"), BROKEN)
def test_what_cannot_be_used_is_shown_and_nothing_of_it_is_left(folder, text, why):
    before = ours()
    assert not folder.write("mine.py", text)
    assert list(folder.states()) == [("mine", "failed")]
    assert folder.states()["mine", "failed"].startswith(why)
    assert (folder.plugins.scores, folder.plugins.generation, ours()) == ({}, 0, before)


@pytest.mark.parametrize(("text", "why"), BROKEN)
def test_the_version_before_stays_in_force(folder, text, why):
    folder.write("mine.py", good())
    module = ours()
    assert not folder.write("mine.py", text)
    assert (folder.says(), ours(), folder.plugins.generation) == ([1.0, 1.0], module, 1)
    row = folder.plugins.status()[0]
    assert (row["state"], row["stale"]) == ("live", True)
    assert row["why"].startswith(f"the file as it is now {why}")
    [problem] = folder.problems()
    assert problem.startswith(f"{folder.path / 'mine.py'}: {why}")
    assert problem.endswith("; the version before stays")
    folder.write("mine.py", good(points="2.0"))
    assert (folder.says(), folder.states(), folder.problems()) == ([2.0, 2.0], {("mine", "live"): ""}, [])


@pytest.mark.parametrize("text", ["import threading; threading.Event().wait()", "while True: pass"], ids=["waits", "spins"])
def test_an_import_that_does_not_end_is_cut(tmp_path, monkeypatch, text):
    monkeypatch.setattr(room, "LOAD", 0.1)
    alarm = SignalAlarm()
    try:
        folder = Folder(tmp_path, alarm=alarm)
        folder.write("mine.py", text)  # neither would end by itself
        assert folder.states() == {("mine", "failed"): "was cut: it did not load within 0.1 s"}
    finally:
        alarm.close()


def test_a_file_that_is_removed_is_gone_and_routes_go_on_without(folder):
    folder.write("mine.py", good())
    assert (folder.plugins.gone("score", "mine"), folder.plugins.gone("score", "latency")) == ("", "")
    (folder.path / "mine.py").unlink()
    assert folder.plugins.look()
    assert (folder.plugins.scores, folder.plugins.status(), ours()) == ({}, [], [])
    assert folder.plugins.gone("score", "mine") == "score mine is not there, the route goes on without it"


def test_a_route_is_told_why_a_plugin_is_not_there(folder):
    folder.write("my_score.py", "def (")
    line = folder.plugins.gone("score", "my-score")
    assert line.startswith("score my-score is not there, the route goes on without it: ")
    assert line.endswith("my_score.py raised SyntaxError: invalid syntax (my_score.py, line 1)")


def test_who_comes_first_keeps_a_name(folder):
    folder.write("b.py", good(points="2.0"))
    folder.write("c.py", good(points="3.0"))
    assert folder.says() == [2.0, 2.0]
    folder.write("a.py", good(points="1.0"))
    assert folder.says() == [1.0, 1.0]
    first = f"declares what {folder.path / 'a.py'} has already"
    assert [row["why"] for row in folder.plugins.status()] == ["", first, first]
    (folder.path / "a.py").unlink()
    folder.plugins.look()
    assert folder.says() == [2.0, 2.0]


def test_tests_and_parts_of_plugins_are_no_plugins(folder):
    for file in ("test_mine.py", "_part.py", ".hidden.py", "conftest.py", "notes.txt"):
        folder.write(file, "raise SystemExit")
    assert folder.plugins.status() == []


def test_no_module_is_left_of_many_versions(folder):
    for number in range(30):
        folder.write("mine.py", good(points=f"{number}.5"))
    assert (ours(), folder.says()) == (["sits_plugin_mine_30"], [29.5, 29.5])
    assert str(folder.path) not in sys.path


def test_a_module_that_takes_another_name_is_taken_away_like_any_other(folder):
    before = ours()
    folder.write("mine.py", f"__name__ = 'sits_plugin_of_somebody'{good()}")
    assert (folder.says(), len(ours())) == ([1.0, 1.0], len(before) + 1)
    (folder.path / "mine.py").unlink()
    folder.plugins.look()
    assert ours() == before


def test_what_a_module_imports_is_not_asked_what_it_is(folder):
    proxy = "class Proxy:\n    __class__ = property(lambda self: 1 / 0)\nrequest = Proxy()\n"
    folder.write("mine.py", proxy + good())
    assert (folder.says(), folder.problems()) == ([1.0, 1.0], [])


def test_a_name_that_is_no_text_is_spelled_out(folder):
    path = os.fsencode(folder.path) + b"/caf\xe9.py"
    Path(os.fsdecode(path)).write_text("1 / 0")
    folder.plugins.look()
    where = f"{folder.path}/caf\\udce9.py"
    why = "raised ZeroDivisionError: division by zero (caf\\udce9.py, line 1)"
    assert folder.plugins.broken() == [("caf\\udce9", "failed", where, why)]
    assert folder.plugins.gone("score", "caf\\udce9").endswith(f": {where} {why}")
    Path(os.fsdecode(path)).write_text(good())
    folder.plugins.look()
    assert ([row["source"] for row in folder.plugins.status()], folder.says()) == ([where], [1.0, 1.0])


def test_a_link_that_leads_nowhere_is_told_of_until_it_leads_somewhere(folder, tmp_path):
    (folder.path / "mine.py").symlink_to(tmp_path / "later.txt")
    folder.plugins.look()
    assert folder.problems() == [f"{folder.path / 'mine.py'}: cannot be read: No such file or directory"]
    assert folder.plugins.gone("score", "mine").endswith("mine.py cannot be read: No such file or directory")
    assert not folder.plugins.look()
    (tmp_path / "later.txt").write_text(good())
    folder.plugins.look()
    assert (folder.says(), folder.problems()) == ([1.0, 1.0], [])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_what_is_no_file_is_not_waited_for(folder, make):
    make(folder.path / "mine.py")
    folder.plugins.look()
    assert folder.states() == {("mine", "failed"): "is no file"}


def test_a_folder_that_everybody_can_write_is_refused(folder):
    folder.write("mine.py", good())
    os.chmod(folder.path, 0o777)
    folder.plugins.look()
    assert folder.plugins.scores == {}
    assert folder.problems() == [f"{folder.path}: can be written by everybody: chmod o-w"]
    os.chmod(folder.path, 0o755)
    folder.plugins.look()
    assert folder.says() == [1.0, 1.0]


def test_a_file_that_everybody_can_write_is_refused(folder):
    (folder.path / "mine.py").write_text(good())
    os.chmod(folder.path / "mine.py", 0o666)
    folder.plugins.look()
    assert folder.states() == {("mine", "failed"): "can be written by everybody: chmod o-w"}
    os.chmod(folder.path / "mine.py", 0o644)
    folder.plugins.look()
    assert folder.states() == {("mine", "live"): ""}


def test_a_file_of_somebody_else_is_refused(folder, monkeypatch):
    (folder.path / "mine.py").write_text(good())
    whole = Path.stat

    def given_away(self, **more):
        found = list(whole(self, **more))
        found[4] = 12345 if self.name == "mine.py" else found[4]
        return os.stat_result(found)

    with monkeypatch.context() as patch:  # giving a file away in earnest takes root
        patch.setattr(Path, "stat", given_away)
        folder.plugins.look()
    why = "belongs to user 12345, who is neither root nor the one that runs the gateway"
    assert folder.states() == {("mine", "failed"): why}


def test_a_folder_that_is_not_there_is_a_problem_until_it_is(tmp_path):
    folder = Folder(tmp_path / "later")
    folder.plugins.start()
    assert folder.problems() == [f"{tmp_path / 'later'}: is no folder"]
    (tmp_path / "later").mkdir()
    folder.write("mine.py", good())
    assert (folder.problems(), folder.says()) == ([], [1.0, 1.0])
    folder.plugins.close()


def test_a_folder_that_cannot_be_read_for_a_while_takes_nothing_away(folder, monkeypatch):
    folder.write("mine.py", good())

    def refuses(path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(room.os, "listdir", refuses)
        assert not folder.plugins.look()
        assert folder.problems() == [f"{folder.path}: cannot be read: Permission denied; what was loaded stays"]
    folder.plugins.look()
    assert (folder.says(), folder.problems()) == ([1.0, 1.0], [])


def test_more_files_than_are_looked_at_are_a_problem(folder):
    for number in range(room.MOST_FILES + 1):
        (folder.path / f"p{number:03}.py").write_text(good(f"p{number:03}"))
    folder.plugins.look()
    assert len(folder.plugins.scores) == room.MOST_FILES
    assert folder.problems() == [f"{folder.path}: has 65 files; the first 64 are looked at"]


def test_another_folder_takes_the_place_of_the_first(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.py").write_text(good(points="7.0"))
    folder.write("mine.py", good())
    folder.plugins.move(other)
    assert folder.says() == [7.0, 7.0]
    folder.plugins.move(None)
    assert folder.plugins.scores == {}


def route(name, settings):
    return Made(name, candidates_of(2), settings, None)


def test_a_route_goes_on_without_one_that_cannot_use_its_settings(folder):
    folder.write("mine.py", good())
    maker, many = folder.plugins.scores["mine"], route("fast", {"points": "many"})
    assert list(maker(many).score(facts_of(0), many.candidates)) == [0.0, 0.0]
    why = "cannot use its settings: could not convert string to float: 'many'"
    assert folder.states() == {("mine", "failed"): f"route fast: {why}"}
    assert folder.plugins.unmade("score", "mine", "fast") == why
    assert folder.says() == [1.0, 1.0]
    assert folder.states() == {("mine", "failed"): f"route fast: {why}"}, "another route does not hide it"
    folder.plugins.compiling()
    maker(route("fast", {"points": 2}))
    assert (folder.states(), folder.plugins.unmade("score", "mine", "fast")) == ({("mine", "live"): ""}, "")


def test_a_change_of_settings_that_cannot_be_used_is_refused_and_what_is_so_already_is_not(folder):
    folder.write("mine.py", good())
    maker = folder.plugins.scores["mine"]
    maker.judge(route("fast", {"points": 1}))
    with pytest.raises(ValueError, match=r"^could not convert string to float: 'many'$"):
        maker.judge(route("fast", {"points": "many"}))
    assert folder.states() == {("mine", "live"): ""}, "to judge is not to use"
    maker(route("fast", {"points": "many"}))
    maker.judge(route("fast", {"points": "many"}))  # else nothing else could be changed until it is mended
    for other in (route("fast", {"points": "more"}), route("slow", {"points": "many"})):
        with pytest.raises(ValueError, match="could not convert"):
            maker.judge(other)
    folder.plugins.strict = False
    maker.judge(route("slow", {"points": "many"}))


def test_one_that_breaks_when_it_is_made_is_refused_too(folder):
    folder.write("mine.py", good().replace('made.settings.get("points", 1.0)', 'made.settings.get("deep", {"er": 1})["er"]'))
    with pytest.raises(ValueError, match=r"^cannot be made: raised KeyError: 'er' \(mine.py, line 6\)$"):
        folder.plugins.scores["mine"].judge(route("fast", {"deep": {}}))


def test_whoever_tells_of_it_hears_of_each_look_that_found_something_else(tmp_path):
    heard, loading = [], []
    folder = Folder(tmp_path / "plugins", looked=lambda: heard.append(folder.plugins.broken()), loading=loading.append)
    where = str(tmp_path / "plugins")
    mine = f"{where}/mine.py"
    folder.plugins.start()
    (tmp_path / "plugins").mkdir()
    folder.plugins.look()
    for text in ("raise SystemExit(4)", good(), "def ("):
        folder.write("mine.py", text)
        folder.plugins.look()
    syntax = "raised SyntaxError: invalid syntax (mine.py, line 1); the version before stays"
    assert heard == [
        [("", "failed", where, "is no folder")],
        [],
        [("mine", "failed", mine, "raised SystemExit: 4 (mine.py, line 1)")],
        [],
        [("mine", "stale", mine, syntax)],
    ]
    assert (loading, folder.plugins.live()) == ([mine] * 3, (1, 0))
    folder.plugins.close()


def test_every_plugin_has_its_metrics(folder):
    folder.write("mine.py", good().replace("return [", "self.points or 1 / 0; return ["))
    candidates = candidates_of(2)
    folder.says()
    score = folder.plugins.scores["mine"](made_for(candidates, {"points": 0}))
    for _ in range(3):
        score.score(facts_of(0), candidates)
    labels = {"plugin": "mine", "kind": "score"}
    troubles = dict.fromkeys(TROUBLES, 0.0) | {"raised": 3.0}
    assert folder.plugins.metrics() == [
        ("sits_plugin_calls_total", labels, 4.0),
        ("sits_plugin_seconds_total", labels, 0.0),
        ("sits_plugin_fenced", labels, 1.0),
        *(("sits_plugin_troubles_total", {**labels, "trouble": kind}, count) for kind, count in troubles.items()),
    ]


def test_a_watched_folder_is_looked_at_and_watching_ends_when_it_is_told_to(tmp_path):
    async def story():
        folder = Folder(tmp_path)
        folder.plugins.start()
        news, stop = asyncio.Event(), asyncio.Event()
        folder.plugins._changed = news.set
        watching = asyncio.create_task(folder.plugins.watch(stop, poll=0.2))
        seen = []
        for change in (lambda: _put(tmp_path, good()), lambda: _put(tmp_path, good(points="9.0")), (tmp_path / "mine.py").unlink):
            news.clear()
            change()
            await asyncio.wait_for(news.wait(), 30.0)
            seen.append(folder.says() if folder.plugins.scores else [])
        stop.set()
        await asyncio.wait_for(watching, 30.0)
        return seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == [[1.0, 1.0], [9.0, 9.0], []]


def test_a_defect_of_a_look_ends_no_watch_is_told_once_and_made_good(tmp_path, caplog):
    async def story():
        folder, stop, done = Folder(tmp_path), asyncio.Event(), asyncio.Event()
        folder.plugins.start()
        tries = []

        def compiles():
            tries.append(len(tries))
            if len(tries) < 4:
                raise LookupError("no such route")
            done.set()

        folder.plugins._changed = compiles
        watching = asyncio.create_task(folder.plugins.watch(stop, poll=0.1))
        _put(tmp_path, good())
        await asyncio.wait_for(done.wait(), 30.0)
        stop.set()
        await asyncio.wait_for(watching, 30.0)
        folder.plugins.look()
        return len(tries), folder.says()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == (4, [1.0, 1.0])
    [line] = [one for one in caplog.records if one.name == "sits.plugins"]
    assert line.message.startswith("plugins: a defect while looking at them, what is in force stays: raised LookupError: no such")
    assert line.exc_info is not None


def test_a_folder_of_a_name_that_none_can_have_is_a_problem_and_ends_no_watch(tmp_path):
    async def story():
        folder, stop = Folder(tmp_path / "a\0b"), asyncio.Event()
        folder.plugins.start()
        watching = asyncio.create_task(folder.plugins.watch(stop, poll=0.01))
        for _ in range(3):
            await asyncio.sleep(0)
        told, ended = folder.problems(), watching.done()
        stop.set()
        await asyncio.wait_for(watching, 30.0)
        return told, ended

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == ([f"{tmp_path}/a\\x00b: is no folder"], False)


def _put(folder: Path, text: str) -> None:
    """As editors and `mv` do: whole or not at all."""
    (folder / "mine.new").write_text(text)
    os.replace(folder / "mine.new", folder / "mine.py")


# Plugins of packages that are installed.


def install(site: Path, name: str, entry: str, **files: str) -> None:
    """A distribution as pip leaves it."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sits.plugins]\n{entry}\n")
    for file, text in files.items():
        (site / f"{file}.py").write_text(text)


@pytest.fixture
def site(tmp_path):
    path = tmp_path / "site"
    path.mkdir()
    before = set(sys.modules)
    sys.path.insert(0, str(path))
    yield path
    sys.path.remove(str(path))
    for name in set(sys.modules) - before:
        if name.startswith("p6_"):
            del sys.modules[name]


@contextlib.contextmanager
def installed():
    folder = Folder(Path("/nowhere"))
    folder.plugins.move(None)
    folder.plugins.start()
    try:
        yield folder
    finally:
        folder.plugins.close()


def test_an_installed_package_brings_plugins_by_module_and_by_class(site):
    install(site, "p6-one", "one = p6_one", p6_one=good("one", "1.0"))
    install(site, "p6-two", "two = p6_two:Mine", p6_two=good("two", "2.0"))
    with installed() as folder:
        assert (folder.says("one"), folder.says("two")) == ([1.0, 1.0], [2.0, 2.0])
        assert [row["source"] for row in folder.plugins.status()] == ["one = p6_one", "two = p6_two:Mine"]


def test_an_installed_package_that_cannot_be_loaded_is_shown_and_back_once_it_is_mended(site):
    install(site, "p6-three", "three = p6_three", p6_three="raise SystemExit")
    with installed() as folder:
        assert folder.states() == {("three", "failed"): "raised SystemExit (p6_three.py, line 1)"}
        assert not folder.plugins.look()
        (site / "p6_three.py").write_text(good("three", "3.0"))
        assert folder.plugins.look()
        assert folder.says("three") == [3.0, 3.0]
        (site / "p6_three.py").write_text("1 / 0  # broken again")
        folder.plugins.look()
        assert folder.says("three") == [3.0, 3.0]
        assert folder.plugins.status()[0]["stale"]
        (site / "p6_three.py").write_text(good("three", "3.25"))
        folder.plugins.look()
        assert folder.says("three") == [3.25, 3.25]


def test_a_package_that_is_installed_later_is_found_without_a_restart(site):
    with installed() as folder:
        assert folder.plugins.scores == {}
        install(site, "p6-four", "four = p6_four", p6_four=good("four", "4.0"))
        assert folder.plugins.rescan()
        assert folder.says("four") == [4.0, 4.0]


def test_a_file_cannot_take_the_name_of_what_is_installed(site, tmp_path):
    install(site, "p6-five", "five = p6_five", p6_five=good("five", "5.0"))
    with installed() as folder:
        folder.path = tmp_path
        folder.plugins.move(tmp_path)
        folder.write("five.py", good("five", "6.0"))
        assert folder.says("five") == [5.0, 5.0]
        assert folder.states()["five", "failed"] == "declares what five = p6_five has already"
