"""What `sits plugin new` writes: a plugin that works, with a test of its own, to be changed."""

from __future__ import annotations

from sits.routing.plugins.fence import Kind

SCORE = '''"""Score `@NAME@`: how much is for a backend. In a route:

    scores:
      - {name: @NAME@, weight: 2, settings: {label: speed}}
"""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.scheduling.base import Candidate, Facts, Made, Score


class @CLASS@(Score):
    """The higher a label of a backend is as a number, the better."""

    name = "@NAME@"
    varies = "never"
    """How often what it says can change: `never` with the configuration only, `tick` five times a second, `request` each time.
    One that is `never` or `tick` may look at what `facet` returns, and at nothing else of a request."""
    scale = "most"
    """`given`: `score` returns 0 to 100. `most`: any numbers, the highest is best. `least`: costs, the lowest is best."""

    def __init__(self, made: Made) -> None:
        """Made once for each route that uses it. What can be worked out here costs a request nothing.

        ValueError is for settings that cannot be used; its words are shown to whoever wrote them.
        """
        settings = dict(made.settings)
        label = settings.pop("label", "speed")
        if settings:
            raise ValueError(f"there is no setting {next(iter(settings))!r}; there is: label")
        if not isinstance(label, str) or not label:
            raise ValueError("`label` is the name of a label")
        self._points = [_number(one.labels.get(label, "")) for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        """A number for each of the candidates, in their order. It is called where every other request waits: be quick, never
        wait for anything, change nothing."""
        return self._points


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0.0 <= found < 1e9 else 0.0
'''

SCORE_TEST = '''"""What score `@NAME@` keeps. Run it with `pytest @TEST@`."""

from __future__ import annotations

import pytest
from @MODULE@ import @CLASS@
from sits.routing.scheduling.checks import SCORE_CHECKS, candidates_of, facts_of, made_for

SETTINGS = {"label": "kv-tokens"}


@pytest.mark.parametrize("check", SCORE_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_what_every_score_must(check):
    check(@CLASS@, SETTINGS)


def test_who_has_more_of_the_label_is_better():
    candidates = candidates_of(3)
    for one, tokens in zip(candidates, ("100", "none", "2000"), strict=True):
        one.labels = {"kv-tokens": tokens}
    score = @CLASS@(made_for(candidates, SETTINGS))
    assert score.score(facts_of(0), candidates) == [100.0, 0.0, 2000.0]


def test_a_setting_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="there is no setting 'lable'"):
        @CLASS@(made_for(candidates_of(3), {"lable": "speed"}))
'''

FILTER = '''"""Filter `@NAME@`: who must not answer a request. In a route:

    filters:
      - {name: @NAME@, settings: {header: x-avoid-region, label: region}}
"""

from __future__ import annotations

from sits.routing.scheduling.base import Candidate, Facts, Filter, Made


class @CLASS@(Filter):
    """Leaves out the backends whose label has the value that a header of the client names."""

    name = "@NAME@"
    strict = False
    """Where it would leave nobody: True means that nobody is asked, False that it is passed over then."""

    def __init__(self, made: Made) -> None:
        """Made once for each route that uses it. What can be worked out here costs a request nothing.

        ValueError is for settings that cannot be used; its words are shown to whoever wrote them.
        """
        settings = dict(made.settings)
        header = settings.pop("header", "x-avoid-region")
        label = settings.pop("label", "region")
        if settings:
            raise ValueError(f"there is no setting {next(iter(settings))!r}; there are: header, label")
        if not isinstance(header, str) or not isinstance(label, str) or not header or not label:
            raise ValueError("`header` and `label` are names")
        self._header = header.lower().encode()
        self._label = label
        self._values = [one.labels.get(label, "").encode() for one in made.candidates]
        self._known = frozenset(self._values) - {b""}

    def asks(self, facts: Facts) -> bool:
        """Whether this request is any of its business: where not, `keep` is not called."""
        return facts.headers.get(self._header, b"") in self._known

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        """Empty where the candidate may answer; else why not, in words that go on from its name. It is called where every other
        request waits: be quick, never wait for anything, change nothing."""
        if self._values[candidate.index] != facts.headers.get(self._header, b""):
            return ""
        return f"has the {self._label} that the client wants to avoid"
'''

FILTER_TEST = '''"""What filter `@NAME@` keeps. Run it with `pytest @TEST@`."""

from __future__ import annotations

import pytest
from @MODULE@ import @CLASS@
from sits.routing.scheduling.checks import FILTER_CHECKS, candidates_of, facts_of, made_for

SETTINGS = {"header": "x-sits-zone", "label": "zone"}


@pytest.mark.parametrize("check", FILTER_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_what_every_filter_must(check):
    check(@CLASS@, SETTINGS)


def test_who_is_to_be_avoided_is_left_out():
    candidates = candidates_of(2)
    candidates[0].labels, candidates[1].labels = {"region": "eu"}, {"region": "us"}
    mine = @CLASS@(made_for(candidates, {}))
    facts = facts_of(0)
    facts.headers = {b"x-avoid-region": b"us"}
    assert mine.asks(facts)
    assert [mine.keep(facts, one) for one in candidates] == ["", "has the region that the client wants to avoid"]


def test_a_request_that_avoids_nothing_is_none_of_its_business():
    assert not @CLASS@(made_for(candidates_of(2), {})).asks(facts_of(0))


def test_a_setting_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="there is no setting 'heder'"):
        @CLASS@(made_for(candidates_of(3), {"heder": "x"}))
'''


def written(kind: Kind, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The plugin and its test: name of the file, and text. `name` is of lower case letters, digits and `-`."""
    module = name.replace("-", "_")
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(word.capitalize() for word in name.split("-")),
        "@TEST@": f"test_{module}.py",
    }
    plugin, test = (SCORE, SCORE_TEST) if kind == "score" else (FILTER, FILTER_TEST)
    for mark, word in words.items():
        plugin, test = plugin.replace(mark, word), test.replace(mark, word)
    return (f"{module}.py", plugin), (f"test_{module}.py", test)
